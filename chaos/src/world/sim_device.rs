//! A worker's device on virtual time: it does one job after the other, each at once, and reports
//! later.
//!
//! The device is that of production. There it waits for parameters on its own thread. Here a
//! gradient begins only when the queue has all that it waits for, or a job that ends it. Jobs that
//! overtake a waiting gradient do so here, too.

use std::collections::VecDeque;
use std::time::Duration;

use everstep_transport::protocol::{Generation, LossScale, Shard, Step};
use everstep_transport::time::Time;
use everstep_worker::device::{Device, DeviceChannel, DeviceError};
use everstep_worker::registry::BuildError;
use everstep_worker::step::event::{Built, Job, Report, ShardOrigin};

use crate::random::Random;

/// The data shards of a step take a member this long if it has an equal share of them, and up to
/// twice as long again.
const COMPUTE_TIME: Duration = Duration::from_millis(80);
const COMPUTE_SPREAD_NS: u64 = 160_000_000;

/// A result of a device, or of its construction.
#[derive(Debug)]
pub enum DeviceOutput {
    /// The model and the data, or the error of their construction.
    Built(Box<Result<Built, BuildError>>),
    /// A report of the device in this generation.
    Report(Generation, Report),
}

/// A device and its jobs.
pub struct SimDevice {
    device: Device,
    /// Jobs in the order of their delivery.
    jobs: VecDeque<Job>,
    /// The version of each shard of the computing parameters.
    versions: Vec<Step>,
    /// The generation that the device has entered.
    generation: Generation,
    /// When the job under way is done. None if there is none.
    busy_until: Option<Time>,
    /// Whether a bit has flipped in its memory.
    flipped: bool,
    /// How many data shards each member has in equal shares.
    equal_share: u32,
}

/// What a job has left when its time is over.
pub struct FinishedJob {
    /// For a gradient: the generation of the device, the step, and the loss scale.
    pub gradient: Option<(Generation, Step, LossScale)>,
    /// The device's reports, each with its time.
    pub reports: Vec<(Time, DeviceOutput)>,
    /// When the device is free again. The caller calls [`SimDevice::release`] then.
    pub until: Time,
}

impl SimDevice {
    /// A device with no jobs, for a model of `shards` parameter shards, in a run with equal shares
    /// of so many data shards.
    pub fn new(device: Device, shards: u32, equal_share: u32) -> Self {
        Self {
            device,
            jobs: VecDeque::new(),
            versions: vec![Step(0); shards as usize],
            generation: Generation(0),
            busy_until: None,
            flipped: false,
            equal_share,
        }
    }

    /// How many jobs wait.
    pub fn waiting(&self) -> usize {
        self.jobs.len()
    }

    /// Queues a job behind those that wait.
    pub fn push(&mut self, job: Job) {
        self.jobs.push_back(job);
    }

    /// Marks the device as free, if its job is done by `now`. The end of a hang may come earlier.
    pub fn release(&mut self, now: Time) {
        self.busy_until.take_if(|until| *until <= now);
    }

    /// Flips a bit in the device's memory. The device compares digests before the next update.
    pub fn flip(&mut self) {
        self.flipped = true;
    }

    /// Does the next job, if the device is free and there is one that can be done. A gradient takes
    /// so many thousandths of its usual time.
    pub fn work(&mut self, now: Time, permille: u32, random: &mut Random) -> Option<FinishedJob> {
        if self.busy_until.is_some() {
            return None;
        }
        let place = self.next()?;
        let job = self.jobs.remove(place)?;
        let gradient = match &job {
            Job::Gradient { step, scale, .. } => Some((self.generation, *step, *scale)),
            _ => None,
        };
        let changed = self.flipped && matches!(job, Job::Update { .. });
        note(&mut self.versions, &job);
        let Self { device, jobs, versions, generation, .. } = self;
        let speed = DeviceSpeed { permille, equal_share: self.equal_share };
        let mut channel =
            DeliveredJobs { jobs, versions, random, now, generation, speed, reports: vec![] };
        let done = match changed {
            true => Err(DeviceError::Failed("a parameter shard changed in memory".into())),
            false => device.handle(job, &mut channel),
        };
        if let Err(error) = done {
            channel.report(error.into());
        }
        let until = channel.now + channel.random.delay();
        self.busy_until = Some(until);
        Some(FinishedJob { gradient, reports: channel.reports, until })
    }

    /// The place of the next job that can be done without waiting.
    fn next(&self) -> Option<usize> {
        let first = self.jobs.front()?;
        match first {
            Job::Gradient { step, .. } if !self.comes_to_an_end(*step) => self.overtaking(),
            _ => Some(0),
        }
    }

    /// Whether the queue has all that the gradient of this step waits for, or a job that ends it.
    /// The gradient is the first job in the queue.
    fn comes_to_an_end(&self, step: Step) -> bool {
        let mut versions = self.versions.clone();
        let mut deferred = false;
        for job in self.jobs.iter().skip(1) {
            if is_complete(&versions, step) {
                return true;
            }
            match job {
                Job::Enter { origin, .. } if *origin != ShardOrigin::Held => return true,
                Job::Load { version: made, .. }
                | Job::Update { step: made, .. }
                | Job::Skip { step: made }
                    if *made >= step =>
                {
                    return true;
                }
                Job::Load { .. } => note(&mut versions, job),
                Job::Update { .. } if !deferred => note(&mut versions, job),
                // What it restores may be damaged, and then changes nothing.
                Job::Restore { .. } if !deferred => {}
                Job::Share { .. } | Job::Export { .. } | Job::Save { .. } => {}
                _ => deferred = true,
            }
        }
        is_complete(&versions, step)
    }

    /// The place of a job that the device does while the gradient before it waits.
    fn overtaking(&self) -> Option<usize> {
        let mut deferred: Vec<&Job> = Vec::new();
        for (place, job) in self.jobs.iter().enumerate().skip(1) {
            let changes = |wanted: &Shard| {
                deferred.iter().any(|job| {
                    matches!(job, Job::Update { shard, .. } | Job::Restore { shard, .. }
                        if shard == wanted)
                })
            };
            match job {
                Job::Share { shards, .. }
                | Job::Export { shards, .. }
                | Job::Save { shards, .. }
                    if !shards.iter().any(changes) =>
                {
                    return Some(place);
                }
                Job::Update { .. } | Job::Restore { .. } if deferred.is_empty() => {
                    return Some(place);
                }
                Job::Load { .. } => {}
                _ => deferred.push(job),
            }
        }
        None
    }
}

/// Whether a gradient of `step` can be computed with these versions.
fn is_complete(versions: &[Step], step: Step) -> bool {
    versions.iter().all(|version| version.next() == step)
}

/// Notes the parameters that a job brings for the next gradient. A state that is restored may be
/// damaged: its report says what it brings.
fn note(versions: &mut [Step], job: &Job) {
    match job {
        Job::Load { shard, version, .. } => versions[shard.0 as usize] = *version,
        Job::Update { shard, step, .. } => follow(versions, *shard, *step),
        Job::Skip { step } => {
            let before = versions.iter_mut().filter(|version| version.next() == *step);
            before.for_each(|version| *version = *step);
        }
        Job::Enter { origin, .. } if *origin != ShardOrigin::Held => versions.fill(Step(0)),
        _ => {}
    }
}

/// The computing parameters follow a copy that is as new.
fn follow(versions: &mut [Step], shard: Shard, version: Step) {
    let known = &mut versions[shard.0 as usize];
    *known = version.max(*known);
}

/// How fast a device computes.
struct DeviceSpeed {
    /// The time that it takes, in thousandths of the usual time.
    permille: u32,
    /// How many data shards each member has in equal shares.
    equal_share: u32,
}

impl DeviceSpeed {
    /// How long the next data shard takes.
    fn shard_time(&self, random: &mut Random) -> Duration {
        let spread = Duration::from_nanos(random.below(COMPUTE_SPREAD_NS));
        (COMPUTE_TIME + spread) * self.permille / 1_000 / self.equal_share
    }
}

/// A job's view of the device: the jobs delivered so far, and a clock that advances with every
/// report.
struct DeliveredJobs<'a> {
    jobs: &'a mut VecDeque<Job>,
    versions: &'a mut Vec<Step>,
    random: &'a mut Random,
    now: Time,
    generation: &'a mut Generation,
    speed: DeviceSpeed,
    reports: Vec<(Time, DeviceOutput)>,
}

impl DeviceChannel for DeliveredJobs<'_> {
    fn report(&mut self, mut report: Report) {
        match &mut report {
            Report::Entered { generation, .. } => *self.generation = *generation,
            Report::Restored { version, shard, intact: true, .. } => {
                follow(self.versions, *shard, *version);
            }
            Report::Computed { seconds, .. } => {
                let took = self.speed.shard_time(self.random);
                *seconds += took.as_secs_f64();
                self.now = self.now + took;
            }
            _ => {}
        }
        self.now = self.now + self.random.delay();
        self.reports.push((self.now, DeviceOutput::Report(*self.generation, report)));
    }

    /// The next job. A gradient under way takes the jobs that it waits for, and defers all others.
    fn wait(&mut self) -> Option<Job> {
        let job = self.jobs.pop_front()?;
        note(self.versions, &job);
        Some(job)
    }

    fn next_updates(&mut self, step: Step, most: usize) -> Vec<Job> {
        let is_next = |job: &&Job| matches!(job, Job::Update { step: of, .. } if *of == step);
        let count = self.jobs.iter().take(most).take_while(is_next).count();
        let updates: Vec<Job> = self.jobs.drain(..count).collect();
        updates.iter().for_each(|job| note(self.versions, job));
        updates
    }

    fn now(&self) -> Time {
        self.now
    }
}

//! A worker's device on virtual time: one job after the other, each done at once and reported
//! later.
//!
//! The device is that of production. It would wait for parameters on its own thread; here a
//! gradient is begun only when all of them have been delivered.

use std::collections::VecDeque;
use std::time::Duration;

use everstep_transport::protocol::Step;
use everstep_transport::time::Time;
use everstep_worker::device::{Device, Port};
use everstep_worker::step::event::{Job, Report};

use crate::random::Random;

/// A gradient takes this long, and up to twice as long again.
const COMPUTE: Duration = Duration::from_millis(80);
const SPREAD_NS: u64 = 160_000_000;

/// A device and its jobs.
pub struct Bench {
    device: Device,
    /// In the order of their delivery.
    jobs: VecDeque<Job>,
    /// The version of each shard of the computing parameters.
    versions: Vec<Step>,
    busy: bool,
}

/// A job that was done.
pub struct Work {
    /// The step whose gradient it is, if it is one.
    pub gradient: Option<Step>,
    /// What the device reports, each with its time.
    pub reports: Vec<(Time, Report)>,
    /// When the device is free again; [`Bench::release`] is to be called then.
    pub until: Time,
}

impl Bench {
    /// A device with nothing to do, for a model of `shards` parameter shards.
    pub fn new(device: Device, shards: u32) -> Self {
        let versions = vec![Step(0); shards as usize];
        Self { device, jobs: VecDeque::new(), versions, busy: false }
    }

    /// How many jobs are to be done.
    pub fn waiting(&self) -> usize {
        self.jobs.len()
    }

    /// Delivers a job.
    pub fn push(&mut self, job: Job) {
        self.jobs.push_back(job);
    }

    /// The device has done its job.
    pub fn release(&mut self) {
        self.busy = false;
    }

    /// Does the next job, if the device is free and there is one that can be done.
    pub fn work(&mut self, now: Time, random: &mut Random) -> Option<Work> {
        if self.busy || !self.is_ready() {
            return None;
        }
        let job = self.jobs.pop_front()?;
        self.busy = true;
        let gradient = match &job {
            Job::Gradient { step } => Some(*step),
            _ => None,
        };
        self.note_versions(&job);
        let Self { device, jobs, versions, .. } = self;
        let mut port = Delivered { jobs, versions, random, now, reports: Vec::new() };
        if gradient.is_some() {
            // All of it at once: what is sent meanwhile comes a little later than it would.
            port.now = port.now + COMPUTE + Duration::from_nanos(port.random.below(SPREAD_NS));
        }
        if let Err(reason) = device.handle(job, &mut port) {
            port.report(Report::Failed(reason));
        }
        let until = port.now + port.random.delay();
        Some(Work { gradient, reports: port.reports, until })
    }

    /// Whether the next job can be done without waiting.
    fn is_ready(&self) -> bool {
        let Some(Job::Gradient { step }) = self.jobs.front() else { return true };
        let delivered = |wanted: usize| {
            let is_it = |job: &Job| {
                matches!(job, Job::Load { shard, version, .. }
                    if shard.0 as usize == wanted && version.next() == *step)
            };
            self.jobs.iter().any(is_it)
        };
        let mut versions = self.versions.iter().enumerate();
        versions.all(|(shard, version)| version.next() == *step || delivered(shard))
    }

    fn note_versions(&mut self, job: &Job) {
        match job {
            Job::Update { shard, step: version, .. } | Job::Load { shard, version, .. } => {
                self.versions[shard.0 as usize] = *version;
            }
            Job::Skip { step } => self.versions.fill(*step),
            _ => {}
        }
    }
}

/// What a job sees of its surroundings: the jobs delivered so far, and a clock that goes on with
/// every report.
struct Delivered<'a> {
    jobs: &'a mut VecDeque<Job>,
    versions: &'a mut Vec<Step>,
    random: &'a mut Random,
    now: Time,
    reports: Vec<(Time, Report)>,
}

impl Port for Delivered<'_> {
    fn report(&mut self, report: Report) {
        self.now = self.now + self.random.delay();
        self.reports.push((self.now, report));
    }

    /// The next parameters; nothing else is delivered while a gradient is computed.
    fn wait(&mut self) -> Option<Job> {
        let job = self.jobs.pop_front_if(|job| matches!(job, Job::Load { .. }))?;
        if let Job::Load { shard, version, .. } = &job {
            self.versions[shard.0 as usize] = *version;
        }
        Some(job)
    }

    fn now(&self) -> Time {
        self.now
    }
}

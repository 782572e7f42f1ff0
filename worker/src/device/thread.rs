//! The device's own thread, and the channels to it.

use std::any::Any;
use std::collections::{BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel as mpsc_channel};
use std::thread;
use std::time::Instant;

use everstep_transport::protocol::Step;
use everstep_transport::time::Time;
use tokio::sync::mpsc;

use super::{Device, DeviceChannel};
use crate::step::event::{Job, Report};

/// The most reports that wait for the network thread. With so many the device waits.
const REPORTS: usize = 1024;
/// The device hands over so many bytes to send at once.
const BATCH_BYTES: usize = 256 << 10;
/// How much the scheduler favours the network thread over a computing one. A starved endpoint kills
/// its own healthy connections.
const NICE: i32 = 5;

/// Starts the device's thread. It ends when the sender is dropped. It drops `alive` after the
/// device.
///
/// The plan bounds the jobs, not this channel: a step has so many chunks and no more.
pub fn start(device: Device, alive: Arc<()>) -> (Sender<Job>, mpsc::Receiver<Report>) {
    let (jobs, received) = mpsc_channel();
    let (reports, reported) = mpsc::channel(REPORTS);
    let channel = ThreadChannel::new(received, reports);
    let thread = thread::Builder::new().name("device".into());
    let device = move || {
        run(device, channel);
        drop(alive);
    };
    thread.spawn(device).expect("the system gives a process a thread");
    (jobs, reported)
}

fn run(mut device: Device, mut channel: ThreadChannel) {
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
    let outcome = catch_unwind(AssertUnwindSafe(|| device.run(&mut channel)));
    if let Err(panic) = outcome {
        channel.report(device.panicked(words(&*panic)).into());
    }
}

/// The message of a panic.
pub(crate) fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

struct ThreadChannel {
    jobs: Receiver<Job>,
    /// Jobs that the device looked at and left for later, in order.
    passed: VecDeque<Job>,
    reports: mpsc::Sender<Report>,
    /// Reports that the channel holds back, and the bytes of their tensors.
    held: Vec<Report>,
    held_bytes: usize,
    began: Instant,
}

impl ThreadChannel {
    fn new(jobs: Receiver<Job>, reports: mpsc::Sender<Report>) -> Self {
        let (passed, held, began) = (VecDeque::new(), Vec::new(), Instant::now());
        Self { jobs, passed, reports, held, held_bytes: 0, began }
    }

    fn next(&mut self) -> Option<Job> {
        self.passed.pop_front().or_else(|| self.jobs.try_recv().ok())
    }

    fn hand_over(&mut self) {
        self.held_bytes = 0;
        for report in self.held.drain(..) {
            // The receiver is gone: the process is ending.
            let _ = self.reports.blocking_send(report);
        }
    }
}

impl DeviceChannel for ThreadChannel {
    /// Each time the network thread wakes costs the device a turn on its core. So tensors to send
    /// wake it once for every [`BATCH_BYTES`]. The channel hands over all other reports at once.
    fn report(&mut self, report: Report) {
        let bytes = match &report {
            Report::Partial { sum, .. } => sum.as_bytes().len(),
            Report::Updated { parameters, .. } => {
                parameters.as_ref().map_or(0, |values| values.as_bytes().len())
            }
            _ => BATCH_BYTES,
        };
        self.held.push(report);
        self.held_bytes += bytes;
        if self.held_bytes >= BATCH_BYTES {
            self.hand_over();
        }
    }

    fn wait(&mut self) -> Option<Job> {
        match self.next() {
            Some(job @ Job::Update { .. }) => Some(job),
            Some(job) => {
                self.hand_over();
                Some(job)
            }
            None => {
                self.hand_over();
                self.jobs.recv().ok()
            }
        }
    }

    fn next_request(&mut self) -> Option<Job> {
        self.passed.extend(self.jobs.try_iter());
        let mut changed = BTreeSet::new();
        for (place, job) in self.passed.iter().enumerate() {
            match job {
                Job::Share { shards, .. }
                | Job::Export { shards, .. }
                | Job::Save { shards, .. }
                    if shards.iter().all(|shard| !changed.contains(shard)) =>
                {
                    return self.passed.remove(place);
                }
                Job::Update { shard, .. } | Job::Restore { shard, .. } => {
                    changed.insert(*shard);
                }
                Job::Enter { .. } => return None,
                _ => {}
            }
        }
        None
    }

    fn next_updates(&mut self, step: Step, most: usize) -> Vec<Job> {
        let is_next = |job: &Job| matches!(job, Job::Update { step: of, .. } if *of == step);
        let mut updates = Vec::new();
        while updates.len() < most
            && let Some(job) = self.next()
        {
            if !is_next(&job) {
                self.passed.push_front(job);
                break;
            }
            updates.push(job);
        }
        updates
    }

    fn is_over(&mut self) -> bool {
        match self.jobs.try_recv() {
            Ok(job) => {
                self.passed.push_back(job);
                false
            }
            Err(TryRecvError::Empty) => false,
            Err(TryRecvError::Disconnected) => true,
        }
    }

    fn now(&self) -> Time {
        Time(self.began.elapsed().as_nanos() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use everstep_kernels::buffer::{Buffer, Shared};
    use everstep_transport::protocol::{Shard, WorkerId};

    /// A channel with these jobs waiting, and the reports as the network thread receives them.
    fn thread_channel(
        waiting: impl IntoIterator<Item = Job>,
    ) -> (ThreadChannel, mpsc::Receiver<Report>) {
        let (jobs, received) = mpsc_channel();
        for job in waiting {
            jobs.send(job).expect("the channel listens");
        }
        let (reports, reported) = mpsc::channel(REPORTS);
        (ThreadChannel::new(received, reports), reported)
    }

    fn update(step: u64, shard: u32) -> Job {
        let (step, shard) = (Step(step), Shard(shard));
        Job::Update { shard, step, norm: 1.0, factor: 1.0, update: 1, gradient: None }
    }

    #[test]
    fn the_next_updates_are_those_of_one_step_up_to_another_job() {
        let skip = Job::Skip { step: Step(1) };
        let jobs = [update(1, 0), update(1, 1), update(1, 2), skip, update(1, 3), update(2, 0)];
        let (mut channel, _reported) = thread_channel(jobs);
        let mut shards = |most| -> Vec<u32> {
            let updates = channel.next_updates(Step(1), most).into_iter();
            let shard = |job| match job {
                Job::Update { shard, .. } => shard.0,
                job => panic!("{job:?} is no update"),
            };
            updates.map(shard).collect()
        };
        assert_eq!(
            [shards(0), shards(2), shards(5), shards(5)],
            [vec![], vec![0, 1], vec![2], vec![]]
        );
        assert!(matches!(channel.wait(), Some(Job::Skip { .. })), "all others stay in order");
        let one = channel.next_updates(Step(1), 5);
        assert!(matches!(one[..], [Job::Update { shard: Shard(3), .. }]), "{one:?}");
        assert!(matches!(channel.wait(), Some(Job::Update { step: Step(2), .. })));
    }

    fn updated(bytes: usize) -> Report {
        let parameters = Some(Shared::new(Buffer::detached(vec![0.0; bytes / 4])));
        Report::Updated { version: Step(1), shard: Shard(0), digest: 0, parameters }
    }

    #[test]
    fn what_there_is_to_send_is_handed_over_in_batches() {
        let (mut channel, reported) = thread_channel([]);
        channel.report(updated(BATCH_BYTES / 2));
        assert_eq!(reported.len(), 0, "half a batch waits");
        channel.report(updated(BATCH_BYTES / 2));
        assert_eq!(reported.len(), 2);
    }

    #[test]
    fn what_is_not_to_send_takes_all_with_it_at_once() {
        let (mut channel, reported) = thread_channel([]);
        channel.report(updated(4));
        channel.report(Report::Restored {
            version: Step(1),
            shard: Shard(0),
            digest: 0,
            intact: true,
        });
        assert_eq!(reported.len(), 2);
    }

    #[test]
    fn a_question_overtakes_what_does_not_concern_it() {
        let export = |shard| Job::Export { to: WorkerId(1), shards: vec![Shard(shard)] };
        let (mut channel, _reported) =
            thread_channel([update(1, 1), export(1), export(2), update(1, 2)]);
        let asked = |job: Option<Job>| match job {
            Some(Job::Export { shards, .. }) => shards,
            _ => Vec::new(),
        };
        assert_eq!(asked(channel.next_request()), [Shard(2)]);
        assert_eq!(
            asked(channel.next_request()),
            [],
            "the update before it changes what it asks for"
        );
        assert!(matches!(channel.wait(), Some(Job::Update { shard: Shard(1), .. })));
        assert_eq!(asked(channel.next_request()), [Shard(1)]);
        assert!(matches!(channel.wait(), Some(Job::Update { shard: Shard(2), .. })));
    }

    #[test]
    fn nothing_is_held_while_the_device_waits_or_does_something_else() {
        let skip = Job::Skip { step: Step(1) };
        for jobs in [vec![], vec![skip]] {
            let (mut channel, reported) = thread_channel(jobs);
            channel.report(updated(4));
            channel.wait();
            assert_eq!(reported.len(), 1);
        }
    }
}

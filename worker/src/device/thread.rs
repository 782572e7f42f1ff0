//! The device's own thread, and the channels to it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;

use everstep_transport::time::Time;
use tokio::sync::mpsc;

use super::{Device, Port};
use crate::step::event::{Job, Report};

/// Most reports that wait for the network thread; then the device waits.
const REPORTS: usize = 1024;
/// So many bytes to send are handed over together.
const BATCH_BYTES: usize = 256 << 10;
/// How much the scheduler favours the network thread over a computing one: a starved endpoint
/// kills its own healthy connections.
const NICE: i32 = 5;

/// Starts the device's thread. It ends when the sender is dropped.
///
/// Jobs are not bounded here but by the plan: a step has so many pieces and no more.
pub fn start(device: Device) -> (Sender<Job>, mpsc::Receiver<Report>) {
    let (jobs, received) = channel();
    let (reports, reported) = mpsc::channel(REPORTS);
    let began = Instant::now();
    let port = ThreadPort { jobs: received, reports, held: Vec::new(), held_bytes: 0, began };
    let thread = thread::Builder::new().name("device".into());
    thread.spawn(move || run(device, port)).expect("the system gives a process a thread");
    (jobs, reported)
}

fn run(mut device: Device, mut port: ThreadPort) {
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
    let outcome = catch_unwind(AssertUnwindSafe(|| device.run(&mut port)));
    if let Err(panic) = outcome {
        port.report(Report::Failed(format!("the device panicked: {}", words(&*panic))));
    }
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

struct ThreadPort {
    jobs: Receiver<Job>,
    reports: mpsc::Sender<Report>,
    /// Reports that wait for others, and the bytes of their tensors.
    held: Vec<Report>,
    held_bytes: usize,
    began: Instant,
}

impl ThreadPort {
    fn hand_over(&mut self) {
        self.held_bytes = 0;
        for report in self.held.drain(..) {
            // Nobody listens any more: the process is ending.
            let _ = self.reports.blocking_send(report);
        }
    }
}

impl Port for ThreadPort {
    /// Each time the network thread wakes costs the device a turn on its core, so what there is to
    /// send wakes it once for every [`BATCH_BYTES`]; all else is handed over at once.
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
        match self.jobs.try_recv() {
            Ok(job @ Job::Update { .. }) => Some(job),
            Ok(job) => {
                self.hand_over();
                Some(job)
            }
            Err(_) => {
                self.hand_over();
                self.jobs.recv().ok()
            }
        }
    }

    fn now(&self) -> Time {
        Time(self.began.elapsed().as_nanos() as u64)
    }
}

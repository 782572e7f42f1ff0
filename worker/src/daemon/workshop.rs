//! Where devices are built and run, one at a time.
//!
//! Each build has a number, so that what an earlier device still reports is told from the present
//! one's, and its own incarnation: it registers as a worker that was never seen.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Instant;

use actix::Addr;
use everstep_kernels::buffer::Pool;
use everstep_transport::protocol::{RunSpec, Telemetry};

use super::actor::WorkerActor;
use super::event::{DeviceBuilt, Reported};
use super::telemetry::{self, Figures};
use crate::device::build::{Place, build};
use crate::device::{Device, thread as device_thread};
use crate::registry::Registry;
use crate::step::event::{Input, Job, Report};

/// Builds like devices give way to the network thread: heartbeats go out meanwhile.
const NICE: i32 = 5;

/// The device, or the want of one.
pub struct Workshop {
    /// What `kind` means.
    pub registry: Arc<Registry>,
    /// What the worker knows of itself.
    pub place: Place,
    /// Where buffers come from.
    pub pool: Pool,
    /// The number of the last build.
    build: u64,
    device: Option<Sender<Job>>,
    /// How the device's GPU does, if it has one.
    figures: Option<Figures>,
}

impl Workshop {
    /// Without a device.
    pub fn new(registry: Arc<Registry>, place: Place, pool: Pool) -> Self {
        Self { registry, place, pool, build: 0, device: None, figures: None }
    }

    /// Drops the device, which ends when it has done the jobs that it was given, and builds another
    /// one; `own` is told when it is done.
    pub fn build(&mut self, run: RunSpec, own: Addr<WorkerActor>) {
        (self.device, self.figures) = (None, None);
        self.build += 1;
        self.place.incarnation = random();
        let (registry, place) = (self.registry.clone(), self.place.clone());
        let (pool, number) = (self.pool.clone(), self.build);
        let builder = thread::Builder::new().name("build".into());
        let spawned = builder.spawn(move || {
            let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
            let built = catch_unwind(AssertUnwindSafe(|| build(&registry, &run, &place, pool)))
                .unwrap_or_else(|_| Err("building the model panicked".into()));
            own.do_send(DeviceBuilt { build: number, built });
        });
        spawned.expect("the system gives a process a thread");
    }

    /// A build is done: starts its device. Returns what the core is to be told; nothing of a build
    /// that another one has replaced.
    pub fn start(&mut self, done: DeviceBuilt, own: Addr<WorkerActor>) -> Option<Input> {
        match done.built {
            _ if done.build != self.build => None,
            Ok((device, built)) => {
                self.run(device, own);
                self.figures = built.registration.device.gpu.map(telemetry::start);
                Some(Input::Built(built))
            }
            Err(reason) => {
                tracing::error!(
                    reason,
                    "the run cannot be built here: this worker waits for the next"
                );
                Some(Input::BuildFailed(reason))
            }
        }
    }

    fn run(&mut self, device: Device, own: Addr<WorkerActor>) {
        let (jobs, mut reports) = device_thread::start(device);
        self.device = Some(jobs);
        let build = self.build;
        actix::spawn(async move {
            while let Some(report) = reports.recv().await {
                if own.send(Reported { build, report }).await.is_err() {
                    return;
                }
            }
        });
    }

    /// How the device's GPU did a moment ago, if it has one that tells.
    pub fn telemetry(&self) -> Option<Telemetry> {
        self.figures.as_ref()?.at(Instant::now())
    }

    /// What a report means to the core: nothing, if an earlier device made it.
    pub fn report(&self, Reported { build, report }: Reported) -> Option<Input> {
        if build != self.build {
            return None;
        }
        match &report {
            Report::Unwritten(reason) => {
                tracing::warn!(reason, "the model cannot be written: it is tried again");
            }
            Report::Unable(reason) => {
                tracing::error!(
                    reason,
                    "the run cannot be computed: this worker waits for the next"
                );
            }
            _ => {}
        }
        Some(Input::Device(report))
    }

    /// Hands the device a job.
    ///
    /// # Panics
    /// If no device was built.
    pub fn give(&self, job: Job) {
        let device = self.device.as_ref().expect("a device is built before its first job");
        // An error means that the device has failed, which its last report says.
        let _ = device.send(job);
    }
}

/// A number that no other incarnation draws.
fn random() -> u64 {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the system has random numbers");
    u64::from_le_bytes(bytes)
}

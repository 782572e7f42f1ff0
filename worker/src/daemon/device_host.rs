//! Builds and runs devices, one at a time.
//!
//! Each build has a number, which tells reports of an earlier device from those of the present one.
//! Each build is also an incarnation of its own: it registers as a new worker. Two devices never
//! share the memory of the machine: a build begins when all earlier devices have ended. The thread
//! of an earlier model's file may still hold weights, if its directory does not answer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use actix::Addr;
use everstep_kernels::buffer::Pool;
use everstep_transport::protocol::outcome::Inability;
use everstep_transport::protocol::run::InitSpec;
use everstep_transport::protocol::{RunSpec, Telemetry};
use tokio::sync::mpsc;

use super::actor::WorkerActor;
use super::event::{DeviceBuilt, DeviceReported, FileReported, StoreReported};
use super::file_thread;
use super::predecessors::LockedFile;
use super::store_thread;
use super::telemetry::{self, DeviceTelemetry};
use crate::device::build::{BuildContext, DataContent, build};
use crate::device::checkpoint_facts::CheckpointFacts;
use crate::device::model_file::ModelFile;
use crate::device::model_path::remove_passing;
use crate::device::{Device, thread as device_thread};
use crate::registry::{BuildError, Registry};
use crate::step::event::{FileJob, FileReport, Input, Job, Report, StoreJob};
use crate::store_work::ClusterIdentity;

/// Builds, like devices, give way to the network thread, so that heartbeats go out meanwhile.
const NICE: i32 = 5;

/// How long a build waits for earlier devices to end before it fails, at least. It waits as long as
/// a data shard may take in its run, if that is longer.
const DEVICE_END_TIMEOUT: Duration = Duration::from_secs(5);
/// The most reports of the store's thread that wait for the actor: each may have a whole shard.
const STORE_REPORTS: usize = 2;
/// The interval at which it looks.
const DEVICE_END_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Holds the present device, if there is one.
pub struct DeviceHost {
    /// The meaning of `kind` in a run specification.
    pub registry: Arc<Registry>,
    /// The worker's address, machine and settings.
    pub context: BuildContext,
    /// The pool of the buffers for tensors.
    pub pool: Pool,
    /// The cluster, as the run's store knows it.
    cluster: ClusterIdentity,
    /// The number of the newest build, from 1. 0 before the first.
    build: u64,
    device: Option<Sender<Job>>,
    /// The thread that reads and writes the run's checkpoints, if it has any.
    store: Option<Sender<StoreJob>>,
    /// The thread that writes the model's file.
    file: Option<Sender<FileJob>>,
    /// The devices that were built or begun. Each is alive as long as its thread.
    begun: Vec<Weak<()>>,
    /// The state of the device, if it is no CPU.
    telemetry: Option<DeviceTelemetry>,
    /// The file that names the worker's incarnations, if it keeps one.
    kept_in: Option<Arc<Mutex<LockedFile>>>,
    /// The content of the newest device's data, if a build of the same data can use it.
    content: Option<DataContent>,
    /// The initial weights of the run that is built, if it states some.
    init: Option<InitSpec>,
}

impl Drop for DeviceHost {
    fn drop(&mut self) {
        (self.device, self.store, self.file) = (None, None, None);
        remove_passing(self.context.incarnation);
    }
}

impl DeviceHost {
    /// A host without a device.
    pub fn new(
        registry: Arc<Registry>,
        context: BuildContext,
        pool: Pool,
        cluster: ClusterIdentity,
    ) -> Self {
        Self {
            registry,
            context,
            pool,
            cluster,
            build: 0,
            device: None,
            store: None,
            file: None,
            begun: Vec::new(),
            telemetry: None,
            kept_in: None,
            content: None,
            init: None,
        }
    }

    /// The same, with each incarnation in a file.
    pub fn kept_in(mut self, file: Option<LockedFile>) -> Self {
        self.kept_in = file.map(|file| Arc::new(Mutex::new(file)));
        self
    }

    /// Drops the device, which ends after its queued jobs, and then builds another one. `own` hears
    /// when the build is done, or that the earlier device does not end.
    pub fn build(&mut self, run: RunSpec, own: Addr<WorkerActor>) {
        (self.device, self.store, self.file) = (None, None, None);
        self.telemetry = None;
        self.content.take_if(|content| content.data != run.data);
        self.build += 1;
        remove_passing(self.context.incarnation);
        self.context.incarnation = random();
        self.init.clone_from(&run.model.init);
        let (registry, context) = (self.registry.clone(), self.context.clone());
        let (pool, number, kept_in) = (self.pool.clone(), self.build, self.kept_in.clone());
        let (earlier, alive) = (self.begin(), Arc::new(()));
        self.begun.push(Arc::downgrade(&alive));
        let builder = thread::Builder::new().name("build".into());
        let spawned = builder.spawn(move || {
            let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
            let build = || {
                let within = DEVICE_END_TIMEOUT.max(Duration::from_millis(run.hang_after_ms));
                await_ends(&earlier, within)?;
                keep_incarnation(&context, kept_in)?;
                build(&registry, &run, &context, pool)
            };
            let built = catch_unwind(AssertUnwindSafe(build)).unwrap_or_else(|panic| {
                let words = device_thread::words(&*panic);
                let reason = format!("building the model or the data set panicked: {words}");
                Err(BuildError::Run(reason))
            });
            own.do_send(DeviceBuilt { build: number, alive, built });
        });
        spawned.expect("the system gives a process a thread");
    }

    /// The earlier devices that have not ended yet.
    fn begin(&mut self) -> Vec<Weak<()>> {
        self.begun.retain(|alive| alive.strong_count() > 0);
        self.begun.clone()
    }

    /// A build is done: starts its device. Returns an input for the core. None if another build has
    /// replaced this one.
    pub fn start(&mut self, done: DeviceBuilt, own: Addr<WorkerActor>) -> Option<Input> {
        match done.built {
            _ if done.build != self.build => None,
            Ok((mut device, built)) => {
                self.context.lacked = None;
                let facts = device.checkpoint_facts(&built.registration.fingerprint);
                self.content = DataContent::of(&device);
                self.store = facts.map(|facts| self.run_store(facts, own.clone()));
                self.file = Some(self.run_file(device.take_model_file(), own.clone()));
                self.take_over(device, done.alive, own);
                let accelerator = built.registration.device.accelerator.clone();
                self.telemetry = accelerator.map(|it| telemetry::start(it, self.registry.clone()));
                Some(Input::Built(built))
            }
            Err(error) => {
                let (inability, reason) = (error.inability(), error.to_string());
                match inability {
                    Inability::Run => tracing::error!(
                        reason,
                        "the run cannot be built here: this worker waits for the next"
                    ),
                    Inability::Place => {
                        tracing::warn!(reason, "the run cannot be built yet: it is tried again");
                    }
                }
                Some(Input::BuildFailed { inability, reason })
            }
        }
    }

    /// Gives the device its thread, and carries its reports to the actor.
    fn take_over(&mut self, device: Device, alive: Arc<()>, own: Addr<WorkerActor>) {
        let (jobs, mut reports) = device_thread::start(device, alive);
        self.device = Some(jobs);
        let build = self.build;
        actix::spawn(async move {
            while let Some(report) = reports.recv().await {
                if own.send(DeviceReported { build, report }).await.is_err() {
                    return;
                }
            }
        });
    }

    /// Starts the thread that reads and writes the run's checkpoints.
    fn run_store(&self, facts: CheckpointFacts, own: Addr<WorkerActor>) -> Sender<StoreJob> {
        let (reports, mut reported) = mpsc::channel(STORE_REPORTS);
        let build = self.build;
        actix::spawn(async move {
            while let Some(report) = reported.recv().await {
                if own.send(StoreReported { build, report }).await.is_err() {
                    return;
                }
            }
        });
        let take = Box::new(move |report| reports.blocking_send(report).is_ok());
        store_thread::start(facts, &self.cluster, take)
    }

    /// Starts the thread that writes the model's file.
    fn run_file(&self, file: Option<ModelFile>, own: Addr<WorkerActor>) -> Sender<FileJob> {
        let build = self.build;
        let take =
            move |generation, report| own.do_send(FileReported { build, generation, report });
        file_thread::start(file, take)
    }

    /// The recent state of the device. None for a CPU, or if its driver has no figures.
    pub fn telemetry(&self) -> Option<Telemetry> {
        self.telemetry.as_ref()?.at(Instant::now())
    }

    /// The input for the core that a report means. None if an earlier device made it.
    pub fn report(&mut self, DeviceReported { build, report }: DeviceReported) -> Option<Input> {
        if build != self.build {
            return None;
        }
        match &report {
            Report::Unable { inability: Inability::Place, reason } => {
                self.context.lacked.clone_from(&self.init);
                tracing::warn!(reason, "the run cannot be computed yet: it is tried again");
            }
            Report::Unable { inability: Inability::Run, reason } => {
                tracing::error!(
                    reason,
                    "the run cannot be computed: this worker waits for the next"
                );
            }
            _ => {}
        }
        Some(Input::Device(report))
    }

    /// The input for the core that a report of the store's thread means. None if the thread is an
    /// earlier build's.
    pub fn store_report(&self, reported: StoreReported) -> Option<Input> {
        (reported.build == self.build).then_some(Input::Store(reported.report))
    }

    /// The input for the core that a report on the model's file means. None if the thread is an
    /// earlier build's.
    pub fn file_report(&self, reported: FileReported) -> Option<Input> {
        let FileReported { build, generation, report } = reported;
        if build != self.build {
            return None;
        }
        if let FileReport::Unwritten(reason) = &report {
            tracing::warn!(reason, "the model cannot be written: it is tried again");
        }
        Some(Input::File(generation, report))
    }

    /// Hands the thread of the model's file a job.
    ///
    /// # Panics
    /// If no device was built.
    pub fn give_file(&self, job: FileJob) {
        let file = self.file.as_ref().expect("a device is built before its model is written");
        let _ = file.send(job); // an error means that the process is ending
    }

    /// Hands the store's thread a job. A run without checkpoints has no thread, and no such jobs.
    pub fn give_store(&self, job: StoreJob) {
        if let Some(store) = &self.store {
            let _ = store.send(job); // an error means that the process is ending
        }
    }

    /// Hands the device a job.
    ///
    /// # Panics
    /// If no device was built.
    pub fn give(&self, job: Job) {
        let device = self.device.as_ref().expect("a device is built before its first job");
        // An error means that the device has failed. Its last report says so.
        let _ = device.send(job);
    }
}

/// Writes the incarnation into the file that names those of this worker, before it registers.
fn keep_incarnation(
    context: &BuildContext,
    kept_in: Option<Arc<Mutex<LockedFile>>>,
) -> Result<(), BuildError> {
    let (Some(file), Some(directory)) = (kept_in, &context.dir) else { return Ok(()) };
    let incarnation = context.incarnation;
    directory.attempt(move |_| {
        file.lock().unwrap_or_else(PoisonError::into_inner).begin(incarnation);
    })
}

/// Waits until these devices have ended, because the build needs their memory.
fn await_ends(devices: &[Weak<()>], within: Duration) -> Result<(), BuildError> {
    let began = Instant::now();
    while devices.iter().any(|alive| alive.strong_count() > 0) {
        if began.elapsed() > within {
            let reason = "the device of an earlier generation or run still computes, or hangs: its \
                          memory is not free. If it stays so, restart this worker";
            return Err(BuildError::Place(reason.into()));
        }
        thread::sleep(DEVICE_END_POLL_INTERVAL);
    }
    Ok(())
}

/// A random number, to tell incarnations apart.
fn random() -> u64 {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the system has random numbers");
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_waits_for_the_end_of_an_earlier_device() {
        let alive = Arc::new(());
        let earlier = [Arc::downgrade(&alive)];
        let ends = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            drop(alive);
        });
        assert_eq!(await_ends(&earlier, Duration::from_secs(60)), Ok(()));
        ends.join().expect("it ends");
    }

    #[test]
    fn a_device_that_hangs_is_an_error_of_the_place() {
        let alive = Arc::new(());
        let waited = await_ends(&[Arc::downgrade(&alive)], Duration::from_millis(50));
        let error = waited.expect_err("it does not end");
        assert_eq!(error.inability(), Inability::Place);
    }
}

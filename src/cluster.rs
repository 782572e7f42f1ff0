//! A local cluster of real processes: one coordinator and some workers on loopback, started,
//! watched and ended by this process.
//!
//! [`train`] does all of it for one run; a program that wants to act in between uses [`Cluster`].
//! The processes are this same program with other verbs, so a program's own models and data sets
//! are known to all of them. They end when this process does, however it ends.
//!
//! Nothing here takes part in training: this process learns what it tells from the coordinator.

mod directory;
mod error;
mod naming;
mod operator;
mod process;
mod report;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use everstep_transport::protocol::outcome::{
    Event, EventKind, Outcome, Update, WorkerResult, WorkerView,
};
use everstep_transport::protocol::{MetricsLine, RunSpec, Step};

pub use directory::Directory;
pub use error::ClusterError;
pub use report::{GenerationReport, Losses, Report, WorkerReport};

use operator::Operator;
use process::Process;

/// How a cluster is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many workers to start.
    pub workers: u32,
    /// How long the run waits for workers that have not registered.
    pub wait: Duration,
    /// Overlap communication with compute. Off only to measure what that saves.
    pub overlap: bool,
}

impl Options {
    /// `workers` workers, and ten minutes for others to join.
    pub fn new(workers: u32) -> Self {
        Self { workers, wait: Duration::from_secs(600), overlap: true }
    }
}

/// What is known of a run under way.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// The lines of all settled steps, in order.
    pub lines: Vec<MetricsLine>,
    /// All events, in order.
    pub events: Vec<Event>,
    /// The workers, by id.
    pub workers: Vec<WorkerView>,
    /// The bits of this run are those of any other run of the same specification.
    pub bitwise: bool,
    /// What each worker reported, once the run is complete.
    pub results: Option<Vec<WorkerResult>>,
    /// The command with which another worker joins.
    pub join: String,
}

impl Progress {
    /// How many workers have registered for a run that has not begun; none once it has.
    pub fn registered(&self) -> Option<usize> {
        let begins = |event: &Event| matches!(event.kind, EventKind::Generation { .. });
        (!self.events.iter().any(begins)).then_some(self.workers.len())
    }
}

/// A running cluster. Dropped, it kills its processes.
pub struct Cluster {
    directory: Directory,
    coordinator: Process,
    workers: Vec<Process>,
    operator: Operator,
    progress: Progress,
    began: Instant,
    wait: Duration,
    submitted: Option<Submitted>,
}

/// A run that the coordinator was given.
struct Submitted {
    at: Instant,
    start_workers: u32,
}

/// How often the coordinator is asked what is new.
const POLL: Duration = Duration::from_millis(50);
/// How long dismissed workers may take to end.
const DISMISSAL: Duration = Duration::from_secs(5);
/// How long a coordinator may take to say why a worker has ended.
const LAST_WORD: Duration = Duration::from_millis(300);

/// Trains `run` on a local cluster whose files are in `directory`, and tells `watch` whenever
/// something is new. Blocks until the run is complete.
///
/// # Errors
/// [`ClusterError`], in words for the user.
pub fn train(
    run: &RunSpec,
    directory: Directory,
    options: &Options,
    mut watch: impl FnMut(&Progress),
) -> Result<Report, ClusterError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(ClusterError::Runtime)?.block_on(async {
        let complete = async {
            let mut cluster = Cluster::start(directory, options).await?;
            cluster.submit(run).await?;
            while !cluster.advance().await? {
                watch(cluster.progress());
            }
            watch(cluster.progress());
            let report = cluster.report(run);
            cluster.finish().await;
            Ok(report)
        };
        tokio::select! {
            report = complete => report,
            signal = interrupted() => Err(signal),
        }
    })
}

impl Cluster {
    /// Starts a coordinator and its workers; returns when all of them listen.
    pub async fn start(directory: Directory, options: &Options) -> Result<Self, ClusterError> {
        let began = Instant::now();
        let home = directory.path().join("coordinator-1");
        let coordinator = Process::coordinator(&directory, &home).await?;
        let address = coordinator.address();
        let operator = Operator::connect(&home, address).await?;
        directory.copy_token(&home)?;
        let mut starting = Vec::new();
        for number in 1..=options.workers {
            starting.push(Process::worker(&directory, number, address, options.overlap)?);
        }
        let mut workers = Vec::new();
        for worker in starting {
            workers.push(worker.listening().await?);
        }
        let progress = Progress { join: join_command(&directory, address)?, ..Progress::default() };
        let (wait, submitted) = (options.wait, None);
        let cluster =
            Self { directory, coordinator, workers, operator, progress, began, wait, submitted };
        cluster.write_view()?;
        Ok(cluster)
    }

    /// Where the cluster's files are.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The process ids of the workers, in the order in which they were started.
    pub fn worker_pids(&self) -> Vec<u32> {
        self.workers.iter().map(|worker| worker.naming().pid).collect()
    }

    /// The process id of the coordinator.
    pub fn coordinator_pid(&self) -> u32 {
        self.coordinator.naming().pid
    }

    /// Submits the run; it begins when its workers have registered.
    pub async fn submit(&mut self, run: &RunSpec) -> Result<(), ClusterError> {
        self.directory.write_run(run)?;
        self.submitted = Some(Submitted { at: Instant::now(), start_workers: run.start_workers });
        self.operator.submit(run.clone()).await
    }

    /// What is known so far.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Waits for news and writes them down; `true` once the run is complete.
    pub async fn advance(&mut self) -> Result<bool, ClusterError> {
        tokio::time::sleep(POLL).await;
        // Asked, it would be waited for.
        if let Some(died) = self.coordinator.failure() {
            return Err(died);
        }
        let update = self.poll().await;
        if let Ok(Outcome::Complete(results)) = update {
            self.progress.results = Some(results);
            return Ok(true);
        }
        // A process that died says more than what others make of its silence.
        if let Some(died) = self.failed_process() {
            return Err(self.explain(died).await);
        }
        match update {
            Ok(Outcome::Failed { name, reason }) => {
                let reason = self.reword(reason);
                let named = |process: &&Process| Some(&process.naming().name) == name.as_ref();
                let worker = self.workers.iter().find(named);
                let told = ClusterError::failed(worker.map(Process::place), &reason);
                tokio::time::sleep(POLL).await;
                Err(self.failed_process().map_or(told, |died| died.because(&reason)))
            }
            Ok(_) => self.check_wait().map(|()| false),
            Err(error @ ClusterError::Coordinator(_)) => {
                Err(ClusterError::failed(Some(self.coordinator.place()), &error.to_string()))
            }
            Err(error) => Err(error),
        }
    }

    /// The report of a complete run.
    pub fn report(&self, run: &RunSpec) -> Report {
        Report::new(run, &self.progress, self.began.elapsed())
    }

    /// Ends the cluster of a complete run: the workers have been dismissed.
    pub async fn finish(mut self) {
        let deadline = Instant::now() + DISMISSAL;
        while self.workers.iter_mut().any(|worker| worker.is_alive()) && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.operator.close().await;
        self.coordinator.end().await;
    }

    /// Gives up a run whose workers do not come.
    fn check_wait(&self) -> Result<(), ClusterError> {
        let (Some(registered), Some(submitted)) = (self.progress.registered(), &self.submitted)
        else {
            return Ok(());
        };
        if submitted.at.elapsed() < self.wait {
            return Ok(());
        }
        let (wanted, join) = (submitted.start_workers, self.progress.join.clone());
        Err(ClusterError::Capacity { registered, wanted, waited: self.wait, join })
    }

    async fn poll(&mut self) -> Result<Outcome, ClusterError> {
        loop {
            let step = self.progress.lines.last().map_or(Step(0), |line| line.step);
            let event = self.progress.events.last().map_or(0, |event| event.number);
            let update = self.operator.watch(step, event).await?;
            let (lines, events) = (update.lines.len(), update.events.len());
            let outcome = self.take(update)?;
            // A long page is followed by more; the outcome counts once nothing is missing.
            if lines == 0 && events == 0 {
                return Ok(outcome);
            }
        }
    }

    fn take(&mut self, update: Update) -> Result<Outcome, ClusterError> {
        self.directory.append("metrics.jsonl", &update.lines)?;
        self.directory.append("events.jsonl", &update.events)?;
        for event in &update.events {
            if let EventKind::Registered { worker, name } = &event.kind
                && let Some(process) = self.workers.iter_mut().find(|p| p.naming().name == *name)
            {
                process.registered(*worker);
            }
        }
        self.progress.lines.extend(update.lines);
        self.progress.events.extend(update.events);
        self.progress.bitwise = update.bitwise;
        if self.progress.workers != update.workers {
            self.progress.workers = update.workers;
            self.write_view()?;
        }
        Ok(update.outcome)
    }

    fn write_view(&self) -> Result<(), ClusterError> {
        self.directory.write_view(&self.coordinator, &self.workers, &self.progress.workers)
    }

    fn failed_process(&mut self) -> Option<ClusterError> {
        let coordinator = std::iter::once(&mut self.coordinator);
        coordinator.chain(&mut self.workers).find_map(|process| process.failure())
    }

    /// The coordinator's words, with the user's names of the workers.
    fn reword(&self, reason: String) -> String {
        self.workers.iter().fold(reason, |words, worker| worker.naming().reword(&words))
    }

    /// Adds what the coordinator knows of a process that ended.
    async fn explain(&mut self, error: ClusterError) -> ClusterError {
        let told = tokio::time::timeout(LAST_WORD, async {
            loop {
                match self.poll().await {
                    Ok(Outcome::Failed { reason, .. }) => return Some(self.reword(reason)),
                    Ok(_) => tokio::time::sleep(POLL).await,
                    Err(_) => return None,
                }
            }
        });
        match told.await {
            Ok(Some(reason)) => error.because(&reason),
            _ => error,
        }
    }
}

/// Waits for SIGINT or SIGTERM.
async fn interrupted() -> ClusterError {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => ClusterError::Interrupted,
        _ = terminate.recv() => ClusterError::Terminated,
    }
}

/// What a user types to bring another worker into the cluster.
fn join_command(directory: &Directory, address: SocketAddr) -> Result<String, ClusterError> {
    let program = executable()?;
    let program = program.file_name().unwrap_or(program.as_os_str()).display();
    let token = directory.path().join("join.token");
    Ok(format!("{program} worker --coordinators {address} --join @{}", token.display()))
}

/// Where this program's executable is: the processes of a cluster run it too.
fn executable() -> Result<PathBuf, ClusterError> {
    std::env::current_exe().map_err(ClusterError::Runtime)
}

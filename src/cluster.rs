//! A local cluster of real processes: coordinators and workers on loopback. This process starts,
//! watches and ends them.
//!
//! [`train`] does all of it for one run, and [`resume`] goes on with a run of which all processes
//! have ended. A program that wants to act in between uses [`Cluster`]. The processes are this same
//! program with other verbs, so all of them know a program's own models and data sets. They end
//! when this process does. `workers.rs` and `coordinators.rs` say what happens when they end.
//!
//! Nothing here trains: this process learns all that it reports from the coordinators.

mod conclusion;
mod continuation;
mod coordinators;
mod directory;
mod earlier;
mod error;
mod event_sums;
mod files;
mod join;
mod launch;
mod leaving;
mod line_sums;
mod marks;
mod naming;
mod options;
mod process;
mod progress;
mod recent;
mod reopen;
mod report;
mod signals;
mod view;
mod workers;

use std::path::Path;
use std::time::{Duration, Instant};

pub use everstep_coordinator::history::{GenerationReport, Lapse, Protection};
use everstep_transport::protocol::outcome::{EventKind, Outcome, Update, Waiting, WorkerState};
use everstep_transport::protocol::{NodeName, RunSpec, WorkerId};

pub(crate) use conclusion::{add_bigram, ended, own_report};
pub use continuation::{ContinuedHistory, resume_stored};
pub(crate) use coordinators::has_coordinators;
pub use directory::Directory;
pub(crate) use earlier::Earlier;
pub use error::ClusterError;
pub(crate) use error::resume_command;
pub use launch::launch;
pub(crate) use naming::Naming;
pub(crate) use options::threads_of_worker;
pub use options::{ClusterOptions, InstructionSet, Program, Script};
pub use progress::Progress;
pub use recent::Recent;
pub use reopen::resume;
pub use report::{LapseReport, LossReport, Report, RollbackReport, WorkerReport};

use conclusion::Ending;
use coordinators::Coordinators;
use files::Files;
pub(crate) use process::exit_of;
use process::{Daemons, Process};
use progress::Lines;
use signals::interrupted;
use workers::Workers;

/// A running cluster. Dropped, it kills its processes.
pub struct Cluster {
    directory: Directory,
    files: Files,
    coordinators: Coordinators,
    workers: Workers,
    progress: Progress,
    began: Instant,
    wait: Duration,
    submitted: Option<RunSpec>,
    /// Since when the run has waited for workers. None if it does not wait.
    waits_since: Option<Instant>,
    /// When the launcher last repeated to the leader which processes have ended.
    reminded_at: Option<Instant>,
    /// Whether the end of the run is on record.
    is_concluded: bool,
}

/// The file of metrics lines, and that of events.
const LINES: &str = "metrics.jsonl";
const EVENTS: &str = "events.jsonl";
/// How often the launcher asks the coordinators for news.
const CLUSTER_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How often the launcher repeats to the leader which processes have ended.
const EXIT_REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// How long the coordinators may take to give the reason of a worker's end.
const END_REASON_TIMEOUT: Duration = Duration::from_millis(300);

/// Trains `run` on a local cluster with its files in `directory`. Calls `watch` whenever there are
/// news. Blocks until the run is complete. A signal to end lets a run with checkpoints save what it
/// has.
///
/// # Errors
/// [`ClusterError`], in words for the user.
pub fn train(
    run: &RunSpec,
    directory: Directory,
    options: &ClusterOptions,
    watch: impl FnMut(&Progress),
) -> Result<Report, ClusterError> {
    let begin = async {
        let mut cluster = Cluster::start(directory, options).await?;
        let begun = cluster.submit(run).await;
        cluster.begun(begun)
    };
    leaving::drive(run, begin, watch)
}

/// Drives a cluster's `work` to its end, or until SIGINT or SIGTERM.
pub(crate) fn block_on<T, E: From<ClusterError>>(
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(ClusterError::Runtime)?.block_on(async {
        tokio::select! {
            done = work => done,
            signal = interrupted() => Err(signal.into()),
        }
    })
}

impl Cluster {
    /// Starts coordinators and workers. Returns when all of them listen.
    pub async fn start(
        directory: Directory,
        options: &ClusterOptions,
    ) -> Result<Self, ClusterError> {
        let began = Instant::now();
        let daemons = Daemons::of(options)?;
        let count = options.coordinators;
        let coordinators =
            Coordinators::found(&directory, daemons.clone(), count, options.wait).await?;
        let workers = Workers::new(coordinators.addresses(), daemons, options);
        let mut cluster = Self::of(directory, coordinators, workers, (options.wait, began))?;
        cluster.progress.keeps_history = options.keeps_history;
        cluster.start_workers(options.workers).await?;
        Ok(cluster)
    }

    /// The cluster of these coordinators, before its workers start.
    fn of(
        directory: Directory,
        coordinators: Coordinators,
        workers: Workers,
        (wait, began): (Duration, Instant),
    ) -> Result<Self, ClusterError> {
        directory.copy_token(coordinators.home())?;
        let join = join::command(workers.daemons(), &directory, &coordinators.addresses());
        let api = coordinators.api();
        Ok(Self {
            directory,
            files: Files::default(),
            coordinators,
            workers,
            progress: Progress { join, api, ..Progress::default() },
            began,
            wait,
            submitted: None,
            waits_since: None,
            reminded_at: None,
            is_concluded: false,
        })
    }

    /// Starts so many workers. Returns when all of them listen.
    async fn start_workers(&mut self, count: u32) -> Result<(), ClusterError> {
        self.workers.start(&self.directory, count).await?;
        self.write_files();
        Ok(())
    }

    /// The directory with the cluster's files.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The process ids of the living workers, in the order of their starts.
    pub fn worker_pids(&self) -> Vec<u32> {
        self.workers.living().iter().map(|worker| worker.naming().pid).collect()
    }

    /// The process id of a worker, if it lives and this cluster started it.
    pub fn worker_pid(&self, worker: WorkerId) -> Option<u32> {
        let view = self.progress.workers.iter().find(|view| view.worker == worker)?;
        let process = self.workers.living().iter().find(|p| p.naming().name == view.name)?;
        Some(process.naming().pid)
    }

    /// The living workers' processes that this cluster started, in the order of their starts.
    pub(crate) fn processes(&self) -> impl Iterator<Item = &Naming> {
        self.workers.living().iter().map(Process::naming)
    }

    /// The process id of the leader, if it is known and lives.
    pub fn leader_pid(&self) -> Option<u32> {
        self.coordinators.leader_pid()
    }

    /// The process id of a follower.
    pub(crate) fn follower_pid(&self) -> Option<u32> {
        self.coordinators.follower_pid()
    }

    /// Whether all coordinators that this cluster started are there, and one is known to lead.
    pub(crate) fn is_led(&self) -> bool {
        self.coordinators.are_whole()
    }

    /// Returns when the coordinators have agreed on a request that changes nothing.
    pub(crate) async fn agree(&mut self) -> Result<(), ClusterError> {
        self.coordinators.agree(&self.directory).await
    }

    /// Submits the run. It begins when its workers have registered.
    ///
    /// # Errors
    /// [`ClusterError::Refused`] with the coordinators' words if they refuse.
    pub async fn submit(&mut self, run: &RunSpec) -> Result<(), ClusterError> {
        let run = self.attach(run)?;
        self.coordinators.submit(&self.directory, &run).await
    }

    /// Writes down the run that this cluster trains. Returns it with the place of its checkpoints.
    fn attach(&mut self, run: &RunSpec) -> Result<RunSpec, ClusterError> {
        let run = self.directory.placed(run)?;
        self.files.write(&self.directory, directory::RUN, run.to_file());
        self.submitted = Some(run.clone());
        self.waits_since = Some(Instant::now());
        Ok(run)
    }

    /// Starts one more worker, with these variables in its environment. It joins the run when it is
    /// ready.
    pub fn add_worker(&mut self, environment: &[(&str, &str)]) -> Result<(), ClusterError> {
        self.workers.add(&self.directory, environment)
    }

    /// Asks a worker to leave in good order. Returns once that is under way.
    ///
    /// # Errors
    /// [`ClusterError::Refused`] with the coordinators' words if they refuse.
    pub async fn drain(&mut self, worker: WorkerId) -> Result<(), ClusterError> {
        self.coordinators.drain(&self.directory, worker).await
    }

    /// The progress that the launcher knows.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Waits for news and writes them down. Returns `true` once the run is complete.
    ///
    /// Once the run has begun it survives its processes. A worker that ends is reported, and gets a
    /// successor if [`ClusterOptions::respawn`] asks for one. A coordinator that ends starts again.
    ///
    /// # Errors
    /// When the run cannot go on, or has waited for workers too long.
    pub async fn advance(&mut self) -> Result<bool, ClusterError> {
        let advanced = self.go_on().await;
        match &advanced {
            Ok(false) => {}
            Ok(true) => self.conclude(&Ending::Complete),
            Err(error) => self.conclude(&Ending::Failed(error.to_string())),
        }
        advanced
    }

    async fn go_on(&mut self) -> Result<bool, ClusterError> {
        tokio::time::sleep(CLUSTER_POLL_INTERVAL).await;
        let mut failures = self.supervise();
        match self.poll().await? {
            Outcome::Complete(results) => {
                self.progress.results = Some(results);
                return Ok(true);
            }
            Outcome::Failed { name, reason } => {
                // The process at fault may be about to end, and its own words say more.
                tokio::time::sleep(CLUSTER_POLL_INTERVAL).await;
                failures.extend(self.supervise());
                return Err(self.blame(failures, name.as_ref(), reason.to_string()));
            }
            Outcome::Running => {}
        }
        match failures.into_iter().next() {
            Some(died) if self.progress.registered().is_some() => Err(self.explain(died).await),
            _ => self.check_wait().map(|()| false),
        }
    }

    /// The report of a complete run.
    pub fn report(&self, run: &RunSpec) -> Report {
        Report::new(run, &self.progress, self.began.elapsed())
    }

    /// Puts the end of the run on record, once: in `report.json`, `cluster.json` and
    /// `events.jsonl`. The run has ended even if the disk takes none of these.
    fn conclude(&mut self, ending: &Ending) {
        let Some(run) = self.submitted.clone().filter(|_| !self.is_concluded) else { return };
        self.is_concluded = true;
        let report = self.report(&run);
        let text = conclusion::text(&self.directory, &run, &self.progress, &report, ending);
        let Self { coordinators, workers, progress, directory, files, .. } = self;
        let view = view::of_ended(coordinators, workers, progress, ending.state());
        files.insist();
        files.append(directory, LINES, &progress.lines);
        files.append(directory, EVENTS, &progress.events);
        files.complete(directory);
        if let Some(event) = ending.event(progress) {
            files.close(directory, EVENTS, &event);
        }
        files.write(directory, "cluster.json", view);
        files.write(directory, conclusion::REPORT, text);
        files.settle(directory);
        if !files.is_settled() {
            tracing::warn!("the end of the run is not on record");
        }
    }

    /// Supervises the workers' processes. Returns the unexpected ends.
    fn supervise(&mut self) -> Vec<ClusterError> {
        let known = self.workers.gone().len();
        let failures = self.workers.supervise(&self.directory);
        for gone in &self.workers.gone()[known..] {
            self.coordinators.exited(gone.naming.name.clone(), gone.how);
        }
        self.progress.respawned = self.workers.respawned();
        failures
    }

    /// Takes the news of coordinators and processes, and returns the run's outcome so far.
    async fn poll(&mut self) -> Result<Outcome, ClusterError> {
        loop {
            let event = self.progress.events.newest();
            let step = self.progress.step();
            let update = self.coordinators.watch(&self.directory, step, event).await?;
            let (lines, events) = (update.lines.len(), update.events.len());
            let outcome = update.outcome.clone();
            self.take(update);
            // More pages follow a long one. The outcome counts once no line or event is missing.
            if lines == 0 && events == 0 {
                self.remind();
                self.write_files();
                if !self.refetch() {
                    self.files.complete(&self.directory);
                    return Ok(outcome);
                }
            }
        }
    }

    /// Has lines and events come again that a file has lost, and that are gone from memory. Returns
    /// whether there are any.
    fn refetch(&mut self) -> bool {
        let Self { progress, directory, files, .. } = self;
        let (lines, events) = (files.lacks(LINES), files.lacks(EVENTS));
        if let Some(after) = lines {
            files.refetch(directory, LINES, progress.rewind_lines(after));
        }
        if let Some(after) = events {
            progress.events.rewind(after);
            files.refetch(directory, EVENTS, after);
        }
        lines.is_some() || events.is_some()
    }

    /// Takes an update, and writes it down.
    fn take(&mut self, update: Update) {
        for event in &update.events {
            if let EventKind::Registered { worker, name, number } = &event.kind {
                self.workers.registered(name, *worker);
                let ours = self.workers.namings().find(|naming| naming.name == *name);
                let called = ours.map_or(format!("worker {number}"), |ours| ours.label.clone());
                self.progress.names.insert(*worker, called);
            }
        }
        let wanted = self.submitted.as_ref().map_or(1, |run| run.min_workers);
        if self.progress.take(update, wanted) == Lines::TakenBack {
            self.files.cut(&self.directory, LINES, &self.progress.lines);
        }
        self.write_files();
        self.progress.trim();
    }

    /// Repeats to the leader which processes have ended, until it has recorded that. A new leader
    /// may not know, or the link may have been lost. Without the report, a coordinator would wait
    /// for their return.
    fn remind(&mut self) {
        self.progress.coordinator_restarts = self.coordinators.restarts();
        let is_due = self.reminded_at.is_none_or(|at| at.elapsed() >= EXIT_REPORT_INTERVAL);
        if !self.coordinators.has_changed() && !is_due {
            return;
        }
        self.reminded_at = Some(Instant::now());
        for gone in self.workers.gone() {
            let over = |state| matches!(state, WorkerState::Lost | WorkerState::Left);
            let mut views = self.progress.workers.iter();
            if views.any(|view| view.name == gone.naming.name && !over(view.state)) {
                self.coordinators.exited(gone.naming.name.clone(), gone.how);
            }
        }
    }

    /// Writes the news, as far as the disk takes them.
    fn write_files(&mut self) {
        let Self { coordinators, workers, progress, directory, files, .. } = self;
        files.append(directory, EVENTS, &progress.events);
        files.append(directory, LINES, &progress.lines);
        files.write(directory, "cluster.json", view::text(coordinators, workers, progress));
        files.settle(directory);
    }

    /// Gives up a run if its workers do not come, or do not come back.
    fn check_wait(&mut self) -> Result<(), ClusterError> {
        // More workers live here than take part. The others may be silent and answer later, except
        // those that have said that they cannot compute.
        let unable = |name: &NodeName| self.progress.unable.iter().any(|(its, _)| its == name);
        let living = self.workers.living().iter().filter(|it| !unable(&it.naming().name)).count();
        let takes_part = |waiting: &Waiting| waiting.members as usize >= living;
        let waiting = self.progress.waiting.filter(takes_part);
        let registered = self.progress.registered();
        if self.submitted.is_none() || registered.is_none() && waiting.is_none() {
            self.waits_since = None;
            return Ok(());
        }
        if self.waits_since.get_or_insert_with(Instant::now).elapsed() < self.wait {
            return Ok(());
        }
        let (join, waited) = (self.progress.join.clone(), self.wait);
        let wanted = self.submitted.as_ref().map_or(1, |run| run.start_workers);
        Err(match (registered, waiting) {
            (None, Some(waiting)) => {
                let (members, wanted) = (waiting.members, waiting.wanted);
                ClusterError::Deserted { members, wanted, waited, join }
            }
            (registered, _) => {
                let registered = registered.unwrap_or_default();
                ClusterError::Capacity { registered, wanted, waited, join }
            }
        })
    }

    /// The error of a failed run: that of the process that ended, if one did, else that of the
    /// worker that the coordinator names.
    fn blame(
        &self,
        failures: Vec<ClusterError>,
        name: Option<&NodeName>,
        reason: String,
    ) -> ClusterError {
        let reason = self.reword(reason);
        let died = failures.into_iter().next();
        if let Some(died) = died.filter(|_| self.workers.daemons().script.is_none()) {
            return died.because(&reason);
        }
        let naming = self.workers.namings().find(|naming| Some(&naming.name) == name);
        let log = |label: &str| self.directory.log(label);
        let place = naming.map(|naming| (naming.to_string(), log(&naming.label)));
        // The exception of a script says more than its last line.
        let exception = place.as_ref().and_then(|(_, log)| process::traceback(log));
        ClusterError::failed(place, &exception.unwrap_or(reason))
    }

    /// The coordinator's words, with the user's names of the workers.
    fn reword(&self, reason: String) -> String {
        self.workers.namings().fold(reason, |words, naming| naming.reword(&words))
    }

    /// Adds what the coordinator knows of a process that ended.
    async fn explain(&mut self, error: ClusterError) -> ClusterError {
        let told = tokio::time::timeout(END_REASON_TIMEOUT, async {
            loop {
                match self.poll().await {
                    Ok(Outcome::Failed { reason, .. }) => {
                        return Some(self.reword(reason.to_string()));
                    }
                    Ok(_) => tokio::time::sleep(CLUSTER_POLL_INTERVAL).await,
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

/// An end that is not on record yet: an interruption, or an error of the calling program.
impl Drop for Cluster {
    fn drop(&mut self) {
        self.conclude(&Ending::Interrupted);
    }
}

//! The process of one coordinator. It starts again in its directory whenever it ends.
//!
//! In: the passing of time. Out: a process, or the reason why there is none. Workers and the other
//! coordinators find it at the same address. This module does not know whether it leads.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use everstep_coordinator::daemon::{self, MembershipFileError};
use everstep_transport::protocol::CoordinatorView;

use crate::cluster::Directory;
use crate::cluster::error::ClusterError;
use crate::cluster::files::{is_of_a_place, is_of_missing_file};
use crate::cluster::process::{CoordinatorOrigin, CoordinatorStart, Daemons, Process, Starting};
use crate::coordinator::directory_wait;

/// A coordinator of this launcher.
pub(in crate::cluster) struct CoordinatorProcess {
    number: u32,
    home: PathBuf,
    address: SocketAddr,
    api: Option<String>,
    stage: ProcessStage,
    /// The times of its recent ends and failed starts. See [`CRASH_WINDOW`].
    breaks: Vec<Instant>,
    /// As many breaks as this are an error.
    most_breaks: usize,
    restarts: u32,
    /// Since when its directory cannot be used, and how long the next pause is.
    homeless: Option<(Instant, Duration)>,
}

enum ProcessStage {
    Runs(Process),
    Starts(Starting),
    /// It starts at this time.
    Rests(Instant),
    /// It was removed from the cluster.
    Removed,
}

/// Breaks that are too many for a coordinator that is alone. Where others lead meanwhile, too many
/// are this many times the number of coordinators.
const MAX_CRASHES: usize = 5;
/// Once a process has listened, breaks longer ago than this no longer count. Failed starts in a row
/// count together, however long each of them takes.
const CRASH_WINDOW: Duration = Duration::from_secs(10);
/// The most coordinators that a launcher starts.
const MAX_COORDINATORS: u32 = 5;
/// The pause after a failed start.
const COORDINATOR_RESTART_BACKOFF: Duration = Duration::from_millis(100);
/// The longest pause while its directory cannot be used.
const DIRECTORY_RETRY_BACKOFF_MAX: Duration = Duration::from_secs(2);

impl CoordinatorProcess {
    /// Begins to start a coordinator, number `number` of this launcher.
    pub(super) fn start(
        directory: &Directory,
        daemons: &Daemons,
        number: u32,
        origin: CoordinatorOrigin<'_>,
    ) -> Result<(PathBuf, Starting), ClusterError> {
        let home = home(directory, number);
        let start = CoordinatorStart { number, home: &home, origin, daemons };
        let starting = Process::coordinator(directory, &start)?;
        Ok((home, starting))
    }

    /// A process that listens, one of `count` coordinators.
    pub(super) fn of(number: u32, count: u32, home: PathBuf, process: Process) -> Self {
        let (address, api) = (process.address(), process.api().map(str::to_string));
        let (stage, breaks, restarts) = (ProcessStage::Runs(process), Vec::new(), 0);
        let most_breaks = MAX_CRASHES * count as usize;
        Self { number, home, address, api, stage, breaks, most_breaks, restarts, homeless: None }
    }

    /// Begins to start all coordinators of a directory that another launcher has left.
    ///
    /// # Errors
    /// [`ClusterError::NoRun`] if the directory has too few coordinators.
    pub(super) fn reopen(
        directory: &Directory,
        daemons: &Daemons,
    ) -> Result<Vec<Self>, ClusterError> {
        let left = left_behind(directory)?;
        let most_breaks = MAX_CRASHES * left.len();
        let start = |(number, home, view): (u32, PathBuf, CoordinatorView)| {
            let (address, api) = (view.address, view.api.map(|api| format!("http://{api}")));
            let origin = CoordinatorOrigin::Again { address, api: api.as_deref() };
            let start = CoordinatorStart { number, home: &home, origin, daemons };
            let stage = ProcessStage::Starts(Process::coordinator(directory, &start)?);
            let (breaks, restarts, homeless) = (Vec::new(), 0, None);
            Ok(Self { number, home, address, api, stage, breaks, most_breaks, restarts, homeless })
        };
        left.into_iter().map(start).collect()
    }

    /// Looks after the process. `is_member` says whether the cluster still has this coordinator.
    ///
    /// # Errors
    /// When it dies again and again, or when its directory cannot be used for longer than `wait`.
    pub(super) fn supervise(
        &mut self,
        directory: &Directory,
        daemons: &Daemons,
        wait: Duration,
        is_member: bool,
    ) -> Result<(), ClusterError> {
        match self.look_after(directory, daemons, is_member) {
            Err(error) if self.is_homeless(&error) => self.wait_for_place(error, wait),
            done => done,
        }
    }

    fn look_after(
        &mut self,
        directory: &Directory,
        daemons: &Daemons,
        is_member: bool,
    ) -> Result<(), ClusterError> {
        let resting = ProcessStage::Rests(Instant::now() + COORDINATOR_RESTART_BACKOFF);
        match std::mem::replace(&mut self.stage, resting) {
            ProcessStage::Runs(mut process) => match process.end() {
                None => {
                    if self.homeless.take_if(|_| process.age() > CRASH_WINDOW).is_some() {
                        tracing::warn!(
                            number = self.number,
                            "a coordinator's directory can be used again"
                        );
                    }
                    self.stage = ProcessStage::Runs(process);
                }
                Some(end) if end.expected && !is_member => self.stage = ProcessStage::Removed,
                Some(end) => {
                    self.breaks.retain(|at| at.elapsed() < CRASH_WINDOW);
                    self.count_break(process.failure(end))?;
                    self.restart(directory, daemons)?;
                }
            },
            ProcessStage::Starts(starting) => match starting.poll() {
                Err(starting) => self.stage = ProcessStage::Starts(starting),
                Ok(Ok(process)) => {
                    self.api = process.api().map(str::to_string);
                    self.stage = ProcessStage::Runs(process);
                }
                Ok(Err(error)) => {
                    // Whatever the cause of its end: another process may have taken the port
                    // meanwhile.
                    self.api = None;
                    self.count_break(error)?;
                }
            },
            ProcessStage::Rests(until) if until <= Instant::now() => {
                self.restart(directory, daemons)?
            }
            stage => self.stage = stage,
        }
        Ok(())
    }

    /// The process has not answered `asked_in_vain` questions in a row. A coordinator that waits
    /// for its disk goes on by itself. Any other one is killed the second time, and starts again.
    pub(super) fn doubt(&mut self, asked_in_vain: u32) {
        let ProcessStage::Runs(process) = &mut self.stage else { return };
        let number = self.number;
        if let Err(error) = directory_wait::probe(&self.home) {
            let directory = self.home.display();
            tracing::warn!(number, %directory, %error, "a coordinator waits for its disk");
        } else if asked_in_vain > 1 {
            tracing::warn!(number, "a coordinator does not answer, and is killed");
            process.kill();
        }
    }

    /// Asks the process to end.
    pub(super) fn dismiss(self) -> Option<Process> {
        match self.stage {
            ProcessStage::Runs(process) => {
                process.terminate();
                Some(process)
            }
            _ => None,
        }
    }

    /// The directory with its files.
    pub(super) fn home(&self) -> &Path {
        &self.home
    }

    /// The address on which it listens. It never changes.
    pub(in crate::cluster) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of its HTTP API, if it has one.
    pub(in crate::cluster) fn api(&self) -> Option<&str> {
        self.api.as_deref()
    }

    /// Its process id, if it listens.
    pub(in crate::cluster) fn pid(&self) -> Option<u32> {
        match &self.stage {
            ProcessStage::Runs(process) => Some(process.naming().pid),
            _ => None,
        }
    }

    /// Whether the cluster counts on it: it was not removed.
    pub(in crate::cluster) fn is_there(&self) -> bool {
        !matches!(self.stage, ProcessStage::Removed)
    }

    /// Whether it listens, or never will, since it was removed.
    pub(super) fn is_settled(&self) -> bool {
        matches!(self.stage, ProcessStage::Runs(_) | ProcessStage::Removed)
    }

    /// How often it was started again.
    pub(super) fn restarts(&self) -> u32 {
        self.restarts
    }

    fn restart(&mut self, directory: &Directory, daemons: &Daemons) -> Result<(), ClusterError> {
        self.restarts += 1;
        let origin = CoordinatorOrigin::Again { address: self.address, api: self.api.as_deref() };
        let start = CoordinatorStart { number: self.number, home: &self.home, origin, daemons };
        self.stage = ProcessStage::Starts(Process::coordinator(directory, &start)?);
        Ok(())
    }

    /// Whether it ended for an error of its directory. If only a file is missing there, that file
    /// does not come back by itself.
    fn is_homeless(&self, why: &ClusterError) -> bool {
        is_of_a_place(why) && !(is_of_missing_file(why) && self.home.is_dir())
    }

    /// Counts a break. Too many are an error. An error of its directory is no break.
    fn count_break(&mut self, why: ClusterError) -> Result<(), ClusterError> {
        if self.is_homeless(&why) {
            return Err(why);
        }
        self.breaks.push(Instant::now());
        if self.breaks.len() < self.most_breaks { Ok(()) } else { Err(why) }
    }

    /// Its disk is full or read-only, or its directory is gone. It starts again after a pause, each
    /// time twice as long, until it goes on or the wait is over. The workers train on meanwhile. It
    /// never begins anew, since that directory has all that it has agreed to.
    fn wait_for_place(&mut self, why: ClusterError, wait: Duration) -> Result<(), ClusterError> {
        let (since, pause) = self.homeless.unwrap_or_else(|| {
            let number = self.number;
            tracing::warn!(number, %why, "a coordinator's directory cannot be used: it waits");
            (Instant::now(), COORDINATOR_RESTART_BACKOFF)
        });
        if since.elapsed() >= wait {
            return Err(why);
        }
        self.homeless = Some((since, (2 * pause).min(DIRECTORY_RETRY_BACKOFF_MAX)));
        self.stage = ProcessStage::Rests(Instant::now() + pause);
        Ok(())
    }
}

/// Whether a run's directory has the directory of a coordinator.
pub(crate) fn has_coordinators(dir: &Path) -> bool {
    (1..=MAX_COORDINATORS).any(|number| dir.join(format!("coordinator-{number}")).is_dir())
}

/// The coordinators in a directory, by number: most of those that their cluster counts on.
fn left_behind(
    directory: &Directory,
) -> Result<Vec<(u32, PathBuf, CoordinatorView)>, ClusterError> {
    let no_run = |why: String| ClusterError::NoRun { path: directory.path().to_path_buf(), why };
    let mut found = Vec::new();
    let mut others = BTreeSet::new();
    for number in 1..=MAX_COORDINATORS {
        let home = home(directory, number);
        if !home.is_dir() {
            continue;
        }
        let unreadable = |error: MembershipFileError| no_run(error.to_string());
        others.extend(daemon::addresses(&home).map_err(unreadable)?);
        let view = daemon::own_view(&home).map_err(unreadable)?;
        found.extend(view.map(|view| (number, home, view)));
    }
    if found.is_empty() {
        return Err(no_run("it has no coordinator's directory, such as coordinator-1".into()));
    }
    let there = found.iter().filter(|(_, _, view)| others.contains(&view.address)).count();
    if 2 * there <= others.len() {
        return Err(no_run(format!(
            "it has the directories of {there} of {} coordinators, and most of them must agree. \
             `everstep coordinator recover` makes a cluster of one that is left",
            others.len()
        )));
    }
    Ok(found)
}

fn home(directory: &Directory, number: u32) -> PathBuf {
    directory.path().join(format!("coordinator-{number}"))
}

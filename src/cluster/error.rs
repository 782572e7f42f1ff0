//! Why a cluster did not train its run.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::join::quoted;
use crate::failure::{Exit, Failure};
use crate::operator::OperatorError;

/// Why a cluster did not train its run.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// A file of the run could not be written.
    #[error("{path}: {source}", path = path.display())]
    File {
        /// The file that the launcher could not use.
        path: PathBuf,
        /// What the system says of it.
        source: io::Error,
    },
    /// The directory cannot be made or written to.
    #[error("{path}: {source}", path = path.display())]
    Unusable {
        /// The directory, or what should be in it.
        path: PathBuf,
        /// What the system says of it.
        source: io::Error,
    },
    /// The directory holds a run already.
    #[error("{0} holds a run already")]
    Occupied(PathBuf),
    /// Another launcher has the directory.
    #[error("another launcher is at work in {0}")]
    Busy(PathBuf),
    /// The directory holds no run that can go on.
    #[error("{path}: {why}", path = path.display())]
    NoRun {
        /// The directory of the run.
        path: PathBuf,
        /// What the directory lacks, in words.
        why: String,
    },
    /// The system gave no process or runtime.
    #[error("the system refuses: {0}")]
    Runtime(#[source] io::Error),
    /// A process ended, or did not begin.
    #[error("{process} {how}: {}", why.as_deref().unwrap_or("its log is empty"))]
    Process {
        /// The process, as the user knows it.
        process: String,
        /// How the process ended, in words.
        how: String,
        /// The coordinator's words, or the end of the process's log.
        why: Option<String>,
        /// The file with the log of the process.
        log: PathBuf,
    },
    /// The process of a script failed after its run was complete.
    #[error("the run is complete, but {0}")]
    Afterwards(Box<ClusterError>),
    /// The coordinator ended the run, or does not report its state.
    #[error("{reason}")]
    Failed {
        /// The process at fault and its log. None if no process is at fault.
        process: Option<(String, PathBuf)>,
        /// The reason that the coordinator gave.
        reason: String,
    },
    /// The coordinators do not do what the launcher asked them for.
    #[error("{0}")]
    Refused(String),
    /// Too few workers came in time.
    #[error("{registered} of {wanted} workers had registered after {} s", waited.as_secs())]
    Capacity {
        /// How many have registered.
        registered: usize,
        /// How many the run starts with.
        wanted: u32,
        /// How long the run has waited.
        waited: Duration,
        /// The command with which the others would have joined.
        join: String,
    },
    /// Too few workers took part for too long.
    #[error("{members} of at least {wanted} workers took part for {} s", waited.as_secs())]
    Deserted {
        /// How many workers took part at the end.
        members: u32,
        /// How many the run needs.
        wanted: u32,
        /// How long the run has waited.
        waited: Duration,
        /// The command with which another worker would have joined.
        join: String,
    },
    /// The coordinators cannot be reached, or do not answer.
    #[error("the coordinators cannot be asked: {0}")]
    Coordinator(String),
    /// The store of the run's checkpoints cannot be claimed or read.
    #[error("{0}")]
    Store(Box<Failure>),
    /// The user pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// The process was asked to end.
    #[error("terminated")]
    Terminated,
}

impl ClusterError {
    pub(super) fn failed(process: Option<(String, PathBuf)>, reason: &str) -> Self {
        Self::Failed { process, reason: reason.into() }
    }

    /// Adds the coordinator's reason.
    pub(super) fn because(self, reason: &str) -> Self {
        match self {
            Self::Process { process, how, why: _, log } => {
                Self::Process { process, how, why: Some(reason.into()), log }
            }
            other => other,
        }
    }
}

/// The command that goes on with the run of this directory.
pub(crate) fn resume_command(dir: &Path) -> String {
    format!("`everstep resume {}`", quoted(&dir.display().to_string()))
}

impl From<OperatorError> for ClusterError {
    fn from(error: OperatorError) -> Self {
        match error {
            OperatorError::Refused(reason) => Self::Refused(reason),
            OperatorError::Unanswered(reason) | OperatorError::Unusable(reason) => {
                Self::Coordinator(reason)
            }
        }
    }
}

impl From<ClusterError> for Failure {
    fn from(error: ClusterError) -> Self {
        let (title, error) = match error {
            ClusterError::Afterwards(error) => (
                "the run is complete and its results are kept, but a process of its script failed \
                 afterwards",
                *error,
            ),
            error => ("the run failed", error),
        };
        let failed = Failure::new(Exit::Failed, title);
        let refused = Failure::new(Exit::Usage, "the run's directory cannot be used");
        let words = error.to_string();
        match error {
            ClusterError::File { path, source } => {
                failed.at(path.display()).because(source).next("make room or choose another --dir")
            }
            ClusterError::Unusable { path, source } => {
                refused.at(path.display()).because(source).next("choose another --dir")
            }
            ClusterError::Occupied(path) => refused
                .at(path.display())
                .because("it holds a run already, and runs are never mixed")
                .next(format!(
                    "{} goes on with that run. For another one choose another --dir, or leave it \
                     out for a new directory under runs/",
                    resume_command(&path)
                )),
            ClusterError::Busy(path) => refused
                .at(path.display())
                .because("another launcher is at work there, or its processes are just ending")
                .next("wait for its end, or follow its run with `everstep run watch --dir DIR`"),
            ClusterError::NoRun { path, why } => {
                Failure::new(Exit::Usage, "there is no run that could go on")
                    .at(path.display())
                    .because(why)
                    .next("name the directory of a run that `everstep train` has begun")
            }
            ClusterError::Process { process, how, why, log } => {
                let why = why.map_or(how.clone(), |why| format!("{how}\n{why}"));
                let next = format!("read its log, {}", log.display());
                failed.at(process).because(why).next(next)
            }
            ClusterError::Failed { process: Some((process, log)), reason } => {
                let next = format!("read its log, {}", log.display());
                failed.at(process).because(reason).next(next)
            }
            ClusterError::Capacity { join, .. } => {
                Failure::new(Exit::Capacity, "the run did not start in time").because(words).next(
                    format!(
                        "start it again, with a longer --wait if need be. While it waits, others \
                         join it as they could have joined this one:\n{join}"
                    ),
                )
            }
            ClusterError::Deserted { join, .. } => {
                let what = "the run waited for workers in vain";
                Failure::new(Exit::Capacity, what).because(words).next(format!(
                    "start it again, with --respawn or a longer --wait. While it waits, others \
                     join it as they could have joined this one:\n{join}"
                ))
            }
            ClusterError::Refused(reason) => {
                Failure::new(Exit::Failed, "the coordinators refuse it").because(reason)
            }
            ClusterError::Store(failure) => *failure,
            ClusterError::Interrupted => Failure::new(Exit::Interrupted, "interrupted"),
            ClusterError::Terminated => Failure::new(Exit::Terminated, "terminated"),
            _ => failed.because(words),
        }
    }
}

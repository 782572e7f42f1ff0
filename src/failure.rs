//! How a verb ends that has not done all of its work: one block on stderr, and the exit code that
//! scripts rely on.

use std::error::Error;
use std::process::ExitCode;
use std::{fmt, io};

use rustix::io::Errno;

use crate::config::ConfigError;
use crate::output;

/// The exit codes of every verb, beside 0 for complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The verb could not do its work.
    Failed = 1,
    /// The command line or the configuration cannot be used.
    Usage = 2,
    /// Too few workers or coordinators came in time.
    Capacity = 3,
    /// The user interrupted it.
    Interrupted = 130,
    /// SIGTERM ended it. A worker has left in good order.
    Terminated = 143,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// The user's view of a failed verb: the failure, its place, its cause, and the next step. Or of a
/// verb that was told to end, which is no error.
///
/// Parts that are left out are not printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit code of the process.
    pub exit: Exit,
    what: String,
    place: Option<String>,
    why: Option<String>,
    next: Option<String>,
}

/// How the lines of a block begin that follow its first one.
const PARTS: [&str; 3] = ["  where: ", "    why: ", "   next: "];

impl Failure {
    /// A failure: the thing that the user wanted and that did not happen.
    pub fn new(exit: Exit, what: impl Into<String>) -> Self {
        Self { exit, what: what.into(), place: None, why: None, next: None }
    }

    /// Adds the place: a file, a line, a flag, a worker, a host.
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.place = Some(place.to_string());
        self
    }

    /// Adds the first cause.
    pub fn because(mut self, why: impl fmt::Display) -> Self {
        self.why = Some(why.to_string());
        self
    }

    /// Whether the user, or the system, has ended the verb.
    pub(crate) fn is_interruption(&self) -> bool {
        matches!(self.exit, Exit::Interrupted | Exit::Terminated)
    }

    /// Adds the next step for the user.
    pub fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_interruption() { "" } else { "error: " };
        write!(f, "{kind}{}", self.what)?;
        for (name, part) in PARTS.into_iter().zip([&self.place, &self.why, &self.next]) {
            if let Some(part) = part {
                let lines: Vec<_> = part.lines().map(output::plain).collect();
                write!(f, "\n{name}{}", lines.join("\n         "))?;
            }
        }
        Ok(())
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::new(Exit::Usage, "the configuration cannot be used")
            .at(error.place)
            .because(error.problem)
            .next(error.advice)
    }
}

/// Where the last block of a verb that was told to end begins in a text. An error begins with
/// `error: `.
pub(crate) fn last_block(text: &str) -> Option<usize> {
    let mut lines = text.split_inclusive('\n').rev();
    let mut start = text.len();
    let mut next = "";
    let first = lines.find(|line| {
        start -= line.len();
        let is_first = !line.starts_with(' ');
        next = if is_first { next } else { line };
        is_first
    });
    first.filter(|_| PARTS.iter().any(|part| next.starts_with(part))).map(|_| start)
}

/// The advice for a disk that takes nothing, if that is the root cause of the error.
pub(crate) fn disk_advice(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let Some(cause) = error.downcast_ref::<io::Error>() else {
        return disk_advice(error.source()?);
    };
    match cause.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            Some("make room on its disk and start it again: nothing that it has said is lost")
        }
        io::ErrorKind::ReadOnlyFilesystem => Some(
            "mount its file system so that it can be written (after a disk failed: on a disk that \
             works) and start it again: nothing that it has said is lost",
        ),
        io::ErrorKind::PermissionDenied => Some(
            "have this user own the directory, or name one with --dir that this user may write",
        ),
        _ => None,
    }
}

/// The advice for a process that may open no more files, if that is the root cause of the error.
pub(crate) fn shortage_advice(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let Some(cause) = error.downcast_ref::<io::Error>() else {
        return shortage_advice(error.source()?);
    };
    matches!(Errno::from_io_error(cause), Some(Errno::MFILE | Errno::NFILE)).then_some(
        "raise the limit of open files (`ulimit -n`, or LimitNOFILE= of its unit) and start it \
         again: its files are as they were",
    )
}

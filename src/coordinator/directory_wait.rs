//! A coordinator with a full or read-only disk, or a missing directory, waits and goes on from its
//! files.
//!
//! The log takes nothing after an error of its disk. So the coordinator ends, and begins again from
//! its durable state, in the same process and at the same addresses. Other coordinators lead
//! meanwhile, if there are others, and the workers train on. A directory counts as back only if it
//! has the very file of the log that the coordinator wrote. From an older copy, or from nothing, it
//! would break its word. The process does not wait out an input/output error: the system may show
//! what that disk never took.

use std::error::Error;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use everstep_coordinator::daemon::{self, CoordinatorError};

/// The longest wait for the directory.
pub(super) const DIRECTORY_WAIT_TIMEOUT: Duration = Duration::from_secs(60);
/// How often the process checks the directory.
const DIRECTORY_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Free bytes that are enough to go on.
const ENOUGH: usize = 1 << 20;

/// The inode of the log's file. `None` if there is no file.
pub(super) fn log_inode(dir: &Path) -> Option<u64> {
    std::fs::metadata(daemon::log_file(dir)).ok().map(|file| file.ino())
}

/// Returns when the coordinator's directory, with this log, takes files again. Returns `false` if
/// another error ended the coordinator, or if the trouble lasts beyond the `deadline`.
pub(super) fn await_directory(
    (dir, log): (&Path, Option<u64>),
    error: &CoordinatorError,
    deadline: Instant,
) -> bool {
    if !is_of_a_place(error) {
        return false;
    }
    let within = DIRECTORY_WAIT_TIMEOUT;
    tracing::warn!(%error, ?within, "directory cannot be used: the coordinator waits for it");
    while Instant::now() < deadline {
        thread::sleep(DIRECTORY_CHECK_INTERVAL);
        if probe(dir).is_ok() && log_inode(dir) == log {
            tracing::warn!("directory can be used again: the coordinator restarts");
            return true;
        }
    }
    false
}

/// The advice for a directory that vanished under a running coordinator.
pub(super) const GONE: &str = "put the directory back as it was, and start it again with the same \
                               --dir and --listen: what it has agreed to is there and nowhere \
                               else; if it is lost for good and most of the coordinators live, \
                               remove this one and let another join, else found a new cluster";

/// Whether the directory, or a file that should be in it, is gone.
pub(super) fn is_gone(error: &(dyn Error + 'static)) -> bool {
    cause(error) == Some(io::ErrorKind::NotFound)
}

/// Tests whether a coordinator's directory takes as much as the coordinator needs to go on. The
/// coordinator and its launcher may test at the same time.
///
/// # Errors
/// The reason why the directory takes nothing.
pub(crate) fn probe(dir: &Path) -> io::Result<()> {
    let probe = dir.join("room.tmp");
    let written = std::fs::write(&probe, vec![0; ENOUGH]);
    let _ = std::fs::remove_file(&probe); // what is left of it is written over next time
    written
}

fn is_of_a_place(error: &(dyn Error + 'static)) -> bool {
    use io::ErrorKind::{NotFound, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    let kinds = [StorageFull, QuotaExceeded, ReadOnlyFilesystem, NotFound];
    cause(error).is_some_and(|kind| kinds.contains(&kind))
}

/// The kind of the error of a file at the bottom of an error.
fn cause(error: &(dyn Error + 'static)) -> Option<io::ErrorKind> {
    match error.downcast_ref::<io::Error>() {
        Some(cause) => Some(cause.kind()),
        None => cause(error.source()?),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn error(kind: io::ErrorKind) -> CoordinatorError {
        CoordinatorError::File { path: "coordinators".into(), source: kind.into() }
    }

    #[test]
    fn a_directory_that_takes_nothing_is_waited_for_and_not_for_ever() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = daemon::log_file(dir.path());
        fs::write(&log, "entries").expect("written");
        let place = (dir.path(), log_inode(dir.path()));
        let soon = Instant::now() + Duration::from_secs(20);
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::ReadOnlyFilesystem] {
            assert!(await_directory(place, &error(kind), soon), "{kind}");
        }
        assert!(!await_directory(place, &error(io::ErrorKind::PermissionDenied), soon));
        let broken = io::Error::from_raw_os_error(5);
        let broken = CoordinatorError::File { path: log, source: broken };
        assert!(!await_directory(place, &broken, soon), "an input/output error");
        assert!(!await_directory(place, &error(io::ErrorKind::QuotaExceeded), Instant::now()));
        assert_eq!(dir.path().read_dir().expect("read").count(), 1, "nothing is left");
    }

    #[test]
    fn a_directory_that_was_gone_counts_only_with_the_log_that_the_coordinator_wrote() {
        let folder = tempfile::tempdir().expect("a folder");
        let [dir, away] = ["coordinator", "away"].map(|name| folder.path().join(name));
        fs::create_dir(&dir).expect("made");
        fs::write(daemon::log_file(&dir), "entries").expect("written");
        let log = log_inode(&dir);
        fs::rename(&dir, &away).expect("moved away");
        let gone = error(io::ErrorKind::NotFound);
        let at_once = || Instant::now() + Duration::from_millis(100);
        assert!(!await_directory((&dir, log), &gone, at_once()), "it is gone");
        fs::create_dir(&dir).expect("made");
        assert!(!await_directory((&dir, log), &gone, at_once()), "it is empty");
        fs::copy(daemon::log_file(&away), daemon::log_file(&dir)).expect("copied");
        assert!(
            !await_directory((&dir, log), &gone, at_once()),
            "it has a copy, perhaps an old one"
        );
        fs::remove_dir_all(&dir).expect("removed");
        fs::rename(&away, &dir).expect("moved back");
        assert!(await_directory((&dir, log), &gone, at_once()));
    }
}

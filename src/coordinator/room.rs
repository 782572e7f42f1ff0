//! A coordinator whose disk is full waits for room, and goes on from its files.
//!
//! The log takes nothing after an error of its disk, so the coordinator ends and is begun again
//! from what is durable, in the same process and at the same addresses. Others lead meanwhile, if
//! there are others; the workers train on.

use std::error::Error;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use everstep_coordinator::daemon::CoordinatorError;

/// How long room is waited for, at most.
pub(super) const LONGEST: Duration = Duration::from_secs(60);
/// How often it is looked for.
const LOOK: Duration = Duration::from_millis(500);
/// So much room is enough to go on.
const ENOUGH: usize = 1 << 20;

/// Returns when the disk of the coordinator's directory has room; `false` if it was no full disk
/// that ended it, or if there is none by the `deadline`.
pub(super) fn await_room(dir: &Path, error: &CoordinatorError, deadline: Instant) -> bool {
    if !is_full(error) {
        return false;
    }
    tracing::warn!(%error, within = ?LONGEST, "its disk is full: it goes on when there is room");
    while Instant::now() < deadline {
        if has_room(dir) {
            tracing::warn!("its disk has room again: it goes on");
            return true;
        }
        thread::sleep(LOOK);
    }
    false
}

fn has_room(dir: &Path) -> bool {
    let probe = dir.join("room.tmp");
    let written = std::fs::write(&probe, vec![0; ENOUGH]);
    let _ = std::fs::remove_file(&probe); // what is left of it is written over next time
    written.is_ok()
}

fn is_full(error: &(dyn Error + 'static)) -> bool {
    match error.downcast_ref::<io::Error>() {
        Some(cause) => {
            matches!(cause.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        }
        None => error.source().is_some_and(is_full),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(kind: io::ErrorKind) -> CoordinatorError {
        CoordinatorError::File { path: "log.redb".into(), source: kind.into() }
    }

    #[test]
    fn only_a_full_disk_is_waited_for_and_not_for_ever() {
        let dir = tempfile::tempdir().expect("a directory");
        let soon = Instant::now() + Duration::from_secs(20);
        assert!(await_room(dir.path(), &error(io::ErrorKind::StorageFull), soon));
        assert!(!await_room(dir.path(), &error(io::ErrorKind::ReadOnlyFilesystem), soon));
        let over = Instant::now();
        assert!(!await_room(dir.path(), &error(io::ErrorKind::QuotaExceeded), over));
        assert_eq!(dir.path().read_dir().expect("read").count(), 0, "nothing is left");
    }
}

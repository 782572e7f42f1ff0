//! A coordinator with a full or read-only disk, or a missing directory, waits and goes on from its
//! files. A coordinator whose port was taken by another process meanwhile waits on.
//!
//! The log takes nothing after an error of its disk. So the coordinator ends, and begins again from
//! its durable state, in the same process and at the same addresses. Other coordinators lead
//! meanwhile, if there are others, and the workers train on. A directory counts as back only if it
//! has the very file of the log that the coordinator wrote. From an older copy, or from nothing, it
//! would break its word. The process does not wait out an input/output error: the system may show
//! what that disk never took.

use std::cell::Cell;
use std::error::Error;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use everstep_coordinator::daemon::{self, CoordinatorError, Ended};
use tokio::runtime;
use tokio::signal::unix::{self, SignalKind};

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

/// How the wait for a coordinator's directory ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DirectoryWait {
    /// The directory, with the coordinator's log, takes files again.
    Usable,
    /// Another error ended the coordinator, or the trouble lasts beyond the deadline.
    InVain,
    /// A signal tells the process to end.
    Signalled(Ended),
}

/// What a coordinator lacks that it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lacking {
    /// Its directory takes no files, or is not the one that it wrote.
    Directory,
    /// Another process listens at its port.
    Port,
}

impl Lacking {
    /// What a coordinator with this error lacks. None if no wait helps.
    fn of(error: &CoordinatorError) -> Option<Self> {
        is_of_a_place(error).then_some(match error {
            CoordinatorError::Bind(_) => Self::Port,
            _ => Self::Directory,
        })
    }
}

/// What the log says of a coordinator's waits. A wait lasts from the error that ended the
/// coordinator until it listens again. The tries in between are not logged.
#[derive(Debug, Default)]
pub(super) struct WaitLog(Cell<Option<Lacking>>);

impl WaitLog {
    fn begin(&self, lacking: Lacking, error: &CoordinatorError) {
        if self.0.get() == Some(lacking) {
            return;
        }
        self.end();
        self.0.set(Some(lacking));
        let within = DIRECTORY_WAIT_TIMEOUT;
        let missing = match lacking {
            Lacking::Directory => "directory cannot be used",
            Lacking::Port => "port is taken",
        };
        tracing::warn!(%error, ?within, "{missing}: the coordinator waits for it");
    }

    /// What the coordinator waits for now.
    pub(super) fn lacking(&self) -> Option<Lacking> {
        self.0.get()
    }

    /// The coordinator listens, or lacks something else.
    pub(super) fn end(&self) {
        match self.0.take() {
            Some(Lacking::Directory) => tracing::warn!("directory can be used again"),
            Some(Lacking::Port) => tracing::warn!("port is free again"),
            None => {}
        }
    }
}

/// Waits until the coordinator's directory, with the log of this inode, takes files again. For a
/// port it waits a moment: only a restart shows whether the port is free.
pub(super) fn await_directory(
    dir: &Path,
    inode: Option<u64>,
    error: &CoordinatorError,
    deadline: Instant,
    log: &WaitLog,
) -> DirectoryWait {
    let Some(lacking) = Lacking::of(error) else { return DirectoryWait::InVain };
    log.begin(lacking, error);
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let waited = runtime.and_then(|runtime| runtime.block_on(watch(dir, inode, deadline)));
    waited.unwrap_or_else(|error| {
        tracing::warn!(%error, "signals cannot be received: the coordinator does not wait");
        DirectoryWait::InVain
    })
}

/// Checks the directory now and then. SIGINT and SIGTERM end the wait.
async fn watch(dir: &Path, inode: Option<u64>, deadline: Instant) -> io::Result<DirectoryWait> {
    let mut interrupt = unix::signal(SignalKind::interrupt())?;
    let mut terminate = unix::signal(SignalKind::terminate())?;
    while Instant::now() < deadline {
        tokio::select! {
            _ = interrupt.recv() => return Ok(DirectoryWait::Signalled(Ended::Interrupted)),
            _ = terminate.recv() => return Ok(DirectoryWait::Signalled(Ended::Stopped)),
            () = tokio::time::sleep(DIRECTORY_CHECK_INTERVAL) => {}
        }
        if probe(dir).is_ok() && log_inode(dir) == inode {
            return Ok(DirectoryWait::Usable);
        }
    }
    Ok(DirectoryWait::InVain)
}

/// The advice for a directory that vanished under a running coordinator.
pub(super) const GONE: &str = "put the directory back as it was, and start it again with the same \
                               --dir and --listen: what it has agreed to is there and nowhere \
                               else. If it is lost for good and most of the coordinators live, \
                               remove this one and let another join, else `everstep coordinator \
                               recover` makes a cluster of another one's directory";

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
    use io::ErrorKind::{AddrInUse, NotFound, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    let kinds = [StorageFull, QuotaExceeded, ReadOnlyFilesystem, NotFound, AddrInUse];
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
    use std::sync::Arc;

    use everstep_transport::quic::BindError;

    use super::DirectoryWait::{InVain, Usable};
    use super::*;

    fn error(kind: io::ErrorKind) -> CoordinatorError {
        CoordinatorError::File { path: "coordinators".into(), source: kind.into() }
    }

    fn taken() -> CoordinatorError {
        let (address, source) = (([127, 0, 0, 1], 7070).into(), io::ErrorKind::AddrInUse.into());
        CoordinatorError::Bind(BindError::Socket { address, source })
    }

    #[test]
    fn a_directory_that_takes_nothing_is_waited_for_and_not_for_ever() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = daemon::log_file(dir.path());
        fs::write(&log, "entries").expect("written");
        let (dir_path, inode) = (dir.path(), log_inode(dir.path()));
        let log_lines = WaitLog::default();
        let await_directory =
            |error: &_, by| await_directory(dir_path, inode, error, by, &log_lines);
        let soon = Instant::now() + Duration::from_secs(20);
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::ReadOnlyFilesystem] {
            assert_eq!(await_directory(&error(kind), soon), Usable, "{kind}");
        }
        assert_eq!(await_directory(&error(io::ErrorKind::PermissionDenied), soon), InVain);
        let broken = io::Error::from_raw_os_error(5);
        let broken = CoordinatorError::File { path: log, source: broken };
        assert_eq!(await_directory(&broken, soon), InVain, "an input/output error");
        assert_eq!(await_directory(&taken(), soon), Usable, "its port may be free again");
        let late = await_directory(&error(io::ErrorKind::QuotaExceeded), Instant::now());
        assert_eq!(late, InVain);
        assert_eq!(dir.path().read_dir().expect("read").count(), 1, "nothing is left");
    }

    #[test]
    fn a_wait_is_logged_at_its_begin_and_at_its_end() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let writer = Arc::new(file.reopen().expect("opened"));
        let subscriber = tracing_subscriber::fmt().with_writer(writer).finish();
        tracing::subscriber::with_default(subscriber, || {
            let log = WaitLog::default();
            (0..3).for_each(|_| log.begin(Lacking::Directory, &error(io::ErrorKind::NotFound)));
            (0..3).for_each(|_| log.begin(Lacking::Port, &taken()));
            (0..2).for_each(|_| log.end());
        });
        let text = fs::read_to_string(file.path()).expect("read");
        let says = ["cannot be used", "can be used again", "is taken", "is free again"];
        assert!(says.iter().zip(text.lines()).all(|(words, line)| line.contains(words)), "{text}");
        assert_eq!(text.lines().count(), says.len(), "{text}");
    }

    #[test]
    fn a_directory_that_was_gone_counts_only_with_the_log_that_the_coordinator_wrote() {
        let folder = tempfile::tempdir().expect("a folder");
        let [dir, away] = ["coordinator", "away"].map(|name| folder.path().join(name));
        fs::create_dir(&dir).expect("made");
        fs::write(daemon::log_file(&dir), "entries").expect("written");
        let log = log_inode(&dir);
        fs::rename(&dir, &away).expect("moved away");
        let (gone, log_lines) = (error(io::ErrorKind::NotFound), WaitLog::default());
        let await_directory = |by| await_directory(&dir, log, &gone, by, &log_lines);
        let at_once = || Instant::now() + Duration::from_millis(100);
        assert_eq!(await_directory(at_once()), InVain, "it is gone");
        fs::create_dir(&dir).expect("made");
        assert_eq!(await_directory(at_once()), InVain, "it is empty");
        fs::copy(daemon::log_file(&away), daemon::log_file(&dir)).expect("copied");
        assert_eq!(await_directory(at_once()), InVain, "it has a copy, perhaps an old one");
        fs::remove_dir_all(&dir).expect("removed");
        fs::rename(&away, &dir).expect("moved back");
        assert_eq!(await_directory(at_once()), Usable);
    }
}

//! The durable log: a replica's file, and the thread that writes it.
//!
//! In: the directory's file, then [batches](Batch). Out: what the file holds; then the number of
//! each batch that has become durable, in order, until the disk fails. What is in a batch, and what
//! follows from its being durable, the [replica](crate::raft) knows, and this module does not.
//!
//! A thread of its own writes. An fsync takes milliseconds and, on a bad day, seconds; heartbeats
//! are answered meanwhile. Batches that come while it writes go together into the next transaction.

mod error;
pub mod replica;

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::{self, JoinHandle};
use std::{io, iter};

use everstep_transport::protocol::codec;
use redb::backends::FileBackend;

pub use self::error::StoreError;
use self::replica::{Owner, ReplicaStore};
use crate::raft::{Batch, Kept};
use crate::state::ArchivedEntry;

/// The layout of the file's own rows; entries have theirs from the vocabulary.
const FORMAT: u64 = 1;
/// Most batches in one transaction.
const MAX_BATCHES: usize = 1024;

/// Why there is no log, or none any more: in no case is an operation to be tried again.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A file could not be opened, made, or made durable.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Its rows could not be read or written.
    #[error("{}: {source}", path.display())]
    Store {
        /// The file.
        path: PathBuf,
        /// Why.
        source: StoreError,
    },
}

/// The history's file, which is made durable before every batch with a snapshot: what it follows
/// from goes with that.
#[derive(Debug)]
pub struct Beside {
    /// Where it is.
    pub path: PathBuf,
    /// The file.
    pub file: File,
}

/// A log that is open.
pub struct Log {
    path: PathBuf,
    store: ReplicaStore,
}

impl Log {
    /// Makes the log of a new replica, with this content. It appears whole, or not at all; one that
    /// was there is gone.
    ///
    /// # Errors
    /// [`LogError`].
    pub fn create(path: &Path, owner: Owner, kept: &Kept) -> Result<(), LogError> {
        let unfinished = path.with_extension("redb.tmp");
        let file = open(&unfinished, OpenOptions::new().create(true).truncate(true))?;
        ReplicaStore::create(file, owner, kept).map_err(at(&unfinished))?;
        let moved = std::fs::rename(&unfinished, path);
        moved.map_err(|source| LogError::File { path: path.to_path_buf(), source })
    }

    /// Opens a replica's log, and gives all that is there.
    ///
    /// # Errors
    /// [`LogError`], in words for the user.
    pub fn open(path: &Path, owner: Owner) -> Result<(Self, Kept), LogError> {
        let file = open(path, &mut OpenOptions::new())?;
        let (store, kept) = ReplicaStore::open(file, owner).map_err(at(path))?;
        Ok((Self { path: path.to_path_buf(), store }, kept))
    }

    /// Starts to write. `report` is called, on the writing thread, with batches that are durable,
    /// in order, or once with the error after which nothing more is written.
    ///
    /// # Panics
    /// If the system cannot start a thread.
    pub fn write(
        self,
        history: Beside,
        mut report: impl FnMut(Result<Vec<Batch>, LogError>) + Send + 'static,
    ) -> Writer {
        let (persist, batches) = mpsc::channel();
        let mut log = self;
        let work = move || {
            if let Err(error) = log.take(&history, &batches, |done| report(Ok(done))) {
                report(Err(error));
            }
        };
        let thread = thread::Builder::new().name("log".into()).spawn(work);
        Writer { persist: Some(persist), thread: Some(thread.expect("a thread can be started")) }
    }

    /// Writes batches until nobody can give any more.
    fn take(
        &mut self,
        history: &Beside,
        batches: &Receiver<Batch>,
        mut report: impl FnMut(Vec<Batch>),
    ) -> Result<(), LogError> {
        let Self { path, store } = self;
        while let Some(first) = next(store, batches).map_err(at(path))? {
            let rest = batches.try_iter().take(MAX_BATCHES - 1);
            let together: Vec<_> = iter::once(first).chain(rest).collect();
            if together.iter().any(|batch| batch.snapshot.is_some()) {
                history.make_durable()?;
            }
            store.persist(&together).map_err(at(path))?;
            report(together);
        }
        Ok(())
    }
}

impl Beside {
    /// What was written is on the disk.
    pub(crate) fn make_durable(&self) -> Result<(), LogError> {
        let synced = self.file.sync_data();
        synced.map_err(|source| LogError::File { path: self.path.clone(), source })
    }
}

/// The thread that writes a log. Dropped, it writes what it was given and closes the file.
pub struct Writer {
    /// Unbounded, for [`Writer::persist`] never waits: who gives batches counts them.
    persist: Option<Sender<Batch>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Asks for a batch to be written; never waits.
    pub fn persist(&self, batch: Batch) {
        if let Some(persist) = &self.persist {
            let _ = persist.send(batch); // an error means that the thread has reported why it ended
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.persist = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it panics only where `report` does
        }
    }
}

/// Waits for a batch, and makes good use of the time.
fn next(store: &mut ReplicaStore, batches: &Receiver<Batch>) -> Result<Option<Batch>, StoreError> {
    match batches.try_recv() {
        Ok(batch) => Ok(Some(batch)),
        Err(TryRecvError::Empty | TryRecvError::Disconnected) => {
            store.confirm()?;
            Ok(batches.recv().ok())
        }
    }
}

/// A digest of how entries are laid out: the vocabulary's, and what is the log's own.
fn schema() -> u64 {
    let layout = [FORMAT, codec::schema(), size_of::<ArchivedEntry>() as u64];
    let digest = blake3::hash(&layout.map(u64::to_le_bytes).concat());
    u64::from_le_bytes(*digest.as_bytes().first_chunk().expect("32 bytes"))
}

fn open(path: &Path, options: &mut OpenOptions) -> Result<FileBackend, LogError> {
    let file = options.read(true).write(true).open(path);
    let file = file.map_err(|source| LogError::File { path: path.to_path_buf(), source })?;
    FileBackend::new(file).map_err(|error| at(path)(error.into()))
}

fn at(path: &Path) -> impl FnOnce(StoreError) -> LogError {
    let path = path.to_path_buf();
    |source| LogError::Store { path, source }
}

#[cfg(test)]
mod tests;

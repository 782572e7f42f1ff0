//! The durable log: a replica's file, and the thread that writes it.
//!
//! In: the directory's file, then [batches](WriteBatch). Out: the content of the file, then the
//! number of each durable batch, in order, until the disk fails. The [replica](crate::raft) knows
//! the content of a batch and the consequences of its being durable. This module does not.
//!
//! A thread of its own writes. An fsync takes milliseconds and, on a bad day, seconds. The network
//! thread answers heartbeats meanwhile. Batches that come while it writes go together into the next
//! transaction.

mod error;
pub mod replica;

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::{self, JoinHandle};
use std::{io, iter};

use redb::backends::FileBackend;

pub use self::error::ReplicaStoreError;
use self::replica::{DiskOwner, ReplicaStore};
use crate::raft::{DurableState, WriteBatch};

/// Most batches in one transaction.
const MAX_BATCHES: usize = 1024;

/// Why there is no log, or none any more. The caller must not try an operation again.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The process could not open, make or sync a file.
    #[error("{}: {source}", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// What the system says of it.
        source: io::Error,
    },
    /// The process could not read or write the file's rows.
    #[error("{}: {source}", path.display())]
    Store {
        /// The path of the file.
        path: PathBuf,
        /// The error of the database, or of the content.
        source: ReplicaStoreError,
    },
}

/// The history's file. The writer makes it durable before every batch with a snapshot, since that
/// batch drops the entries that the history follows from.
#[derive(Debug)]
pub struct SyncFile {
    /// The path of the file.
    pub path: PathBuf,
    /// The file, open for writing.
    pub file: File,
}

/// An open log, before its thread begins to write.
pub struct Log {
    path: PathBuf,
    store: ReplicaStore,
}

impl Log {
    /// Makes the log of a new replica, with this content. The file appears whole, or not at all. An
    /// older file at this path is gone.
    ///
    /// # Errors
    /// [`LogError`] if the disk fails.
    pub fn create(path: &Path, owner: DiskOwner, kept: &DurableState) -> Result<(), LogError> {
        let unfinished = path.with_extension("redb.tmp");
        let file = open(&unfinished, OpenOptions::new().create(true).truncate(true))?;
        ReplicaStore::create(file, owner, kept).map_err(at(&unfinished))?;
        let moved = std::fs::rename(&unfinished, path);
        moved.map_err(|source| LogError::File { path: path.to_path_buf(), source })
    }

    /// Opens a replica's log, and returns its whole content.
    ///
    /// # Errors
    /// [`LogError`], in words for the user.
    pub fn open(path: &Path, owner: DiskOwner) -> Result<(Self, DurableState), LogError> {
        let file = open(path, &mut OpenOptions::new())?;
        let (store, kept) = ReplicaStore::open(file, owner).map_err(at(path))?;
        Ok((Self { path: path.to_path_buf(), store }, kept))
    }

    /// Starts to write. The writing thread calls `report` with durable batches, in order. After an
    /// error it calls `report` once with that error, and writes nothing more.
    ///
    /// # Panics
    /// If the system cannot start a thread.
    pub fn write(
        self,
        history: SyncFile,
        mut report: impl FnMut(Result<Vec<WriteBatch>, LogError>) + Send + 'static,
    ) -> LogWriter {
        let (persist, batches) = mpsc::channel();
        let mut log = self;
        let work = move || {
            if let Err(error) = log.take(&history, &batches, |done| report(Ok(done))) {
                report(Err(error));
            }
        };
        let thread = thread::Builder::new().name("log".into()).spawn(work);
        LogWriter { persist: Some(persist), thread: Some(thread.expect("a thread can be started")) }
    }

    /// Writes batches until the channel is closed.
    fn take(
        &mut self,
        history: &SyncFile,
        batches: &Receiver<WriteBatch>,
        mut report: impl FnMut(Vec<WriteBatch>),
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

impl SyncFile {
    /// Returns when everything written so far is on the disk.
    pub(crate) fn make_durable(&self) -> Result<(), LogError> {
        let synced = self.file.sync_data();
        synced.map_err(|source| LogError::File { path: self.path.clone(), source })
    }
}

/// The thread that writes a log. When dropped, it writes all its batches and closes the file.
pub struct LogWriter {
    /// Unbounded, because [`LogWriter::persist`] never waits. The giver of the batches counts them.
    persist: Option<Sender<WriteBatch>>,
    thread: Option<JoinHandle<()>>,
}

impl LogWriter {
    /// Asks the thread to write a batch. Never waits.
    pub fn persist(&self, batch: WriteBatch) {
        if let Some(persist) = &self.persist {
            let _ = persist.send(batch); // an error means that the thread has reported why it ended
        }
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        self.persist = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it panics only where `report` does
        }
    }
}

/// Waits for a batch. Confirms the newest commit if there is time.
fn next(
    store: &mut ReplicaStore,
    batches: &Receiver<WriteBatch>,
) -> Result<Option<WriteBatch>, ReplicaStoreError> {
    match batches.try_recv() {
        Ok(batch) => Ok(Some(batch)),
        Err(TryRecvError::Empty | TryRecvError::Disconnected) => {
            store.confirm()?;
            Ok(batches.recv().ok())
        }
    }
}

fn open(path: &Path, options: &mut OpenOptions) -> Result<FileBackend, LogError> {
    let file = options.read(true).write(true).open(path);
    let file = file.map_err(|source| LogError::File { path: path.to_path_buf(), source })?;
    FileBackend::new(file).map_err(|error| at(path)(error.into()))
}

fn at(path: &Path) -> impl FnOnce(ReplicaStoreError) -> LogError {
    let path = path.to_path_buf();
    |source| LogError::Store { path, source }
}

#[cfg(test)]
mod tests;

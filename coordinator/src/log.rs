//! The durable log: an entry is proposed, and comes back when it is on the disk, in its place.
//!
//! In: a file, then entries. Out: every entry that is there, with its index and its term; then each
//! proposed one when it is durable, in order, until the disk fails. What is durable is agreed,
//! since there is one replica; Raft fills this same seam, and then a proposal can be late or lost.
//! The log does not know what an entry changes.
//!
//! A thread of its own writes. An fsync takes milliseconds and, on a bad day, seconds; heartbeats
//! are answered meanwhile. What is proposed while it writes goes together into the next
//! transaction.

pub mod replica;
mod store;

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::{self, JoinHandle};
use std::{io, iter};

use everstep_transport::protocol::{Term, codec};
use redb::backends::FileBackend;
use rkyv::rancor;
use rkyv::util::AlignedVec;

pub use self::store::{Row, Store, StoreError};
use crate::state::{ArchivedEntry, Entry};

/// The layout of the file's own rows; entries have theirs from the vocabulary.
const FORMAT: u64 = 1;
/// Most entries in one transaction.
const MAX_BATCH: usize = 1024;

/// An entry in its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Agreed {
    /// Where it stands, from 1, without gaps.
    pub index: u64,
    /// The term of its proposer.
    pub term: Term,
    /// The entry.
    pub entry: Entry,
}

/// Why there is no log, or none any more: in no case is an operation to be tried again.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file could not be opened or made.
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
    /// An entry is as it was written, and is none.
    #[error("{}: entry {index} cannot be decoded: {problem}", path.display())]
    Garbled {
        /// The file.
        path: PathBuf,
        /// The entry's place.
        index: u64,
        /// What the validation found.
        problem: String,
    },
}

/// A log that is open, for one term.
pub struct Log {
    path: PathBuf,
    store: Store,
}

impl Log {
    /// Makes an empty log.
    ///
    /// # Errors
    /// [`LogError::File`], also if there is such a file; [`LogError::Store`].
    pub fn create(path: &Path) -> Result<(), LogError> {
        let file = open(path, OpenOptions::new().create_new(true))?;
        Store::create(file, schema()).map_err(at(path))
    }

    /// Opens a log for a new term, and gives every entry that is there.
    ///
    /// # Errors
    /// [`LogError`], in words for the user.
    pub fn open(path: &Path) -> Result<(Self, Vec<Agreed>), LogError> {
        let file = open(path, &mut OpenOptions::new())?;
        let (store, rows) = Store::open(file, schema()).map_err(at(path))?;
        let entries: Result<_, _> = rows.into_iter().map(|row| decode(path, row)).collect();
        Ok((Self { path: path.to_path_buf(), store }, entries?))
    }

    /// The term that began with this opening.
    pub fn term(&self) -> Term {
        self.store.term()
    }

    /// Starts to write. `report` is called, on the writing thread, with entries that are durable,
    /// in order, or once with the error after which nothing more is written.
    ///
    /// # Panics
    /// If the system cannot start a thread.
    pub fn write(
        self,
        mut report: impl FnMut(Result<Vec<Agreed>, LogError>) + Send + 'static,
    ) -> Writer {
        let (propose, proposals) = mpsc::channel();
        let Self { path, mut store } = self;
        let work = move || {
            if let Err(source) = write(&mut store, &proposals, |agreed| report(Ok(agreed))) {
                report(Err(LogError::Store { path, source }));
            }
        };
        let thread = thread::Builder::new().name("log".into()).spawn(work);
        Writer { propose: Some(propose), thread: Some(thread.expect("a thread can be started")) }
    }
}

/// The thread that writes a log. Dropped, it writes what was proposed and closes the file.
pub struct Writer {
    /// Unbounded, for [`Writer::propose`] never waits: who proposes counts what has not come back.
    propose: Option<Sender<Entry>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Asks for an entry to be appended; never waits.
    pub fn propose(&self, entry: Entry) {
        if let Some(propose) = &self.propose {
            let _ = propose.send(entry); // an error means that the thread has reported why it ended
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.propose = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it panics only where `report` does
        }
    }
}

/// Appends what is proposed until nobody can propose any more.
fn write(
    store: &mut Store,
    proposals: &Receiver<Entry>,
    mut report: impl FnMut(Vec<Agreed>),
) -> Result<(), StoreError> {
    while let Some(first) = next(store, proposals)? {
        let rest = proposals.try_iter().take(MAX_BATCH - 1);
        let entries: Vec<_> = iter::once(first).chain(rest).collect();
        let (places, term) = (store.last() + 1.., store.term());
        store.append(&entries.iter().map(encode).collect::<Vec<_>>())?;
        let agreed = places.zip(entries).map(|(index, entry)| Agreed { index, term, entry });
        report(agreed.collect());
    }
    Ok(())
}

/// Waits for a proposal, and makes good use of the time.
fn next(store: &mut Store, proposals: &Receiver<Entry>) -> Result<Option<Entry>, StoreError> {
    match proposals.try_recv() {
        Ok(entry) => Ok(Some(entry)),
        Err(TryRecvError::Empty | TryRecvError::Disconnected) => {
            store.confirm()?;
            Ok(proposals.recv().ok())
        }
    }
}

fn encode(entry: &Entry) -> Vec<u8> {
    let bytes = rkyv::to_bytes::<rancor::Error>(entry);
    bytes.expect("an entry is finite and needs no shared pointers").into_vec()
}

fn decode(path: &Path, row: Row) -> Result<Agreed, LogError> {
    let Row { index, term, bytes } = row;
    let mut aligned = AlignedVec::<16>::with_capacity(bytes.len());
    aligned.extend_from_slice(&bytes);
    match rkyv::from_bytes::<Entry, rancor::Error>(&aligned) {
        Ok(entry) => Ok(Agreed { index, term, entry }),
        Err(error) => {
            Err(LogError::Garbled { path: path.to_path_buf(), index, problem: error.to_string() })
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

//! The book of coordinators, `coordinators` in a directory: this one's identity, and the newest
//! list of all coordinators with their addresses.
//!
//! A coordinator that starts again dials the others from it, if it learned of the cluster from them
//! and not from its own log yet. It writes the book as a whole, under another name first. A digest
//! proves that the content is the same as written.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use everstep_transport::protocol::{CoordinatorId, CoordinatorView, NodeName, codec};
use rkyv::rancor;
use rkyv::util::AlignedVec;
use rkyv::{Archive, Deserialize, Serialize};
use rustix::io::Errno;

use super::files::replace;

/// The first bytes of the file. The last of them is the version.
const MAGIC: [u8; 8] = *b"esbook_\x02";
/// [`MAGIC`], the vocabulary's layout, the digest of the rest.
const HEAD: usize = 16 + 32;
/// The pause between two tries to write while the process can open no more files.
const SHORTAGE_PAUSE: Duration = Duration::from_secs(1);

/// The content of a book.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(super) struct Content {
    /// The coordinator's own name, all its life.
    pub(super) name: NodeName,
    /// A random number, drawn once for the directory.
    pub(super) incarnation: u64,
    /// The coordinator's id. None while it asks for a place among the coordinators.
    pub(super) id: Option<CoordinatorId>,
    /// `Some` if it founds the cluster: whether the cluster exists for one run only.
    pub(super) founds: Option<bool>,
    /// Digests of the authority and of the tokens for workers and for coordinators. Their files
    /// alone do not show whether they are damaged, or another cluster's.
    pub(super) seals: [[u8; 32]; 3],
    /// The revision of the list.
    pub(super) revision: u64,
    /// All coordinators on the list.
    pub(super) members: Vec<CoordinatorView>,
}

/// The book, and its file.
#[derive(Debug)]
pub(super) struct Book {
    path: PathBuf,
    content: Content,
}

/// A book that the process cannot read or write.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct BookError {
    path: PathBuf,
    #[source]
    problem: Problem,
}

#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("{0}")]
    File(#[from] io::Error),
    #[error("it was written by another version of Everstep")]
    OtherVersion,
    #[error("the file is damaged: it is not as it was written")]
    Damaged,
}

impl BookError {
    /// Whether the process, or the system, can open no more files now. That passes.
    fn is_shortage(&self) -> bool {
        let Problem::File(error) = &self.problem else { return false };
        matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
    }
}

impl Book {
    /// Writes a new book.
    pub(super) fn create(path: &Path, content: Content) -> Result<Self, BookError> {
        let book = Self { path: path.to_path_buf(), content };
        book.save()?;
        Ok(book)
    }

    /// Reads the book in a file.
    pub(super) fn load(path: &Path) -> Result<Self, BookError> {
        let read = std::fs::read(path).map_err(Problem::from).and_then(|bytes| decode(&bytes));
        match read {
            Ok(content) => Ok(Self { path: path.to_path_buf(), content }),
            Err(problem) => Err(BookError { path: path.to_path_buf(), problem }),
        }
    }

    /// The content of the book.
    pub(super) fn content(&self) -> &Content {
        &self.content
    }

    /// The cluster has admitted the coordinator under this id.
    pub(super) fn admitted(&mut self, id: CoordinatorId) -> Result<(), BookError> {
        self.content.id = Some(id);
        self.save()
    }

    /// Lists this coordinator alone.
    pub(super) fn begin(&mut self, own: CoordinatorView) -> Result<(), BookError> {
        self.content.members = vec![own];
        self.save()
    }

    /// Takes a newer list. An older list, or the same, changes nothing.
    pub(super) fn heard(
        &mut self,
        revision: u64,
        members: Vec<CoordinatorView>,
    ) -> Result<(), BookError> {
        if revision <= self.content.revision {
            return Ok(());
        }
        (self.content.revision, self.content.members) = (revision, members);
        self.save()
    }

    /// Keeps the book up to date from a thread of its own, since a disk may take seconds. If that
    /// fails, the thread calls `report` and writes nothing any more. While the process can open no
    /// more files, the thread writes the list later: the log has it, too.
    ///
    /// # Panics
    /// If the system cannot start a thread.
    pub(super) fn keep(mut self, report: impl FnOnce(BookError) + Send + 'static) -> Keeper {
        let (lists, heard) = mpsc::channel::<List>();
        let revision = self.content.revision;
        let work = move || {
            while let Ok(list) = heard.recv() {
                let (revision, members) = heard.try_iter().last().unwrap_or(list);
                let mut written = self.heard(revision, members);
                while let Err(error) = written {
                    if !error.is_shortage() {
                        return report(error);
                    }
                    tracing::warn!(%error, "the list of coordinators is written later");
                    written = match heard.recv_timeout(SHORTAGE_PAUSE) {
                        Ok((revision, members)) => self.heard(revision, members),
                        Err(RecvTimeoutError::Timeout) => self.save(),
                        Err(RecvTimeoutError::Disconnected) => return,
                    };
                }
            }
        };
        let thread = thread::Builder::new().name("book".into()).spawn(work);
        let thread = thread.expect("a thread can be started");
        Keeper { revision, lists: Some(lists), thread: Some(thread) }
    }

    fn save(&self) -> Result<(), BookError> {
        let body = rkyv::to_bytes::<rancor::Error>(&self.content).expect("it is plain data");
        let layout = codec::schema().to_le_bytes();
        let bytes = [&MAGIC[..], &layout, blake3::hash(&body).as_bytes(), &body].concat();
        let failed =
            |error: io::Error| BookError { path: self.path.clone(), problem: error.into() };
        replace(&self.path, &bytes, 0o600).map_err(failed)
    }
}

/// A list of coordinators, with its revision.
type List = (u64, Vec<CoordinatorView>);

/// The thread that writes a book. When dropped, it writes the newest list and closes the book.
pub(super) struct Keeper {
    /// The revision of the newest list.
    revision: u64,
    lists: Option<Sender<List>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// The revision of the newest list.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// Takes a newer list. An older list, or the same, changes nothing. Never waits.
    pub(super) fn heard(&mut self, revision: u64, members: Vec<CoordinatorView>) {
        if let Some(lists) = self.lists.as_ref().filter(|_| revision > self.revision) {
            self.revision = revision;
            let _ = lists.send((revision, members)); // an error was reported
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.lists = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it panics only where `report` does
        }
    }
}

fn decode(bytes: &[u8]) -> Result<Content, Problem> {
    let (head, body) = bytes.split_at_checked(HEAD).ok_or(Problem::Damaged)?;
    if !head.starts_with(&MAGIC[..7]) {
        return Err(Problem::Damaged);
    }
    if head[7] != MAGIC[7] || head[8..16] != codec::schema().to_le_bytes() {
        return Err(Problem::OtherVersion);
    }
    if head[16..] != *blake3::hash(body).as_bytes() {
        return Err(Problem::Damaged);
    }
    let mut aligned = AlignedVec::<16>::with_capacity(body.len());
    aligned.extend_from_slice(body);
    rkyv::from_bytes::<Content, rancor::Error>(&aligned).map_err(|_| Problem::Damaged)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content() -> Content {
        let name = NodeName::parse("coordinator-1").expect("a valid name");
        let address = ([127, 0, 0, 1], 4).into();
        let members = vec![CoordinatorView { id: 1, name: name.clone(), address, api: None }];
        let (founds, seals) = (Some(true), [[7; 32]; 3]);
        Content { name, incarnation: 3, id: None, founds, seals, revision: 2, members }
    }

    #[test]
    fn it_remembers_the_newest_list() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("coordinators");
        let mut book = Book::create(&path, content()).expect("written");
        book.admitted(7).expect("written");
        book.heard(2, Vec::new()).expect("an old list");
        assert_eq!(Book::load(&path).expect("sound").content().members, content().members);
        book.heard(9, Vec::new()).expect("written");
        let found = Book::load(&path).expect("sound");
        let expected = Content { id: Some(7), revision: 9, members: Vec::new(), ..content() };
        assert_eq!(*found.content(), expected);
        assert_eq!(std::fs::read_dir(dir.path()).expect("a directory").count(), 1);
    }

    #[test]
    fn a_keeper_writes_the_newest_list_or_says_why_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("coordinators");
        let book = Book::create(&path, content()).expect("written");
        let (report, reported) = mpsc::channel();
        let mut keeper = book.keep(move |error| report.send(error).expect("somebody listens"));
        keeper.heard(2, Vec::new());
        assert_eq!(keeper.revision(), 2, "it is not newer");
        (3..=5).for_each(|revision| keeper.heard(revision, Vec::new()));
        drop(keeper);
        let book = Book::load(&path).expect("sound");
        assert_eq!((book.content().revision, reported.try_recv().is_err()), (5, true));
        let (report, reported) = mpsc::channel();
        let mut keeper = book.keep(move |error| report.send(error).expect("somebody listens"));
        drop(dir);
        keeper.heard(6, Vec::new());
        let error = reported.recv().expect("it says why not");
        assert!(error.to_string().contains("coordinators"), "{error}");
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("coordinators");
        Book::create(&path, content()).expect("written");
        let whole = std::fs::read(&path).expect("a file");
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, &flipped).expect("written");
            assert!(Book::load(&path).is_err(), "bit {bit}");
        }
        for length in 0..whole.len() {
            assert!(decode(&whole[..length]).is_err(), "cut at {length}");
        }
    }
}

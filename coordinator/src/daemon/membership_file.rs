//! The membership file, `coordinators` in a coordinator's directory: the coordinator's identity,
//! and the newest list of all coordinators with their addresses.
//!
//! A coordinator that starts again dials the others by this list, as long as its own log does not
//! name them yet. It writes the file as a whole, under another name first. A digest proves that the
//! content is the same as written.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use everstep_transport::protocol::{CoordinatorId, CoordinatorView, NodeName};
use rkyv::rancor;
use rkyv::util::AlignedVec;
use rkyv::{Archive, Deserialize, Serialize};
use rustix::io::Errno;

use super::files::replace;
use crate::format::{MEMBERSHIP_FILE_FORMAT, UnknownFormat};

/// The first bytes of the file.
const MAGIC: [u8; 8] = *b"esbook_\x02";
/// [`MAGIC`], the number of the format, the digest of the rest.
const HEAD: usize = 16 + 32;
/// The pause between two tries to write while the process can open no more files.
const MEMBERSHIP_WRITE_RETRY: Duration = Duration::from_secs(1);

/// The content of a membership file.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(super) struct Membership {
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

/// The membership, and its file.
#[derive(Debug)]
pub(super) struct MembershipFile {
    path: PathBuf,
    membership: Membership,
}

/// A membership file that the process cannot read or write.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct MembershipFileError {
    path: PathBuf,
    #[source]
    problem: MembershipProblem,
}

#[derive(Debug, thiserror::Error)]
enum MembershipProblem {
    #[error("{0}")]
    File(#[from] io::Error),
    #[error(transparent)]
    OtherFormat(#[from] UnknownFormat),
    #[error("the file is damaged: it is not as it was written")]
    Damaged,
}

impl MembershipFileError {
    /// Whether the process, or the system, can open no more files now. That passes.
    fn is_shortage(&self) -> bool {
        let MembershipProblem::File(error) = &self.problem else { return false };
        matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
    }
}

impl MembershipFile {
    /// Writes a new membership file.
    pub(super) fn create(path: &Path, membership: Membership) -> Result<Self, MembershipFileError> {
        let membership = Self { path: path.to_path_buf(), membership };
        membership.save()?;
        Ok(membership)
    }

    /// Reads a membership file.
    pub(super) fn load(path: &Path) -> Result<Self, MembershipFileError> {
        let read =
            std::fs::read(path).map_err(MembershipProblem::from).and_then(|bytes| decode(&bytes));
        match read {
            Ok(membership) => Ok(Self { path: path.to_path_buf(), membership }),
            Err(problem) => Err(MembershipFileError { path: path.to_path_buf(), problem }),
        }
    }

    /// The content of the file.
    pub(super) fn membership(&self) -> &Membership {
        &self.membership
    }

    /// The cluster has admitted the coordinator under this id.
    pub(super) fn admitted(&mut self, id: CoordinatorId) -> Result<(), MembershipFileError> {
        self.membership.id = Some(id);
        self.save()
    }

    /// Lists this coordinator alone.
    pub(super) fn begin(&mut self, own: CoordinatorView) -> Result<(), MembershipFileError> {
        self.membership.members = vec![own];
        self.save()
    }

    /// Takes a newer list. An older list, or the same, changes nothing.
    pub(super) fn heard(
        &mut self,
        revision: u64,
        members: Vec<CoordinatorView>,
    ) -> Result<(), MembershipFileError> {
        if revision <= self.membership.revision {
            return Ok(());
        }
        (self.membership.revision, self.membership.members) = (revision, members);
        self.save()
    }

    /// Keeps the file up to date from a thread of its own, since a disk may take seconds. If that
    /// fails, the thread calls `report` and writes nothing any more. While the process can open no
    /// more files, the thread writes the list later: the log has it, too.
    ///
    /// # Panics
    /// If the system cannot start a thread.
    pub(super) fn keep(
        mut self,
        report: impl FnOnce(MembershipFileError) + Send + 'static,
    ) -> MembershipWriter {
        let (lists, heard) = mpsc::channel::<List>();
        let revision = self.membership.revision;
        let work = move || {
            while let Ok(list) = heard.recv() {
                let (revision, members) = heard.try_iter().last().unwrap_or(list);
                let mut written = self.heard(revision, members);
                while let Err(error) = written {
                    if !error.is_shortage() {
                        return report(error);
                    }
                    tracing::warn!(%error, "the list of coordinators is written later");
                    written = match heard.recv_timeout(MEMBERSHIP_WRITE_RETRY) {
                        Ok((revision, members)) => self.heard(revision, members),
                        Err(RecvTimeoutError::Timeout) => self.save(),
                        Err(RecvTimeoutError::Disconnected) => return,
                    };
                }
            }
        };
        let thread = thread::Builder::new().name("membership".into()).spawn(work);
        let thread = thread.expect("a thread can be started");
        MembershipWriter { revision, lists: Some(lists), thread: Some(thread) }
    }

    fn save(&self) -> Result<(), MembershipFileError> {
        let body = rkyv::to_bytes::<rancor::Error>(&self.membership).expect("it is plain data");
        let format = MEMBERSHIP_FILE_FORMAT.newest.to_le_bytes();
        let bytes = [&MAGIC[..], &format, blake3::hash(&body).as_bytes(), &body].concat();
        let failed = |error: io::Error| MembershipFileError {
            path: self.path.clone(),
            problem: error.into(),
        };
        replace(&self.path, &bytes, 0o600).map_err(failed)
    }
}

/// A list of coordinators, with its revision.
type List = (u64, Vec<CoordinatorView>);

/// The thread that writes a membership file. When dropped, it writes the newest list and ends.
pub(super) struct MembershipWriter {
    /// The revision of the newest list.
    revision: u64,
    lists: Option<Sender<List>>,
    thread: Option<JoinHandle<()>>,
}

impl MembershipWriter {
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

impl Drop for MembershipWriter {
    fn drop(&mut self) {
        self.lists = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it panics only where `report` does
        }
    }
}

fn decode(bytes: &[u8]) -> Result<Membership, MembershipProblem> {
    let (head, body) = bytes.split_at_checked(HEAD).ok_or(MembershipProblem::Damaged)?;
    let (head, digest) = head.split_at(16);
    let Some((magic, format)) = head.split_first_chunk::<8>() else {
        return Err(MembershipProblem::Damaged);
    };
    if *magic != MAGIC {
        return Err(MembershipProblem::Damaged);
    }
    MEMBERSHIP_FILE_FORMAT.number(u64::from_le_bytes(format.try_into().expect("eight bytes")))?;
    if *digest != *blake3::hash(body).as_bytes() {
        return Err(MembershipProblem::Damaged);
    }
    let mut aligned = AlignedVec::<16>::with_capacity(body.len());
    aligned.extend_from_slice(body);
    rkyv::from_bytes::<Membership, rancor::Error>(&aligned).map_err(|_| MembershipProblem::Damaged)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Membership {
        let name = NodeName::parse("coordinator-1").expect("a valid name");
        let address = ([127, 0, 0, 1], 4).into();
        let members =
            vec![CoordinatorView { id: CoordinatorId(1), name: name.clone(), address, api: None }];
        let (founds, seals) = (Some(true), [[7; 32]; 3]);
        Membership { name, incarnation: 3, id: None, founds, seals, revision: 2, members }
    }

    #[test]
    fn it_remembers_the_newest_list() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("coordinators");
        let mut membership = MembershipFile::create(&path, sample()).expect("written");
        membership.admitted(CoordinatorId(7)).expect("written");
        membership.heard(2, Vec::new()).expect("an old list");
        assert_eq!(
            MembershipFile::load(&path).expect("sound").membership().members,
            sample().members
        );
        membership.heard(9, Vec::new()).expect("written");
        let found = MembershipFile::load(&path).expect("sound");
        let expected =
            Membership { id: Some(CoordinatorId(7)), revision: 9, members: Vec::new(), ..sample() };
        assert_eq!(*found.membership(), expected);
        assert_eq!(std::fs::read_dir(dir.path()).expect("a directory").count(), 1);
    }

    #[test]
    fn the_writer_writes_the_newest_list_or_says_why_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("coordinators");
        let membership = MembershipFile::create(&path, sample()).expect("written");
        let (report, reported) = mpsc::channel();
        let mut writer =
            membership.keep(move |error| report.send(error).expect("the test listens"));
        writer.heard(2, Vec::new());
        assert_eq!(writer.revision(), 2, "it is not newer");
        (3..=5).for_each(|revision| writer.heard(revision, Vec::new()));
        drop(writer);
        let membership = MembershipFile::load(&path).expect("sound");
        assert_eq!((membership.membership().revision, reported.try_recv().is_err()), (5, true));
        let (report, reported) = mpsc::channel();
        let mut writer =
            membership.keep(move |error| report.send(error).expect("the test listens"));
        drop(dir);
        writer.heard(6, Vec::new());
        let error = reported.recv().expect("it says why not");
        assert!(error.to_string().contains("coordinators"), "{error}");
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("coordinators");
        MembershipFile::create(&path, sample()).expect("written");
        let whole = std::fs::read(&path).expect("a file");
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, &flipped).expect("written");
            assert!(MembershipFile::load(&path).is_err(), "bit {bit}");
        }
        for length in 0..whole.len() {
            assert!(decode(&whole[..length]).is_err(), "cut at {length}");
        }
    }
}

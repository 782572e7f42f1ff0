//! The book of coordinators: who this one is, and who and where all of them were when it last
//! heard. `coordinators` in its directory.
//!
//! It is what a coordinator that starts again calls the others by, should it have learned of the
//! cluster from them and not from its own log yet. Written as a whole, under another name first; a
//! digest proves that it is as it was written.

use std::io;
use std::path::{Path, PathBuf};

use everstep_transport::protocol::{CoordinatorId, CoordinatorView, NodeName, codec};
use rkyv::rancor;
use rkyv::util::AlignedVec;
use rkyv::{Archive, Deserialize, Serialize};

use super::files::replace;

/// The first bytes; the last of them is the version.
const MAGIC: [u8; 8] = *b"esbook_\x02";
/// [`MAGIC`], the vocabulary's layout, the digest of the rest.
const HEAD: usize = 16 + 32;

/// What is in it.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(super) struct Content {
    /// Its own name, all its life.
    pub(super) name: NodeName,
    /// Drawn once for its directory.
    pub(super) incarnation: u64,
    /// Its id; none while it asks to become one of the coordinators.
    pub(super) id: Option<CoordinatorId>,
    /// If it founds the cluster: whether that is there for one run.
    pub(super) founds: Option<bool>,
    /// Digests of the authority and of the tokens for workers and for coordinators: what is in
    /// their files cannot be told to be damaged, or another cluster's, by itself.
    pub(super) seals: [[u8; 32]; 3],
    /// The list's revision.
    pub(super) revision: u64,
    /// All coordinators.
    pub(super) members: Vec<CoordinatorView>,
}

/// The book, and where it is.
#[derive(Debug)]
pub(super) struct Book {
    path: PathBuf,
    content: Content,
}

/// Why a book cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct BookError {
    path: PathBuf,
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

impl Book {
    /// Writes a new book.
    pub(super) fn create(path: &Path, content: Content) -> Result<Self, BookError> {
        let book = Self { path: path.to_path_buf(), content };
        book.save()?;
        Ok(book)
    }

    /// Reads the book that is there.
    pub(super) fn load(path: &Path) -> Result<Self, BookError> {
        let read = std::fs::read(path).map_err(Problem::from).and_then(|bytes| decode(&bytes));
        match read {
            Ok(content) => Ok(Self { path: path.to_path_buf(), content }),
            Err(problem) => Err(BookError { path: path.to_path_buf(), problem }),
        }
    }

    /// What is in it.
    pub(super) fn content(&self) -> &Content {
        &self.content
    }

    /// The coordinator is one of them, under this id.
    pub(super) fn admitted(&mut self, id: CoordinatorId) -> Result<(), BookError> {
        self.content.id = Some(id);
        self.save()
    }

    /// Takes a newer list; an older one, or the same, changes nothing.
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

    fn save(&self) -> Result<(), BookError> {
        let body = rkyv::to_bytes::<rancor::Error>(&self.content).expect("it is plain data");
        let layout = codec::schema().to_le_bytes();
        let bytes = [&MAGIC[..], &layout, blake3::hash(&body).as_bytes(), &body].concat();
        let failed =
            |error: io::Error| BookError { path: self.path.clone(), problem: error.into() };
        replace(&self.path, &bytes, 0o644).map_err(failed)
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

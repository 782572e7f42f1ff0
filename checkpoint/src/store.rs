//! Stores: places with named objects, where checkpoints outlive every process.
//!
//! A [`Store`] has few verbs, and two implementers: a [directory], and the
//! [object stores](cloud) of S3, Google Cloud and Azure. Every verb blocks, and may take as long as
//! the place does. So callers run it on a thread of their own, never on one that runs tasks. A
//! store knows names and bytes, and nothing of checkpoints.
//!
//! An object is whole or absent: no reader ever sees half of one. A small object is created once
//! and never changed ([`Store::put_new`]), which is all that clusters need to agree by a store.

#[cfg(feature = "cloud")]
pub mod cloud;
pub mod directory;
pub mod durable;
pub mod file_system;
pub mod place;
pub mod probe;

use std::ops::Range;

use crate::names::ObjectName;

pub use place::{Environment, Place, missing_credentials, open};

/// Bytes that travel in one request. A part of a larger object has as many, so that the time-out of
/// a request covers little.
pub const REQUEST_BYTES: usize = 8 << 20;
/// Requests of one upload that are under way at a time.
pub const REQUESTS_IN_FLIGHT: usize = 2;
/// The largest object that [`Store::put_new`] writes, bytes.
pub const MAX_SMALL_BYTES: u64 = 64 << 20;
/// Most objects of a listing. A store with more is not one of a run's checkpoints.
pub const MAX_OBJECTS: usize = 1_000_000;

/// A place with named objects.
pub trait Store: Send + Sync {
    /// The place as people know it. It contains no secret.
    fn place(&self) -> &str;

    /// Creates an object that is not there yet, durably. An object of this name that another writer
    /// has created stays, and is durable when this returns.
    fn put_new(&self, name: &ObjectName, bytes: &[u8]) -> Result<Created, StoreError>;

    /// Begins an object of `size`, which appears when the [`Upload`] is finished. An object with
    /// this name is replaced then.
    fn upload(&self, name: &ObjectName, size: UploadSize) -> Result<Box<dyn Upload>, StoreError>;

    /// Reads exactly these bytes of an object.
    fn read(&self, name: &ObjectName, range: Range<u64>) -> Result<Vec<u8>, StoreError>;

    /// Reads a whole object of at most `most` bytes.
    fn read_whole(&self, name: &ObjectName, most: u64) -> Result<Vec<u8>, StoreError> {
        let bytes = self.size(name)?;
        if bytes > most {
            return Err(too_large(self.place(), name, bytes, most));
        }
        self.read(name, 0..bytes)
    }

    /// The bytes of an object.
    fn size(&self, name: &ObjectName) -> Result<u64, StoreError>;

    /// All objects, in the order of their names. It leaves out what has no [`ObjectName`].
    ///
    /// The list grows with the run, since the history stays. Work for each checkpoint calls
    /// [`Store::list_claims`] and [`Store::list_checkpoints`] instead.
    fn list(&self) -> Result<Vec<StoredObject>, StoreError>;

    /// The claims alone, in the order of their names.
    fn list_claims(&self) -> Result<Vec<StoredObject>, StoreError>;

    /// The objects of all checkpoints, and forgotten probes, in the order of their names.
    fn list_checkpoints(&self) -> Result<Vec<StoredObject>, StoreError>;

    /// Makes an object durable that another process has written: it may have ended before it did
    /// so. What an object store has is durable.
    fn make_durable(&self, _name: &ObjectName) -> Result<(), StoreError> {
        Ok(())
    }

    /// Removes an object. One that is gone already is no error.
    fn delete(&self, name: &ObjectName) -> Result<(), StoreError>;

    /// Removes what interrupted uploads have left, if its last change was before this time, seconds
    /// of Unix time. Returns how many it removed. Object stores do this by a lifecycle rule, so
    /// theirs removes nothing.
    fn sweep(&self, before: u64) -> Result<u64, StoreError>;
}

/// Whether [`Store::put_new`] has made the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// The object has exactly the given bytes. A store may report an object as present although
    /// this very request made it, so the bytes decide. Writers of equal bytes are all told this: an
    /// object that must have one writer contains a nonce.
    Mine,
    /// Other bytes were there first.
    Theirs,
}

/// The size of an object that is written piece by piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadSize {
    /// Bytes at the beginning that are known last. At most [`crate::head::MAX_HEAD_BYTES`].
    pub head: u64,
    /// All bytes, the head's included.
    pub total: u64,
}

/// An object under way. It is not there until [`Upload::finish`] has returned. If it is dropped
/// before, nothing remains of it.
pub trait Upload: Send {
    /// Appends bytes after the head.
    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError>;

    /// Writes the head, and makes the object durable under its name.
    ///
    /// # Panics
    /// If head and bytes are not as many as [`UploadSize`] said.
    fn finish(self: Box<Self>, head: &[u8]) -> Result<(), StoreError>;
}

/// An object of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredObject {
    /// The name of the object, relative to the store.
    pub name: ObjectName,
    /// The size of the object in bytes.
    pub bytes: u64,
    /// Its last change, seconds of Unix time by the store's clock.
    pub changed: u64,
}

/// Why a store did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {object}: {why}")]
pub struct StoreError {
    /// What the caller may do.
    pub kind: ErrorKind,
    /// The store, without secrets.
    pub place: String,
    /// The object, or the store as a whole.
    pub object: String,
    /// The cause, and what to do next if a person must do something.
    pub why: String,
}

/// What the caller of a store may do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The place is full, slow or away. The same call may succeed later.
    Retry,
    /// The call cannot succeed until a person changes something.
    Refuse,
    /// The bytes are not those that were written.
    Damaged,
    /// There is no such object.
    Missing,
}

impl StoreError {
    /// An error about one object.
    pub fn new(kind: ErrorKind, place: &str, object: &ObjectName, why: impl Into<String>) -> Self {
        Self { kind, place: place.into(), object: object.to_string(), why: why.into() }
    }

    /// An error about the whole store that a person must mend.
    pub fn refuse(place: impl Into<String>, why: impl Into<String>) -> Self {
        let (place, object) = (place.into(), "the store".into());
        Self { kind: ErrorKind::Refuse, place, object, why: why.into() }
    }

    /// Whether the object is not there.
    pub fn is_missing(&self) -> bool {
        self.kind == ErrorKind::Missing
    }
}

/// Decides which writer's bytes an object has that was there.
fn compare(store: &dyn Store, name: &ObjectName, bytes: &[u8]) -> Result<Created, StoreError> {
    let same = match store.size(name)? == bytes.len() as u64 {
        true => store.read_whole(name, bytes.len() as u64)? == bytes,
        false => false,
    };
    Ok(if same { Created::Mine } else { Created::Theirs })
}

fn too_large(place: &str, name: &ObjectName, bytes: u64, most: u64) -> StoreError {
    let why = format!("it has {bytes} bytes, and such an object has at most {most}");
    StoreError::new(ErrorKind::Damaged, place, name, why)
}

fn too_short(place: &str, name: &ObjectName, bytes: u64, wanted: u64) -> StoreError {
    let why = format!("it has {bytes} bytes of at least {wanted}: it was cut");
    StoreError::new(ErrorKind::Damaged, place, name, why)
}

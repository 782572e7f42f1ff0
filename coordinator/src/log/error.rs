//! The errors of a log's file, in words for the user. They replace redb's panics, too.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::format::UnknownFormat;

/// Why there is no log, or none any more.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaStoreError {
    /// Another process has the file open.
    #[error("another process has it open: does a coordinator run in this directory already?")]
    InUse,
    /// The disk has failed, is full, or refuses writes.
    #[error("{0}")]
    Disk(#[source] std::io::Error),
    /// The file holds no database.
    #[error("{0}")]
    Database(redb::Error),
    /// The file is damaged in a way that the database's code did not foresee.
    #[error("the file is damaged: reading it broke off ({0})")]
    Panicked(String),
    /// The content differs from what the process wrote.
    #[error("the file is damaged: {0}")]
    Damaged(String),
    /// The file has a format that this build does not read.
    #[error(transparent)]
    OtherFormat(UnknownFormat),
    /// A coordinator of another cluster wrote the file.
    #[error("it is of another cluster")]
    OtherCluster,
    /// Another replica of the cluster wrote the file.
    #[error("it is replica {found}'s, and this is replica {ours}")]
    OtherReplica {
        /// The id of the replica that wrote the file.
        found: u64,
        /// The id of this replica.
        ours: u64,
    },
}

impl<E: Into<redb::Error>> From<E> for ReplicaStoreError {
    fn from(error: E) -> Self {
        match error.into() {
            redb::Error::DatabaseAlreadyOpen => Self::InUse,
            redb::Error::Io(error) => Self::Disk(error),
            error => Self::Database(error),
        }
    }
}

/// redb asserts properties that a damaged file may lack. Turns its panics into errors of the file.
pub(super) fn guarded<T>(
    operation: impl FnOnce() -> Result<T, ReplicaStoreError>,
) -> Result<T, ReplicaStoreError> {
    let words = |panic: Box<dyn Any + Send>| match panic.downcast::<String>() {
        Ok(words) => *words,
        Err(panic) => panic.downcast_ref::<&str>().copied().unwrap_or("without a word").into(),
    };
    let done = catch_unwind(AssertUnwindSafe(operation));
    done.unwrap_or_else(|panic| Err(ReplicaStoreError::Panicked(words(panic))))
}

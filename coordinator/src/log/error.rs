//! What can be wrong with a log's file, in words for the user; also where redb would panic.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why there is no log, or none any more.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has the file open.
    #[error("another process has it open: does a coordinator run in this directory already?")]
    InUse,
    /// The disk has failed, is full, or cannot be written.
    #[error("{0}")]
    Disk(#[source] std::io::Error),
    /// The file holds no database.
    #[error("{0}")]
    Database(redb::Error),
    /// The file is damaged in a way that the database's code did not foresee.
    #[error("the file is damaged: reading it broke off ({0})")]
    Panicked(String),
    /// The file is not as it was written.
    #[error("the file is damaged: {0}")]
    Damaged(String),
    /// It was written by a build that lays entries out differently.
    #[error("it was written by another version of Everstep ({found:016x}, this is {ours:016x})")]
    OtherVersion {
        /// The layout that was found.
        found: u64,
        /// This build's.
        ours: u64,
    },
    /// It was written in another cluster.
    #[error("it is of another cluster")]
    OtherCluster,
    /// It was written by another replica of the cluster.
    #[error("it is replica {found}'s, and this is replica {ours}")]
    OtherReplica {
        /// Whose it is.
        found: u64,
        /// Who asked.
        ours: u64,
    },
}

impl<E: Into<redb::Error>> From<E> for StoreError {
    fn from(error: E) -> Self {
        match error.into() {
            redb::Error::DatabaseAlreadyOpen => Self::InUse,
            redb::Error::Io(error) => Self::Disk(error),
            error => Self::Database(error),
        }
    }
}

/// redb asserts what a damaged file may not fulfil: its panics are errors of the file.
pub(super) fn guarded<T>(
    operation: impl FnOnce() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let words = |panic: Box<dyn Any + Send>| match panic.downcast::<String>() {
        Ok(words) => *words,
        Err(panic) => panic.downcast_ref::<&str>().copied().unwrap_or("without a word").into(),
    };
    let done = catch_unwind(AssertUnwindSafe(operation));
    done.unwrap_or_else(|panic| Err(StoreError::Panicked(words(panic))))
}

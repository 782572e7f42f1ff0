//! Why a coordinator cannot begin, or go on.

use crate::raft::Unsound;
use crate::state::SnapshotError;

/// Why a coordinator cannot begin, or go on.
#[derive(Debug, thiserror::Error)]
pub enum SeatError {
    /// What its disk holds cannot be.
    #[error(transparent)]
    Unsound(#[from] Unsound),
    /// A snapshot holds no state.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// An entry that was agreed on cannot be read.
    #[error("entry {index} of the log cannot be read ({problem}); run the same build everywhere")]
    Entry {
        /// Its place.
        index: u64,
        /// What is wrong with it.
        problem: String,
    },
}

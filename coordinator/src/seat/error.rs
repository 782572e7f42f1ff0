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
    /// The disk has been taken back to an earlier time.
    #[error(
        "the log ends at entry {last}, but this coordinator has acknowledged entry {agreed}: its \
         directory was replaced by an older copy, from a backup or a snapshot of the machine"
    )]
    Forgotten {
        /// The last entry that is there.
        last: u64,
        /// An entry that it had.
        agreed: u64,
    },
}

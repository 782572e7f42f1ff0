//! Why a coordinator cannot begin, or go on.

use crate::raft::CorruptState;
use crate::state::{EntryError, SnapshotError};

/// Why a coordinator cannot begin, or go on.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The content of its disk is contradictory.
    #[error(transparent)]
    CorruptState(#[from] CorruptState),
    /// A snapshot does not decode to a state.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// An agreed entry does not decode.
    #[error("entry {index} of the log: {problem}")]
    Entry {
        /// The entry's index in the log.
        index: u64,
        /// What the decoder says of it.
        #[source]
        problem: EntryError,
    },
    /// This coordinator knows another cluster than the others.
    #[error(
        "the others agree on another state of the cluster after entry {index} of the log: this \
         coordinator runs another build, or has faulty memory. Start it again with their build. \
         If that does not help, `everstep coordinator remove` does without it"
    )]
    Diverged {
        /// The index of the entry.
        index: u64,
    },
    /// The disk holds an older state than before.
    #[error(
        "the log ends at entry {last}, but this coordinator has acknowledged entry {agreed}: its \
         directory was replaced by an older copy, from a backup or a snapshot of the machine"
    )]
    Forgotten {
        /// The index of the last entry on the disk.
        last: u64,
        /// The index of an entry that this coordinator had acknowledged.
        agreed: u64,
    },
}

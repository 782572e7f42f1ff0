//! A checkpoint that a worker reads whole because an operator wants to know whether it is damaged.

use rkyv::{Archive, Deserialize, Serialize};

/// How the reading of a checkpoint stands, or what it has shown.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub enum Verification {
    /// The log lists no checkpoint of the step. Only the leader says so.
    NotListed,
    /// No worker is there that could read it. Only the leader says so.
    NoReader,
    /// A worker reads it.
    Reading {
        /// The bytes of state that the worker has read so far.
        bytes: u64,
        /// The bytes of the whole state. 0 before the worker has read the manifest.
        total: u64,
    },
    /// All of its bytes are those that were written.
    Whole,
    /// Some of its bytes are not those that were written: the file, the shard, and what is wrong.
    Damaged(String),
    /// It could not be read, for this reason. That says nothing of the checkpoint.
    Unread(String),
}

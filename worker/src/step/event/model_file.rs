//! What the thread that writes the model's file is asked to do, and what it reports.

use std::time::Duration;

use everstep_kernels::buffer::Shared;
use everstep_transport::protocol::{Generation, Shard};

/// A worker's directory that owes an answer for so long is an error.
pub const DIRECTORY_ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// A job for the thread. It does its jobs in order.
#[derive(Clone, Debug)]
pub enum FileJob {
    /// Open the file and begin from its start. The answer is [`FileReport::Opened`] or
    /// [`FileReport::Unwritten`].
    Open {
        /// The generation that writes. Every report on the file states it.
        generation: Generation,
    },
    /// Write master weights to the file, if it is open. The answer is [`FileReport::Taken`],
    /// [`FileReport::Written`] for the last shard, or [`FileReport::Unwritten`].
    Write {
        /// The shard that the values belong to.
        shard: Shard,
        /// The master weights, in f32.
        values: Shared,
    },
    /// Forget a file that is not complete.
    Close,
}

/// What the thread has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileReport {
    /// The file is open, and can take every shard.
    Opened,
    /// The file has a shard, and lacks others.
    Taken,
    /// The file is complete and durable.
    Written,
    /// The file could not be opened or written, for this reason. It is not open now.
    Unwritten(String),
}

//! A worker's sign of life, and what it tells each time.

use rkyv::{Archive, Deserialize, Serialize};

use crate::protocol::device::Telemetry;
use crate::protocol::ids::{Generation, Step, WorkerId};
use crate::protocol::step::MetricsLine;

/// A worker's sign of life.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Heartbeat {
    /// The worker that is alive.
    pub worker: WorkerId,
    /// The generation in which the worker is.
    pub generation: Generation,
    /// The number that the worker has promised, if that is higher than its generation.
    pub promised: Generation,
    /// The last step that the worker knows as committed.
    pub step: Step,
    /// Lines of settled steps that the previous answer did not call written. The step leader sends
    /// them, and so does every member after a request for its lines.
    pub lines: Vec<MetricsLine>,
    /// Peers that the worker cannot reach, or to which it has lost the connection since it entered
    /// its generation.
    pub unreachable: Vec<WorkerId>,
    /// The worker's last commit carries `hold`, and the worker has done all that follows from it.
    /// It waits.
    pub held: bool,
    /// Other members fed this worker in this generation, and its copies of all that it learns are
    /// those of its last commit.
    pub ready: bool,
    /// Bytes that the worker lacks of the shards that other members feed it, gradients of committed
    /// steps too. 0 if it lacks nothing.
    pub behind: u64,
    /// Bytes that the member has yet to read of the checkpoint that it restores. 0 if it restores
    /// none.
    pub unread: u64,
    /// The data shard that the device computes, if the device has all that it needs for one.
    pub computing: Option<ShardTime>,
    /// How long a data shard takes the device, microseconds: the mean over the last steps without
    /// the quickest and the slowest quarter. 0 until the device has computed some.
    pub shard_us: u64,
    /// How the GPU did a moment ago, if the device is a GPU that tells. The log never holds this.
    pub telemetry: Option<Telemetry>,
    /// Why the worker could not write the model's file, while it waits to try again.
    pub unwritten: Option<String>,
    /// Why the run's store does not take or give what the worker wants, while it tries again.
    pub store_error: Option<String>,
}

/// How long a device has computed a data shard, and how long it usually takes for one.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardTime {
    /// Time spent on the present data shard, milliseconds.
    pub under_way_ms: u64,
    /// Time that a data shard usually takes, milliseconds. 0 for the first after a build: no time
    /// is usual yet.
    pub usual_ms: u64,
}

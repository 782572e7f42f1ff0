//! What a coordinator tells an observer of a run: events, the cluster, the result.

// The derive does not carry the docs of variants' fields over to the archived type.
#![allow(missing_docs)]

mod checkpoint_trouble;
mod event;
pub mod event_json;
mod sentence;
mod waits;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use rkyv::{Archive, Deserialize, Serialize};

pub use self::event::{Event, EventKind, Inability};
pub use self::waits::{PausedBy, RunPause, WaitNotice, Waiting};
use super::device::{Device, Telemetry};
use super::ids::{
    DataShard, HostName, NodeName, Rank, RunId, Shard, Step, WorkerId, WorkerLabel, Zone,
};
use super::model::ModelAwaited;
use super::preemption::PreemptionNotice;
use super::reason::FailReason;
use super::step::MetricsLine;

/// What a worker is doing.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    /// Registered, and waits for its first generation.
    Waiting,
    /// Learns the state from members, and takes no part yet.
    Learning,
    /// A member of the current generation.
    Training,
    /// A member that the coordinator suspects to be gone.
    Suspected,
    /// A worker that drains.
    Leaving,
    /// Has trained the last step and reported its result, or its run is over.
    Finished,
    /// The coordinator counts it as gone.
    Lost,
    /// Has left after it drained.
    Left,
}

/// A worker that waits for a run that it can compute, or builds the model of one. It registers, and
/// gets a number, when it has built it.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Eq)]
pub struct UnregisteredWorker {
    /// The name of its node.
    pub name: NodeName,
    /// The address from which its packets come.
    pub address: Option<SocketAddr>,
}

/// A worker as the coordinator sees it.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq)]
pub struct WorkerView {
    /// The id of its registration.
    #[serde(rename = "id")]
    pub worker: WorkerId,
    /// The number that people use: 1 for the first worker of the cluster. A process keeps its
    /// number.
    pub number: u32,
    /// The name of its node.
    pub name: NodeName,
    /// The address where it listens.
    pub address: SocketAddr,
    /// Its rank in the current generation.
    pub rank: Option<Rank>,
    /// How many data shards it computes in each step.
    pub data_shards: u32,
    /// The zone of machines that may fail together with its own, if it stated one.
    pub zone: Option<Zone>,
    /// The CPU or GPU that it computes on.
    pub device: Device,
    /// How its GPU did a moment ago, if the worker is there and its GPU tells.
    pub telemetry: Option<Telemetry>,
    /// What it is doing.
    pub state: WorkerState,
    /// If the worker has to leave: the parameter shards of which no worker that stays has a copy
    /// yet.
    pub retained: u32,
    /// What its joining or leaving waits for, in words, if that takes long.
    pub waits_for: Option<String>,
    /// The name of its machine, if it has told that.
    pub host: Option<HostName>,
    /// If a cloud takes its machine back: which one, and the time that is left.
    pub preemption: Option<PreemptionNotice>,
}

impl WorkerView {
    /// The name by which people call it.
    pub fn label(&self) -> WorkerLabel {
        WorkerLabel { number: self.number, worker: self.worker, host: self.host.clone() }
    }
}

/// Validation of one data shard's part of the held-out samples.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct PartEvaluation {
    /// The part, numbered as the data shards.
    pub part: DataShard,
    /// Number of samples in the part.
    pub samples: u64,
    /// Their mean loss, nats.
    pub loss: f64,
    /// Their mean metric, if the model has one.
    pub metric: Option<f64>,
}

/// What a worker reports when it has finished.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct WorkerResult {
    /// The id of its registration.
    pub worker: WorkerId,
    /// Data shards computed, over all steps.
    pub data_shards_computed: u64,
    /// Payload bytes sent to other members.
    pub bytes_sent: u64,
    /// Payload bytes received from other members.
    pub bytes_received: u64,
    /// Seconds in forward and backward passes.
    pub compute_seconds: f64,
    /// CPU seconds of its process since it became a member.
    pub cpu_seconds: f64,
    /// Seconds in which the device waited for the network.
    pub exposed_communication_seconds: f64,
    /// Bytes of master weights and optimizer state that it holds.
    pub optimizer_bytes: u64,
    /// Largest resident set of its process, bytes.
    pub peak_rss_bytes: u64,
    /// Messages and chunks that the worker refused because they were outside its plan.
    pub refused: u64,
    /// UDP payload that the path to the peers carries, bytes: the smallest over its links.
    pub path_mtu: u64,
    /// The socket's buffer for packets that have arrived, as the kernel granted it, bytes.
    pub receive_buffer: u64,
    /// The socket's buffer for packets that have not left, as the kernel granted it, bytes.
    pub send_buffer: u64,
    /// QUIC packets lost on its links.
    pub lost_packets: u64,
    /// Steps that were computed again after a failure.
    pub steps_redone: u64,
    /// Floating-point operations that training on one sample takes at least, if its model says so.
    pub flops_per_sample: Option<u64>,
    /// The results of the validation parts that it evaluated.
    pub evaluations: Vec<PartEvaluation>,
    /// BLAKE3 of every parameter shard that it owns: step, master weights, moments.
    pub digests: Vec<(Shard, [u8; 32])>,
}

/// How far a run has got.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub enum Outcome {
    /// The run has not begun, or goes on.
    #[default]
    Running,
    /// The run is complete: the results of its workers.
    Complete(Vec<WorkerResult>),
    /// The run has failed.
    Failed {
        /// The node of the worker at fault, if a worker is at fault.
        name: Option<NodeName>,
        /// Why the run cannot go on.
        reason: FailReason,
    },
}

/// The coordinator's answer to a Watch: everything new since the numbers that the observer named.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct Update {
    /// The run that this answer is about, once there is one. If the observer named another run,
    /// that one is over, and there are no lines here.
    pub run: Option<RunId>,
    /// The newest step that the observer named. Lines follow it. A missing line is lost.
    pub step: Step,
    /// The newest event that the observer named. Events follow it.
    pub event: u64,
    /// Lines of settled steps, in order.
    pub lines: Vec<MetricsLine>,
    /// Events after the named one, in order.
    pub events: Vec<Event>,
    /// Workers by id. The first answer on a link has all workers that the coordinator tells of.
    /// Later answers have those that are new or have changed since the previous answer.
    pub workers: Vec<WorkerView>,
    /// Workers of earlier answers on this link that the coordinator no longer tells of.
    pub forgotten: Vec<WorkerId>,
    /// The workers that wait for a run, a thousand at most. While one is under way, these are the
    /// workers that cannot compute it.
    pub idle: Vec<UnregisteredWorker>,
    /// The workers that read the data and build the model of the run, a thousand at most.
    pub building: Vec<UnregisteredWorker>,
    /// Why the run's bits differ from those of other such runs, if they do: the workers' first
    /// gradients differ.
    pub divergence: Option<String>,
    /// What the run waits for, if it waits.
    pub waiting: Option<Waiting>,
    /// The owners that the run waits for: no other worker holds their parameter shards.
    pub owners_awaited: Option<WaitNotice>,
    /// What the model of a trained run waits for.
    pub model_awaited: Option<ModelAwaited>,
    /// Why workers cannot compute the run. Before the run has begun: all such workers. Afterwards:
    /// those with a reason in their own place.
    pub unable: Vec<(NodeName, String)>,
    /// Pairs of members that cannot reach each other, of which neither can be left out. No step
    /// commits before they can.
    pub unreachable: Vec<(WorkerId, WorkerId)>,
    /// How far the run has got.
    pub outcome: Outcome,
    /// Why the run is paused, if it is.
    pub paused: Option<RunPause>,
}

/// The state hash of a complete run: BLAKE3 over its last step (u64, little-endian) and the digest
/// of every parameter shard, in shard order.
///
/// It does not depend on which worker owned which shard, so it is the same for any number of
/// workers. `None` if the results are not those of one state: two owners of a shard disagree, or a
/// shard is missing between others.
pub fn state_hash(steps: u64, results: &[WorkerResult]) -> Option<[u8; 32]> {
    let mut digests = BTreeMap::new();
    for (shard, digest) in results.iter().flat_map(|result| &result.digests) {
        if digests.insert(shard, digest).is_some_and(|other| other != digest) {
            return None;
        }
    }
    let (Shard(last), _) = digests.last_key_value()?;
    let whole = *last as usize + 1 == digests.len();
    let mut hasher = blake3::Hasher::new();
    hasher.update(&steps.to_le_bytes());
    for digest in digests.values() {
        hasher.update(digest.as_slice());
    }
    whole.then(|| *hasher.finalize().as_bytes())
}

#[cfg(test)]
mod tests;

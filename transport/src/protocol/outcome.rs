//! What a coordinator tells an observer of a run: events, the cluster, the result.

// The derive does not carry the docs of variants' fields over to the archived type.
#![allow(missing_docs)]

mod checkpoint_trouble;
pub mod event_json;
mod sentence;
mod waits;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use rkyv::{Archive, Deserialize, Serialize};

pub use self::waits::{OwnersAwaited, PausedBy, RunPause, Waiting};
use super::cluster::{CoordinatorId, RunId};
use super::device::{Device, Telemetry};
use super::generation::Cause;
use super::ids::{
    DataShard, Generation, HostName, NodeName, Rank, Shard, Step, Term, WorkerId, WorkerLabel, Zone,
};
use super::model::{ModelAwaited, ModelPlace, WriteFailure};
use super::reason::{
    FailReason, LossReason, PauseReason, RollbackReason, StandstillReason, UnsavedReason, as_words,
};
use super::rejection::Rejection;
use super::step::MetricsLine;

/// One line of `events.jsonl`.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Event {
    /// The event's number, from 1.
    pub number: u64,
    /// Wall clock of the coordinator, milliseconds of Unix time.
    pub unix_ms: u64,
    /// The kind of event, with its details.
    pub kind: EventKind,
}

/// What happened. Files of older formats hold the variants by their order: a new variant comes
/// last.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// An operator submitted a run.
    Submitted {
        /// The name in the run's specification.
        run: String,
    },
    /// A worker registered for the run.
    Registered {
        /// The id of its registration.
        worker: WorkerId,
        /// The name of its node.
        name: NodeName,
        /// The number that people use: 1 for the first worker of the cluster. A process keeps its
        /// number.
        #[serde(rename = "worker_number")]
        number: u32,
    },
    /// The coordinator refused a worker.
    Refused {
        /// The name of the worker's node.
        name: NodeName,
        /// The reason. JSON has its sentence.
        #[serde(serialize_with = "as_words")]
        reason: Rejection,
    },
    /// A coordinator leads from now on. Only it makes changes.
    Leading {
        /// The term in which it leads.
        term: Term,
        /// The id of the new leader.
        coordinator: CoordinatorId,
    },
    /// A generation began.
    Generation {
        /// The number of the new generation.
        generation: Generation,
        /// The cause of the change.
        cause: Cause,
        /// The generation's members, in rank order.
        workers: Vec<WorkerId>,
        /// The last step that is part of the generation's history.
        at_step: Step,
        /// The change interrupted a step. The new generation does that step again.
        redone: bool,
        /// The generation starts no step: it has fewer members than the run needs, the run is
        /// paused, or all of its workers are to leave.
        waiting: bool,
        /// Runs of parameter shards with fewer owners than the run asks for: the first shard, and
        /// how many.
        under_protected: Vec<(Shard, u32)>,
    },
    /// A worker became a member of a run that was under way.
    Joined {
        /// The id of its registration.
        worker: WorkerId,
    },
    /// A worker was asked to leave.
    Draining {
        /// The id of its registration.
        worker: WorkerId,
    },
    /// A worker has left.
    Left {
        /// The id of its registration.
        worker: WorkerId,
    },
    /// The coordinator counts a worker as gone.
    Lost {
        /// The id of its registration.
        worker: WorkerId,
        /// How the coordinator noticed it. JSON has its sentence.
        #[serde(serialize_with = "as_words")]
        reason: LossReason,
        /// From the worker's last sign of life until the coordinator noticed its loss,
        /// milliseconds.
        detect_ms: u64,
        /// From that notice until this event, milliseconds. The coordinator needed this time to
        /// hear what the survivors had to say.
        pause_ms: u64,
    },
    /// Two members cannot reach each other, and each holds parameter shards that no other member
    /// has. So neither can be left out. The event comes once for each pair.
    Unreachable {
        /// The two members that cannot reach each other.
        workers: (WorkerId, WorkerId),
    },
    /// Every owner of a parameter shard was lost. The run went back.
    Rollback {
        /// The last step that was committed.
        from: Step,
        /// The step of the checkpoint from which the run goes on. 0 is the initial state.
        to: Step,
        /// Which parameter shards were lost, and which workers owned them. JSON has its sentence.
        #[serde(serialize_with = "as_words")]
        reason: RollbackReason,
    },
    /// An operator went on from the directory of one coordinator, since most of the coordinators
    /// were lost for good. Log entries that only the lost ones had are gone.
    Recovered {
        /// The coordinator that the cluster goes on with.
        coordinator: CoordinatorId,
    },
    /// A worker cannot compute the run. It waits for the next run, or tries again.
    Unable {
        /// The name of the worker's node.
        name: NodeName,
        /// The reason in words for the user.
        reason: String,
        /// Whether the reason lies in the run or in the worker's place.
        inability: Inability,
    },
    /// A worker could not write the model's file. The run waits until a worker has written it.
    Unwritten {
        /// The worker that tried, the file, and why the write failed.
        #[serde(flatten)]
        failure: WriteFailure,
    },
    /// No worker of the run has a directory to write the model to.
    NoStore,
    /// No process has the metrics lines of these steps any more. Reports go on without them.
    LinesLost {
        /// The first step without a line.
        from: Step,
        /// The last step without a line.
        to: Step,
    },
    /// The run is complete.
    Complete {
        /// The run's last step.
        step: Step,
        /// The place where the run's model is durable.
        model: Option<ModelPlace>,
    },
    /// The run has failed.
    Failed {
        /// The reason. JSON has its sentence.
        #[serde(serialize_with = "as_words")]
        reason: FailReason,
    },
    /// No device of the run gets on, so no other worker could take the place of one. The event
    /// comes once, until a device has gone on.
    Standstill {
        /// Which worker's device has computed one data shard, and for how long.
        #[serde(serialize_with = "as_words")]
        reason: StandstillReason,
    },
    /// A checkpoint is complete: the run can go on from it.
    Checkpoint {
        /// The step of the saved state.
        step: Step,
        /// The bytes of all of its files.
        bytes: u64,
        /// How long the slowest worker wrote its part, seconds.
        seconds: f64,
        /// The state hash at its step, hexadecimal.
        state_hash: String,
    },
    /// A checkpoint that was due, or asked for, was not written. Training went on, or the run
    /// paused: its specification says which.
    CheckpointFailed {
        /// The step that was not saved.
        step: Step,
        /// The reason. JSON has its sentence.
        #[serde(serialize_with = "as_words")]
        reason: UnsavedReason,
    },
    /// A checkpoint cannot be restored. The run goes back to an older one.
    CheckpointDamaged {
        /// The step of the damaged checkpoint.
        step: Step,
        /// The file, the shard, and what is wrong.
        reason: String,
        /// Whether none of the run's checkpoints can be restored now.
        is_last: bool,
    },
    /// A checkpoint was due while an earlier one was still being written, and is not written. The
    /// event comes of the first, until a checkpoint was written without one skipped before it.
    CheckpointSkipped {
        /// The step that was not saved.
        step: Step,
        /// The step of the checkpoint that was being written.
        earlier: Step,
    },
    /// Several checkpoints were skipped, one after the other, and none is any more.
    CheckpointsSkipped {
        /// The step of the first.
        from: Step,
        /// The step of the last.
        to: Step,
        /// How many were skipped from the first to the last.
        count: u64,
    },
    /// Checkpoints are written again, after several that were not.
    CheckpointsResumed {
        /// The step of the first that was not written.
        from: Step,
        /// The step of the last that was not written.
        to: Step,
        /// How many were due from the first to the last.
        count: u64,
    },
    /// The run is to pause: it starts no step until an operator resumes it.
    Paused {
        /// What asked for it.
        by: PausedBy,
        /// The reason. JSON has its sentence.
        #[serde(serialize_with = "as_words")]
        reason: PauseReason,
    },
    /// An operator lets a paused run go on.
    Resumed,
    /// The state after this step is saved, although the step may not be due: an operator asked for
    /// it, the run pauses, or its last workers leave.
    CheckpointRequested {
        /// The step that will be saved.
        step: Step,
    },
    /// The run goes on from a checkpoint that another cluster has written.
    Continued {
        /// The step of that checkpoint's state.
        step: Step,
    },
    /// The run starts no step until owners of parameter shards answer. One event begins the wait.
    Waiting {
        /// The shards, the owners, why they do not answer, and the step of an operator's rollback.
        #[serde(flatten)]
        awaited: OwnersAwaited,
    },
    /// The wait for owners of parameter shards is over: they have answered, or are given up.
    WaitingOver {
        /// The owners that the run waited for in the end, by id.
        owners: Vec<WorkerId>,
        /// How long the run waited, milliseconds.
        waited_ms: u64,
    },
}

/// Where the reason lies that a worker cannot compute a run.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Inability {
    /// In the run: the reason would recur on every worker.
    Run,
    /// In the worker's place, such as a lack of memory. The worker tries again, and another worker
    /// may be able to compute the run meanwhile.
    Place,
}

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

/// A worker that waits for a run. It registers, and gets a number, when there is one.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Eq)]
pub struct IdleWorker {
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
    /// Socket buffers as the kernel granted them, bytes: receive, then send.
    pub socket_buffers: (u64, u64),
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
        /// The reason.
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
    /// The workers that wait for a run, a thousand at most.
    pub idle: Vec<IdleWorker>,
    /// Why the run's bits differ from those of other such runs, if they do: the workers' first
    /// gradients differ.
    pub divergence: Option<String>,
    /// What the run waits for, if it waits.
    pub waiting: Option<Waiting>,
    /// The owners that the run waits for: no other worker holds their parameter shards.
    pub owners_awaited: Option<OwnersAwaited>,
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

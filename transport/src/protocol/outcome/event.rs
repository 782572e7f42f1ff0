//! The events of a run and of its cluster, as values.

// The derive does not carry the docs of variants' fields over to the archived type.
#![allow(missing_docs)]

use rkyv::{Archive, Deserialize, Serialize};

use super::{PausedBy, WaitNotice};
use crate::protocol::generation::Cause;
use crate::protocol::ids::{CoordinatorId, Generation, NodeName, Shard, Step, Term, WorkerId};
use crate::protocol::model::{ModelPlace, WriteFailure};
use crate::protocol::preemption::PreemptionNotice;
use crate::protocol::reason::{
    FailReason, LossReason, PauseReason, RollbackReason, StandstillReason, UnableReason,
    UnsavedReason, as_hex, as_words,
};
use crate::protocol::rejection::Rejection;

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
    /// A generation began: these members train from now on.
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
        /// The reason. JSON has its sentence.
        #[serde(serialize_with = "as_words")]
        reason: UnableReason,
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
        /// Which worker's device has been at one data shard or update, and for how long.
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
        /// The state hash at its step. JSON has it in hexadecimal.
        #[serde(serialize_with = "as_hex")]
        state_hash: [u8; 32],
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
        awaited: WaitNotice,
    },
    /// The wait for owners of parameter shards is over: they have answered, or are given up.
    WaitingOver {
        /// The owners that the run waited for in the end, by id.
        owners: Vec<WorkerId>,
        /// How long the run waited, milliseconds.
        waited_ms: u64,
    },
    /// A cloud takes a worker's machine back, so the worker has to leave.
    Preempted {
        /// The id of its registration.
        worker: WorkerId,
        /// The cloud, and the time that it leaves to the worker.
        #[serde(flatten)]
        notice: PreemptionNotice,
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

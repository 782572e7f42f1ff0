//! What the checkers see.

use std::collections::BTreeSet;
use std::fmt;

use everstep_transport::protocol::outcome::Event;
use everstep_transport::protocol::step::Contribution;
use everstep_transport::protocol::{
    CheckpointId, Chunk, Commit, CoordinatorId, Generation, HistoryEntry, LossScale, MetricsLine,
    ModelPlace, Record, Shard, Step, Term, WorkerId,
};

use super::{QueueKind, ReceiverState, TokenAnswer, TokenRequest};

/// An event that a checker needs.
#[derive(Clone, Copy, Debug)]
pub enum Observation<'a> {
    /// A coordinator leads in this term: its place, and the number of its life.
    Leads((usize, u64), Term),
    /// A coordinator has applied this entry: its index, its term, its bytes.
    Applied(u64, Term, &'a [u8]),
    /// A coordinator that has applied the log up to this index has this state.
    Stands(u64, &'a [u8]),
    /// The log lists these coordinators since this entry.
    Listed(u64, &'a [CoordinatorId]),
    /// A coordinator ends, since the others do without it.
    Dismissed(CoordinatorId),
    /// An entry of the log has brought this to a coordinator's history.
    Brought(&'a HistoryEntry),
    /// A coordinator tells a worker that it is lost.
    Evicted(WorkerId),
    /// The leader asks for promises of this number.
    Paused(Generation),
    /// A worker has promised this number to the coordinator of this term.
    Promised(WorkerId, Term, Generation),
    /// A leader proposes a generation.
    Proposed(&'a Record),
    /// The log has a generation's record, in this term. For a rollback, also its grounds: all
    /// members before it that are gone in truth, or that were silent for too long.
    Recorded(&'a Record, Term, Option<&'a BTreeSet<WorkerId>>),
    /// Time passes. The flag says whether coordinator and members can serve a Pause.
    Passes(bool),
    /// A worker has become a member, with this last commit.
    Entered(WorkerId, &'a Record, Step),
    /// A worker is gone, or has discarded all its state.
    Gone(WorkerId),
    /// A worker sends a message to another one in this generation.
    Said(WorkerId, Generation),
    /// A device begins with the gradients of a step, with this loss scale.
    Began(WorkerId, Step, LossScale),
    /// A device that has entered this generation has computed a data shard of this step.
    Computed(WorkerId, (Generation, Step), &'a Contribution),
    /// A member has learned, or decided, that a step is committed.
    Committed(WorkerId, &'a Commit),
    /// A worker shows its last commit, as an answer to a Pause.
    Shown(WorkerId, &'a Commit),
    /// A member of this generation takes this step, and all before, for settled.
    Settled(WorkerId, (Generation, Step)),
    /// The log lists a checkpoint.
    Checkpoint(CheckpointId),
    /// All members of the current generation have left. The log lists these checkpoints.
    LeftTogether(&'a BTreeSet<CheckpointId>),
    /// A fault has damaged a checkpoint in the store.
    Torn(CheckpointId),
    /// Another cluster has claimed the store of the run.
    Outdone,
    /// A device has entered a generation that resumes at this step, and owns these shards.
    Holds(WorkerId, &'a [(Shard, Step, u64)], Step),
    /// A device has a job to make a version of a shard.
    Given(WorkerId, Shard, Step),
    /// A worker holds a new version of a shard. The flag says whether its device is in its core's
    /// generation.
    Updated(WorkerId, ShardCopy<'a>, bool),
    /// A primary hands out the computing parameters.
    Shared(WorkerId, ShardCopy<'a>),
    /// A device gets a version of a shard that another worker has sent.
    Offered(WorkerId, ShardCopy<'a>),
    /// A device has restored that version.
    Restored(WorkerId, ShardCopy<'a>),
    /// A member computes with another's new version of a shard.
    Loaded(WorkerId, ShardCopy<'a>),
    /// An operator asks a question.
    Asked(u64, TokenRequest),
    /// The operator has its answer.
    Answered(u64, TokenAnswer),
    /// A watcher has heard of an event.
    Told(&'a Event),
    /// A watcher has received a line.
    Written(&'a MetricsLine),
    /// The model is complete and durable at this place.
    Durable(&'a ModelPlace),
    /// A worker refused a message that was meant for it.
    Refused(fmt::Arguments<'a>),
    /// A worker in this state takes a chunk.
    Admitted(WorkerId, &'a Chunk, ReceiverState),
    /// The length of a queue of this kind.
    Queued(QueueKind, usize),
    /// A fault has changed a worker's memory. Its copies may differ from now on.
    Corrupted(WorkerId),
}

/// One version of one parameter shard.
#[derive(Clone, Copy, Debug)]
pub struct ShardCopy<'a> {
    /// The step that made it.
    pub version: Step,
    /// The parameter shard that the copy is of.
    pub shard: Shard,
    /// The digest of master weights and moments. None for a worker that only computes with the
    /// shard.
    pub digest: Option<u64>,
    /// The computing parameters, if the observer sees them.
    pub parameters: Option<&'a [f32]>,
}

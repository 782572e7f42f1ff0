//! What the checkers see.

use std::collections::BTreeSet;
use std::fmt;

use everstep_transport::protocol::outcome::Event;
use everstep_transport::protocol::step::Contribution;
use everstep_transport::protocol::{
    Chunk, Commit, CoordinatorId, Frame, Generation, LossScale, MetricsLine, ModelPlace, Record,
    Shard, Step, Term, WorkerId,
};

use super::{Answer, Call, Standing};

/// Something that a checker wants to know of.
#[derive(Clone, Copy, Debug)]
pub enum Observation<'a> {
    /// A coordinator leads in this term: its place, and how often it was started.
    Leads((usize, u64), Term),
    /// A coordinator has applied this entry: its index, its term, what it says.
    Applied(u64, Term, &'a [u8]),
    /// A coordinator that has applied the log up to this index has this state.
    Stands(u64, &'a [u8]),
    /// The log lists these coordinators since this entry.
    Listed(u64, &'a [CoordinatorId]),
    /// A coordinator ends, since the others do without it.
    Dismissed(CoordinatorId),
    /// What an entry has brought to a coordinator's history.
    Brought(&'a Frame),
    /// A coordinator tells a worker that it is lost.
    Evicted(WorkerId),
    /// The coordinator that leads asks for promises of this number.
    Paused(Generation),
    /// A worker has promised this number to the coordinator of this term.
    Promised(WorkerId, Term, Generation),
    /// The coordinator proposes a generation.
    Proposed(&'a Record),
    /// The log has come to a generation in this term; with whose loss it is a rollback, if it is
    /// one: all of the members before who are gone in truth, or have been unheard for too long.
    Recorded(&'a Record, Term, Option<&'a BTreeSet<WorkerId>>),
    /// Time passes: whether coordinator and members are able to serve a Pause.
    Passes(bool),
    /// A worker became a member, with this last commit.
    Entered(WorkerId, &'a Record, Step),
    /// A worker is gone, or has discarded all its state.
    Gone(WorkerId),
    /// A worker says something to another in this generation.
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
    /// A device has entered a generation that resumes at this step, and owns these shards.
    Holds(WorkerId, &'a [(Shard, Step, u64)], Step),
    /// A device is to make a version of a shard.
    Given(WorkerId, Shard, Step),
    /// A worker holds a new version of a shard; whether its device is in its core's generation.
    Updated(WorkerId, Copy<'a>, bool),
    /// A primary hands out what is computed with.
    Shared(WorkerId, Copy<'a>),
    /// A device is given a version of a shard that another worker has sent.
    Offered(WorkerId, Copy<'a>),
    /// It has taken it on.
    Restored(WorkerId, Copy<'a>),
    /// A member computes with another's new version of a shard.
    Loaded(WorkerId, Copy<'a>),
    /// An operator asks for something.
    Asked(u64, Call),
    /// It is answered.
    Answered(u64, Answer),
    /// A watcher was told of an event.
    Told(&'a Event),
    /// A watcher was told a line.
    Written(&'a MetricsLine),
    /// The model is complete and durable at this place.
    Durable(&'a ModelPlace),
    /// Somebody refused something that was meant for it.
    Refused(fmt::Arguments<'a>),
    /// A worker that stands so takes a chunk.
    Admitted(WorkerId, &'a Chunk, Standing),
    /// So many wait in a queue of this kind.
    Queued(&'static str, usize),
    /// The memory of a worker is not what it should be: its copies may differ from now on.
    Corrupted(WorkerId),
}

/// One version of one parameter shard.
#[derive(Clone, Copy, Debug)]
pub struct Copy<'a> {
    /// The step that made it.
    pub version: Step,
    /// The shard.
    pub shard: Shard,
    /// The digest of master weights and moments; none for who only computes with it.
    pub digest: Option<u64>,
    /// What is computed with, where it is to be seen.
    pub parameters: Option<&'a [f32]>,
}

//! What goes into the worker's core and what comes out of it.

use everstep_kernels::buffer::{Buffer, Shared};
use everstep_kernels::reduce::Node;
use everstep_transport::protocol::message::Registration;
use everstep_transport::protocol::outcome::PartEvaluation;
use everstep_transport::protocol::step::Contribution;
use everstep_transport::protocol::{
    Chunk, Commit, DataShard, Generation, Message, Record, RunSpec, Shard, Step, WorkerId,
};

/// Something happened.
#[derive(Debug)]
pub enum Input {
    /// The link to the coordinator is up.
    Start,
    /// The coordinator said something.
    Coordinator(Message),
    /// The link to the coordinator is gone.
    CoordinatorLost(String),
    /// The run's model and data are built.
    Built(Built),
    /// They could not be.
    BuildFailed(String),
    /// Another member said something.
    Peer {
        /// Who.
        from: WorkerId,
        /// What.
        message: Message,
    },
    /// The link to another member is gone, or never came up.
    PeerLost {
        /// Who.
        from: WorkerId,
        /// Why.
        reason: String,
    },
    /// A tensor chunk that was admitted has arrived whole.
    Piece {
        /// From whom.
        from: WorkerId,
        /// Its header.
        chunk: Chunk,
        /// Its elements.
        values: Buffer,
    },
    /// A chunk of another worker was outside the plan, and skipped; or an unknown node was refused.
    Refused,
    /// The device has done something.
    Device(Report),
    /// Time passes.
    Tick,
}

/// What the core wants done.
#[derive(Debug)]
pub enum Effect {
    /// Say this to the coordinator.
    Tell(Message),
    /// Say this to another member.
    Send {
        /// To whom.
        to: WorkerId,
        /// What.
        message: Message,
    },
    /// Put this on a bulk stream: one stream for each peer, lane and step.
    Stream {
        /// To whom.
        to: WorkerId,
        /// On which lane.
        lane: Lane,
        /// The step that names the stream.
        step: Step,
        /// What.
        parcel: Parcel,
    },
    /// Build the run's model and data; answer with [`Input::Built`].
    Build(RunSpec),
    /// A generation begins: connect to its members, and to no one else.
    Enter(Record),
    /// Give the device a job.
    Device(Job),
    /// The worker's process ends.
    Exit(Exit),
}

/// Independent orders of pieces: one that waits holds up only its own lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Partial sums, to primaries.
    Partials,
    /// Reduced shards, from a primary to its backups.
    Reduced,
    /// New parameters, from primaries; each stream begins with the commit of its step.
    Parameters,
    /// Master weights, to the member that writes the model.
    Masters,
}

impl Lane {
    /// All lanes.
    pub const ALL: [Self; 4] = [Self::Partials, Self::Reduced, Self::Parameters, Self::Masters];
}

/// One thing on a bulk stream.
#[derive(Clone, Debug)]
pub enum Parcel {
    /// A commit, at the head of a stream of parameters.
    Commit(Commit),
    /// A piece of a tensor.
    Tensor {
        /// Its header.
        chunk: Chunk,
        /// Its elements.
        values: Shared,
    },
}

/// How the worker's process ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The run is over.
    Dismissed,
    /// The coordinator refused the worker.
    Refused(String),
    /// The worker cannot go on.
    Failed(String),
}

/// What a receiver does with a chunk whose header has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Read the body.
    Take,
    /// Leave the body where it is and ask again when the core has moved on.
    Wait,
    /// Skip the body: it is old, or outside the plan.
    Drop,
}

/// What building the model and data found.
#[derive(Clone, Debug)]
pub struct Built {
    /// What the worker registers with.
    pub registration: Registration,
    /// Targets that one step trains on.
    pub tokens_per_step: u64,
}

/// Work for the device, done in order.
#[derive(Debug)]
pub enum Job {
    /// A generation begins at version 0: initialise parameters and the owned shards' state. Each
    /// owned shard is reported [`Report::Updated`] at version 0.
    Enter {
        /// Its number.
        generation: Generation,
        /// Data shards to compute in every step, ascending.
        data_shards: Vec<DataShard>,
        /// The subtrees of the reduction that these data shards make up.
        subtrees: Vec<Node>,
        /// Parameter shards to hold, each with whether this worker is its primary.
        owned: Vec<(Shard, bool)>,
    },
    /// Forward and backward of every data shard, with the parameters of version `step - 1`.
    Gradient {
        /// The step.
        step: Step,
    },
    /// Parameters have arrived.
    Load {
        /// Their shard.
        shard: Shard,
        /// Their version.
        version: Step,
        /// The values to compute with.
        values: Buffer,
    },
    /// Apply a committed step to an owned shard; answered with [`Report::Updated`].
    Update {
        /// The shard.
        shard: Shard,
        /// The committed step.
        step: Step,
        /// Its global gradient norm.
        norm: f64,
        /// The number of this update in the run's history, from 1.
        update: u64,
        /// The reduced gradient.
        gradient: Shared,
    },
    /// A step was committed without an update: relabel all that is held.
    Skip {
        /// The committed step.
        step: Step,
    },
    /// The last step is done: validate, digest the owned shards, hand out the primaries' masters.
    Finish {
        /// The version that all parameters must have.
        version: Step,
    },
    /// Write master weights to the model's file.
    Write {
        /// Their shard.
        shard: Shard,
        /// The values.
        values: Shared,
    },
}

/// What the device has done.
#[derive(Debug)]
pub enum Report {
    /// One parameter shard of one subtree's gradient is final.
    Partial {
        /// The step.
        step: Step,
        /// The parameter shard.
        shard: Shard,
        /// The subtree.
        node: Node,
        /// Its sum; nobody writes it again.
        sum: Shared,
    },
    /// A data shard is computed.
    Computed {
        /// The step.
        step: Step,
        /// Its loss and samples.
        contribution: Contribution,
        /// How long it took, without waiting, seconds.
        seconds: f64,
    },
    /// An owned shard has a new version.
    Updated {
        /// The version.
        version: Step,
        /// The shard.
        shard: Shard,
        /// Digest of master weights and moments.
        digest: u64,
        /// What others compute with, if this worker is primary and the values changed.
        parameters: Option<Shared>,
    },
    /// Master weights of a shard of which this worker is primary, at the end.
    Exported {
        /// The shard.
        shard: Shard,
        /// The values.
        values: Shared,
    },
    /// All that [`Job::Finish`] asked for is done.
    Finished(Summary),
    /// The model's file is complete and durable.
    Written,
    /// The device cannot go on.
    Failed(String),
}

/// What the device knows at the end.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Validation of this worker's parts.
    pub evaluations: Vec<PartEvaluation>,
    /// BLAKE3 of each owned shard's step, master weights and moments.
    pub digests: Vec<(Shard, [u8; 32])>,
    /// Data shards computed.
    pub data_shards_computed: u64,
    /// Seconds in forward and backward.
    pub compute_seconds: f64,
    /// Seconds of training in which the device waited for others.
    pub exposed_seconds: f64,
    /// Bytes of master weights and moments.
    pub optimizer_bytes: u64,
}

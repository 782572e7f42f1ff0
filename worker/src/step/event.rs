//! What goes into the worker's core and what comes out of it.

use std::net::SocketAddr;
use std::sync::Arc;

use everstep_kernels::buffer::{Buffer, Shared};
use everstep_kernels::reduce::Node;
use everstep_transport::protocol::message::Registration;
use everstep_transport::protocol::outcome::{Inability, PartEvaluation};
use everstep_transport::protocol::step::Contribution;
use everstep_transport::protocol::{
    Chunk, CoordinatorView, DataShard, Generation, LossScale, Message, NodeName, Record, RunSpec,
    Shard, Step, WorkerId,
};

/// A link to a coordinator. A number is used once: another link to the same coordinator has
/// another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// Something happened.
#[derive(Debug)]
pub enum Input {
    /// A link to a coordinator is up.
    CoordinatorUp {
        /// The link.
        link: LinkId,
        /// The name in the coordinator's certificate.
        name: NodeName,
    },
    /// A coordinator said something.
    Coordinator {
        /// On which link.
        link: LinkId,
        /// What.
        message: Message,
    },
    /// A link to a coordinator is gone; the shell looks for another one.
    CoordinatorLost {
        /// The link.
        link: LinkId,
    },
    /// No coordinator at all could be reached for longer than a worker waits that is not
    /// registered; the shell goes on looking for them.
    CoordinatorGone(String),
    /// Leave the run, in good order if there is time.
    Drain,
    /// The time for leaving in good order is over, or the operator insists: leave as things stand.
    DrainOverdue,
    /// The run's model and data are built.
    Built(Built),
    /// They could not be.
    BuildFailed {
        /// Where the reason lies.
        inability: Inability,
        /// Why, in words for the user.
        reason: String,
    },
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
    /// Everything else that had come has had its turn: what [`Effect::GoOn`] put off is due.
    GoOn,
    /// Time passes.
    Tick,
}

/// What the core wants done.
#[derive(Debug)]
pub enum Effect {
    /// Say this to a coordinator.
    Tell {
        /// On which link.
        link: LinkId,
        /// What.
        message: Message,
    },
    /// These are the coordinators, as far as is known: hold a link to each of them, and to no
    /// other.
    Coordinators(Vec<CoordinatorView>),
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
    /// Build the run's model and data, after dropping any device and every link to other workers;
    /// answer with [`Input::Built`]. What an earlier device still reports counts no more. Each
    /// build is another incarnation.
    Build(RunSpec),
    /// A generation begins, for a member or a learner: connect to its members, and to no one else.
    /// What is queued for members is dropped, and streams under way are given up.
    Enter(Record),
    /// A learner is fed from now on: let it in, as another one to talk to in this generation. Or a
    /// member that this learner has lost lets it in again. Where there is no link, another one is
    /// due, and what waits for the one before is dropped.
    Meet {
        /// Its id.
        worker: WorkerId,
        /// The name in its certificate.
        name: NodeName,
        /// Where it listens.
        address: SocketAddr,
    },
    /// Give the device a job.
    Device(Job),
    /// There is more to do than an input should take: let links and other inputs have their turn,
    /// and then give [`Input::GoOn`].
    GoOn,
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
    /// Reduced shards, from a primary to a worker that learns them: no step waits for these.
    Learned,
    /// New parameters, from primaries; each stream begins with the commit of its step.
    Parameters,
    /// Master weights, to the member that writes the model.
    Masters,
    /// Parameters of the resume version, to members that asked for them.
    Resumed,
    /// Master weights and moments, to learners; each shard's begin with [`Message::State`].
    States,
}

impl Lane {
    /// All lanes.
    pub const ALL: [Self; 7] = [
        Self::Partials,
        Self::Reduced,
        Self::Learned,
        Self::Parameters,
        Self::Masters,
        Self::Resumed,
        Self::States,
    ];
}

/// One thing on a bulk stream.
#[derive(Clone, Debug)]
pub enum Parcel {
    /// A message in the order of the stream: a commit at the head of parameters, or the head of a
    /// shard's state.
    Message(Box<Message>),
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
    /// It was told to drain, and has left.
    Drained,
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

/// Where the state of a generation's shards comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// From the seed: version 0 of everything. Whatever was held, or under way, is void.
    Seed,
    /// It is held already.
    Held,
}

/// What is to be computed in a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// The data shards, ascending.
    pub data_shards: Vec<DataShard>,
    /// The subtrees of the reduction that these data shards make up.
    pub subtrees: Vec<Node>,
}

/// Work for the device, done in order. While a pass computes, [`Job::Share`] and [`Job::Export`]
/// are done beside it unless a job before them concerns their shards; while it waits for
/// parameters, [`Job::Load`], [`Job::Share`] and [`Job::Export`] are done at once, and so are
/// [`Job::Update`] and [`Job::Restore`] as long as nothing is put off before them. A
/// [`Job::Enter`] from the seed ends the pass and voids what was put off; a job that follows from
/// the commit of the pass's own step ends the pass and voids what was to be computed of that step.
/// All else waits for its end.
#[derive(Debug)]
pub enum Job {
    /// A generation begins. Answered with [`Report::Entered`]; what was reported before it is of
    /// the generation before.
    Enter {
        /// Its number.
        generation: Generation,
        /// Where the state comes from.
        origin: Origin,
        /// Parameter shards to hold, ascending, each with whether this worker is its primary. From
        /// [`Origin::Held`] all of them are there.
        owned: Vec<(Shard, bool)>,
        /// Shards that are being learned: kept if they are there. All others are dropped.
        learned: Vec<Shard>,
    },
    /// Forward and backward of these data shards, with the parameters of version `step - 1`.
    Gradient {
        /// The step.
        step: Step,
        /// What its loss is multiplied by; what is reported of its gradients is not.
        scale: LossScale,
        /// What to compute: all that the plan assigns, or what a redo of the step lacks.
        work: Arc<Work>,
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
    /// Apply a committed step to a shard that is held, owned or learned; answered with
    /// [`Report::Updated`].
    Update {
        /// The shard.
        shard: Shard,
        /// The committed step.
        step: Step,
        /// Its global gradient norm.
        norm: f64,
        /// The number of this update in the run's history, from 1.
        update: u64,
        /// The reduced gradient; none where the step was skipped, and the shard is only relabelled.
        gradient: Option<Gradient>,
    },
    /// A step was committed without an update: relabel all parameters that are computed with.
    Skip {
        /// The committed step.
        step: Step,
    },
    /// Hand out what is computed with of shards of which this worker is primary; answered with
    /// [`Report::Shared`].
    Share {
        /// Who asked.
        to: WorkerId,
        /// The shards.
        shards: Vec<Shard>,
    },
    /// Hand out master weights and moments; answered with a [`Report::State`] for each shard.
    Export {
        /// Who asked.
        to: WorkerId,
        /// The shards, all owned.
        shards: Vec<Shard>,
    },
    /// Take on a shard as another owner has it; answered with [`Report::Restored`].
    Restore {
        /// The shard.
        shard: Shard,
        /// The version.
        version: Step,
        /// The digest that it must have.
        digest: u64,
        /// Master weights, then moments.
        parts: Vec<Buffer>,
    },
    /// The last step is done: validate, digest the owned shards. In a generation that begins after
    /// the last step it is done anew.
    Finish {
        /// The version that all parameters must have.
        version: Step,
        /// The data shards whose parts of the held-out samples are this worker's to validate.
        data_shards: Vec<DataShard>,
    },
    /// Hand out the master weights of which this worker is primary, for the member that writes the
    /// model's file; answered with a [`Report::Exported`] for each shard.
    Masters {
        /// The member that asked.
        to: WorkerId,
    },
    /// Begin the model's file, or begin it anew; answered with [`Report::Opened`] or
    /// [`Report::Unwritten`].
    Open,
    /// Write master weights to the model's file, if it is open.
    Write {
        /// Their shard.
        shard: Shard,
        /// The values.
        values: Shared,
    },
}

/// A reduced gradient on its way to what it is applied to.
#[derive(Clone, Debug)]
pub struct Gradient {
    /// One parameter shard.
    pub values: Shared,
    /// What its primary made of it: the device tells by it whether they have changed since.
    pub digest: u64,
}

impl Gradient {
    /// One that has come.
    pub(super) fn received(chunk: &Chunk, values: Buffer) -> Self {
        Self { values: Shared::new(values), digest: chunk.digest }
    }
}

/// What the device has done.
#[derive(Debug)]
pub enum Report {
    /// The device has entered a generation.
    Entered {
        /// Which.
        generation: Generation,
        /// The owned shards, each with its version and its digest.
        owned: Vec<(Shard, Step, u64)>,
    },
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
        /// How long its samples took to load, beside other data shards or not, seconds.
        load_seconds: f64,
    },
    /// A shard that is held has a new version.
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
    /// What is computed with of a shard, for who asked.
    Shared {
        /// Who asked.
        to: WorkerId,
        /// The version.
        version: Step,
        /// The shard.
        shard: Shard,
        /// The values.
        values: Shared,
    },
    /// A shard as this worker holds it, for who asked.
    State {
        /// Who asked.
        to: WorkerId,
        /// The version.
        version: Step,
        /// The shard.
        shard: Shard,
        /// Its digest.
        digest: u64,
        /// Master weights, then moments.
        parts: Vec<Shared>,
    },
    /// A shard was taken on, or its bits are not those of the digest, and it was not.
    Restored {
        /// The version.
        version: Step,
        /// The shard.
        shard: Shard,
        /// Whether it was taken on.
        intact: bool,
    },
    /// Master weights of a shard of which this worker is primary, at the end.
    Exported {
        /// The member that writes the model's file.
        to: WorkerId,
        /// The shard.
        shard: Shard,
        /// The values.
        values: Shared,
    },
    /// All that [`Job::Finish`] asked for is done.
    Finished(Summary),
    /// The model's file is open, and takes every shard.
    Opened,
    /// The model's file could not be opened or written, for this reason, and is not open any more.
    Unwritten(String),
    /// The model's file is complete and durable.
    Written,
    /// The run cannot be computed, for a reason that would recur on every worker.
    Unable(String),
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
    /// Floating-point operations that training on one sample takes at least, if the model says so.
    pub flops_per_sample: Option<u64>,
}

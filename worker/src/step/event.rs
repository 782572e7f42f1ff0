//! The inputs and the outputs of the worker's core.

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

/// A link to a coordinator. The shell uses a number once: a second link to the same coordinator has
/// a new number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// An input of the core: something happened.
#[derive(Debug)]
pub enum Input {
    /// A link to a coordinator is up.
    CoordinatorUp {
        /// The link.
        link: LinkId,
        /// The name in the coordinator's certificate.
        name: NodeName,
    },
    /// A coordinator sent a message.
    Coordinator {
        /// The link that it came on.
        link: LinkId,
        /// The message.
        message: Message,
    },
    /// A link to a coordinator is gone. The shell dials the coordinator again.
    CoordinatorLost {
        /// The link.
        link: LinkId,
    },
    /// The shell could not reach any coordinator for longer than an unregistered worker waits. The
    /// shell keeps trying.
    CoordinatorGone(String),
    /// The worker shall leave the run, in good order if there is time.
    Drain,
    /// The time for leaving in good order is over, or the operator insists: the worker leaves now.
    DrainOverdue,
    /// The run's model and data are built.
    Built(Built),
    /// The run's model or data could not be built.
    BuildFailed {
        /// Whether the reason lies in the run or in this worker's place.
        inability: Inability,
        /// The reason in words for the user.
        reason: String,
    },
    /// Another worker of the run sent a message.
    Peer {
        /// The sender.
        from: WorkerId,
        /// The message.
        message: Message,
    },
    /// The link to another member is gone, or never came up.
    PeerLost {
        /// The member at the other end.
        from: WorkerId,
        /// Why the link is gone.
        reason: String,
    },
    /// A tensor chunk that the core admitted has arrived whole.
    Chunk {
        /// The sender.
        from: WorkerId,
        /// Its header.
        chunk: Chunk,
        /// Its elements.
        values: Buffer,
    },
    /// A chunk of another worker was outside the plan, and skipped. Or an unknown node was refused.
    Refused,
    /// The device reports.
    Device(Report),
    /// Links and other inputs have had their turn: the work that [`Effect::Yield`] put off is due.
    Yielded,
    /// Time passes.
    Tick,
}

/// An output of the core: what the shell has to do.
#[derive(Debug)]
pub enum Effect {
    /// Send this to a coordinator.
    SendToCoordinator {
        /// The link to send it on.
        link: LinkId,
        /// The message.
        message: Message,
    },
    /// These are the coordinators, as far as the worker knows: keep a link to each of them, and to
    /// no other coordinator.
    Coordinators(Vec<CoordinatorView>),
    /// Send this to another worker of the run.
    SendToPeer {
        /// The receiver.
        to: WorkerId,
        /// The message.
        message: Message,
    },
    /// Put an item on a bulk stream. Each peer, lane and step has a stream of its own.
    Stream {
        /// The receiver.
        to: WorkerId,
        /// The lane of the stream.
        lane: Lane,
        /// The step that names the stream.
        step: Step,
        /// The message or the chunk to put on it.
        item: StreamItem,
    },
    /// Drop any device and every link to other workers, then build the run's model and data. The
    /// answer is [`Input::Built`]. Reports of an earlier device no longer count. Each build is
    /// another incarnation of the worker.
    Build(RunSpec),
    /// A generation begins, for a member or a joiner: connect to its members, and to no other
    /// worker. The shell drops what it has queued for members, and resets streams under way.
    Enter(Record),
    /// The members feed a joiner from now on: accept its link in this generation. Or a member lets
    /// in again a joiner that has lost its link to that member. If there is no link, the shell
    /// waits for a new one, and drops what it has queued for the old one.
    AcceptPeer {
        /// Its id.
        worker: WorkerId,
        /// The name in its certificate.
        name: NodeName,
        /// Where it listens.
        address: SocketAddr,
    },
    /// Give the device a job.
    Device(Job),
    /// The core has more work than one input should take: give links and other inputs their turn,
    /// and then give [`Input::Yielded`].
    Yield,
    /// The worker's process ends.
    Exit(Exit),
}

/// Independent orders of chunks: a chunk that waits blocks only its own lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Partial sums, to the primaries of their shards.
    Partials,
    /// Reduced shards, from a primary to its backups.
    Reduced,
    /// Reduced shards, from a primary to a worker that syncs them. No step waits for these.
    CatchUp,
    /// New parameters, from primaries. Each stream begins with the commit of its step.
    Parameters,
    /// Master weights, to the member that writes the model.
    Masters,
    /// Parameters of the resume version, to members that asked for them.
    Resumed,
    /// Master weights and moments, to joiners. Each shard's begin with [`Message::State`].
    States,
}

impl Lane {
    /// All lanes.
    pub const ALL: [Self; 7] = [
        Self::Partials,
        Self::Reduced,
        Self::CatchUp,
        Self::Parameters,
        Self::Masters,
        Self::Resumed,
        Self::States,
    ];
}

/// An entry of a bulk stream.
#[derive(Clone, Debug)]
pub enum StreamItem {
    /// A message in the order of the stream: a commit before the parameters that it made, or the
    /// header of a shard's state.
    Message(Box<Message>),
    /// A chunk of a tensor.
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
    /// The worker was told to drain, and has left.
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
    /// Leave the body in the stream, and ask again when the core has moved on.
    Wait,
    /// Skip the body: it is old, or outside the plan.
    Drop,
}

/// The results of building the model and the data.
#[derive(Clone, Debug)]
pub struct Built {
    /// The worker's registration for this run.
    pub registration: Registration,
    /// The number of targets that one step trains on.
    pub tokens_per_step: u64,
    /// The number of tensors of a parameter shard's state: master weights and moments.
    pub state_parts: usize,
}

/// The source of the state of a generation's shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// From the seed: version 0 of everything. State that the device held, or had under way, is
    /// void.
    Seed,
    /// The device holds it already.
    Held,
}

/// What the device computes in a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// The data shards, ascending.
    pub data_shards: Vec<DataShard>,
    /// The subtrees of the reduction that these data shards make up.
    pub subtrees: Vec<Node>,
}

/// A job for the device. The device does its jobs in order, with these exceptions. While a pass
/// computes, the device does [`Job::Share`] and [`Job::Export`] beside it, unless an earlier job
/// concerns their shards. While a pass waits for parameters, the device does [`Job::Load`],
/// [`Job::Share`] and [`Job::Export`] at once, and also [`Job::Update`] and [`Job::Restore`] as
/// long as no job before them is put off. A [`Job::Enter`] from the seed ends the pass and voids
/// the jobs that were put off. A job that follows from the commit of the pass's own step ends the
/// pass and voids the rest of that step's computation. All other jobs wait for the end of the pass.
#[derive(Debug)]
pub enum Job {
    /// A generation begins. The answer is [`Report::Entered`]. Reports before it belong to the
    /// generation before.
    Enter {
        /// Its number.
        generation: Generation,
        /// Where the state comes from.
        origin: Origin,
        /// Parameter shards to hold, ascending, each with whether this worker is its primary. With
        /// [`Origin::Held`] the device holds all of them already.
        owned: Vec<(Shard, bool)>,
        /// Shards that the worker syncs: kept if the device has them. It drops all other shards.
        syncing: Vec<Shard>,
    },
    /// Forward and backward of these data shards, with the parameters of version `step - 1`.
    Gradient {
        /// The step.
        step: Step,
        /// What the device multiplies the loss by. The gradients that it reports are unscaled.
        scale: LossScale,
        /// The work: all that the plan assigns, or the part that a redo of the step lacks.
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
    /// Apply a committed step to a held shard, owned or syncing. The answer is [`Report::Updated`].
    Update {
        /// The shard.
        shard: Shard,
        /// The committed step.
        step: Step,
        /// Its global gradient norm.
        norm: f64,
        /// The number of this update in the run's history, from 1.
        update: u64,
        /// The reduced gradient. None if the step was skipped: the shard only gets the new version.
        gradient: Option<Gradient>,
    },
    /// A step was committed without an update: give all parameters to compute with its version.
    Skip {
        /// The committed step.
        step: Step,
    },
    /// Hand out the parameters to compute with, of shards of which this worker is primary. The
    /// answer is [`Report::Shared`].
    Share {
        /// The worker that asked.
        to: WorkerId,
        /// The shards.
        shards: Vec<Shard>,
    },
    /// Hand out master weights and moments. The answer is a [`Report::State`] for each shard.
    Export {
        /// The worker that asked.
        to: WorkerId,
        /// The shards. This worker owns all of them.
        shards: Vec<Shard>,
    },
    /// Take over a shard's state from another owner. The answer is [`Report::Restored`].
    Restore {
        /// The shard.
        shard: Shard,
        /// The version.
        version: Step,
        /// The digest that the state must have.
        digest: u64,
        /// Master weights, then moments.
        parts: Vec<Buffer>,
    },
    /// The last step is done: validate, and digest the owned shards. In a generation that begins
    /// after the last step the device does this again.
    Finish {
        /// The version that all parameters must have.
        version: Step,
        /// The data shards that fix which parts of the held-out samples this worker validates.
        data_shards: Vec<DataShard>,
    },
    /// Hand out the master weights of which this worker is primary, for the worker that writes the
    /// model's file. The answer is a [`Report::Exported`] for each shard.
    Masters {
        /// The worker that asked.
        to: WorkerId,
    },
    /// Open the model's file and begin from its start. The answer is [`Report::Opened`] or
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

/// A reduced gradient on its way to the device that applies it.
#[derive(Clone, Debug)]
pub struct Gradient {
    /// One parameter shard.
    pub values: Shared,
    /// The digest that its primary made. The device checks with it whether the values have changed.
    pub digest: u64,
}

impl Gradient {
    /// The gradient that a chunk brought.
    pub(super) fn received(chunk: &Chunk, values: Buffer) -> Self {
        Self { values: Shared::new(values), digest: chunk.digest }
    }
}

/// What the device has done.
#[derive(Debug)]
pub enum Report {
    /// The device has entered a generation.
    Entered {
        /// Its number.
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
        /// Its sum. No thread writes it again.
        sum: Shared,
    },
    /// A data shard is computed.
    Computed {
        /// The step.
        step: Step,
        /// Its loss and samples.
        contribution: Contribution,
        /// Seconds that it took, without waiting.
        seconds: f64,
        /// Seconds that its samples took to load, whether or not others loaded at the same time.
        load_seconds: f64,
    },
    /// The data set cannot read a sample yet, or can again. The device waits meanwhile.
    LoadStalled(bool),
    /// A held shard has a new version.
    Updated {
        /// The version.
        version: Step,
        /// The shard.
        shard: Shard,
        /// Digest of master weights and moments.
        digest: u64,
        /// The new parameters for others, if this worker is primary and the values changed.
        parameters: Option<Shared>,
    },
    /// The parameters of a shard to compute with, for the worker that asked.
    Shared {
        /// The worker that asked.
        to: WorkerId,
        /// The version.
        version: Step,
        /// The shard.
        shard: Shard,
        /// The values.
        values: Shared,
    },
    /// A shard's state as this worker holds it, for the worker that asked.
    State {
        /// The worker that asked.
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
    /// The device took a shard over, or refused it because its bits do not match the digest.
    Restored {
        /// The version.
        version: Step,
        /// The shard.
        shard: Shard,
        /// Whether the bits match the digest, and so the device took the shard over.
        intact: bool,
    },
    /// At the end: master weights of a shard of which this worker is primary.
    Exported {
        /// The worker that writes the model's file.
        to: WorkerId,
        /// The shard.
        shard: Shard,
        /// The values.
        values: Shared,
    },
    /// The device has validated and digested, as [`Job::Finish`] asked.
    Finished(Summary),
    /// The model's file is open, and can take every shard.
    Opened,
    /// The model's file could not be opened or written, for this reason. It is not open now.
    Unwritten(String),
    /// The model's file is complete and durable.
    Written,
    /// The run cannot be computed, for a reason that every other worker would meet too.
    Unable(String),
    /// The device cannot continue.
    Failed(String),
}

/// The device's account of the whole run.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Validation of this worker's parts.
    pub evaluations: Vec<PartEvaluation>,
    /// BLAKE3 of each owned shard's step, master weights and moments.
    pub digests: Vec<(Shard, [u8; 32])>,
    /// The number of data shards that the device has computed.
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

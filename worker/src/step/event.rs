//! The inputs and the outputs of the worker's core.

mod device;
mod model_file;
mod store;

use std::net::SocketAddr;
use std::sync::Arc;

use everstep_kernels::buffer::{Buffer, Shared};
use everstep_kernels::threads::Threads;
use everstep_transport::protocol::message::Registration;
use everstep_transport::protocol::outcome::Inability;
use everstep_transport::protocol::{
    Chunk, CoordinatorView, Generation, Message, NodeName, PreemptionNotice, Record, RunSpec, Step,
    WorkerId,
};

pub use device::{Gradient, Job, Report, ShardOrigin, Summary, Work};
pub use model_file::{DIRECTORY_ANSWER_TIMEOUT, FileJob, FileReport};
pub use store::{PartToSave, ShardToSave, StoreJob, StoreReport};

/// A link to a coordinator. The shell uses a number once: a second link to the same coordinator has
/// a new number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// An input of the core: something happened.
#[derive(Debug)]
pub enum Input {
    /// A link to a coordinator is up.
    CoordinatorUp {
        /// The new link, with a number of its own.
        link: LinkId,
        /// The name in the coordinator's certificate.
        name: NodeName,
    },
    /// A coordinator sent a message.
    Coordinator {
        /// The link that it came on.
        link: LinkId,
        /// The message, already decoded.
        message: Message,
    },
    /// A link to a coordinator is gone. The shell dials the coordinator again.
    CoordinatorLost {
        /// The link that is gone.
        link: LinkId,
    },
    /// The shell could not reach any coordinator for longer than an unregistered worker waits. The
    /// shell keeps trying.
    CoordinatorGone(String),
    /// A coordinator has refused this node a certificate, since its name is revoked: no coordinator
    /// lets it in again.
    Removed,
    /// The worker shall leave the run, in good order if there is time.
    Drain,
    /// As Drain: a cloud takes the worker's machine back, or has withdrawn that.
    Preempted(Option<PreemptionNotice>),
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
        /// The worker that sent the message.
        from: WorkerId,
        /// The message, already decoded.
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
        /// The worker that sent the chunk.
        from: WorkerId,
        /// The header that the core admitted.
        chunk: Chunk,
        /// The elements, in a buffer of the pool.
        values: Buffer,
    },
    /// A chunk of another worker was outside the plan, and skipped. Or an unknown node was refused.
    Refused,
    /// The device has done something.
    Device(Report),
    /// The thread that reads and writes checkpoints reports.
    Store(StoreReport),
    /// The thread that writes the model's file reports on the file of this generation.
    File(Generation, FileReport),
    /// Links and other inputs have had their turn: the work that [`Effect::Yield`] put off is due.
    Yielded,
    /// The shell tells the time, as often as its ticks come.
    Tick,
}

/// An output of the core: what the shell has to do.
#[derive(Debug)]
pub enum Effect {
    /// Send this to a coordinator.
    SendToCoordinator {
        /// The link to send it on.
        link: LinkId,
        /// The message to send.
        message: Message,
    },
    /// These are the coordinators, as far as the worker knows: keep a link to each of them, and to
    /// no other coordinator.
    Coordinators(Vec<CoordinatorView>),
    /// Send this to another worker of the run.
    SendToPeer {
        /// The worker to send it to.
        to: WorkerId,
        /// The message to send.
        message: Message,
    },
    /// Put an item on a bulk stream. Each peer, lane and step has a stream of its own.
    Stream {
        /// The worker at the other end of the stream.
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
        /// The id of the joiner.
        worker: WorkerId,
        /// The name in its certificate.
        name: NodeName,
        /// The address at which the joiner listens.
        address: SocketAddr,
    },
    /// Give the device a job.
    Device(Job),
    /// Give the thread that reads and writes checkpoints a job.
    Store(StoreJob),
    /// Give the thread that writes the model's file a job.
    File(FileJob),
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
    /// Every lane, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::Partials,
        Self::Reduced,
        Self::CatchUp,
        Self::Parameters,
        Self::Masters,
        Self::Resumed,
        Self::States,
    ];

    /// Whether each step has tensors of this lane. Those of the others are sent once in a while.
    pub fn is_of_each_step(self) -> bool {
        match self {
            Self::Partials | Self::Reduced | Self::Parameters => true,
            Self::CatchUp | Self::Masters | Self::Resumed | Self::States => false,
        }
    }
}

/// An entry of a bulk stream.
#[derive(Clone, Debug)]
pub enum StreamItem {
    /// A message in the order of the stream: a commit before the parameters that it made, or the
    /// header of a shard's state.
    Message(Box<Message>),
    /// A chunk of a tensor.
    Tensor {
        /// The header, which the receiver judges.
        chunk: Chunk,
        /// The elements, which others may share.
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
    /// The worker was told to drain, and its time ran out before it could leave in good order.
    Overdue,
    /// The coordinator refused the worker.
    Refused(String),
    /// The worker cannot go on.
    Failed(String),
}

/// What a receiver does with a chunk whose header has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Read the body, and give it to the core.
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
    /// The number of elements that the optimizer trains. The statistics come after them.
    pub trained: usize,
    /// The number of tensors of a parameter shard's state: master weights and moments.
    pub state_parts: usize,
    /// The table of learning rates that the optimizer brings, if it brings one.
    pub rates: Option<Arc<[f32]>>,
    /// The threads that take norms and digests. A model that computes on the CPU leaves no core to
    /// more than the caller's.
    pub threads: Threads,
}

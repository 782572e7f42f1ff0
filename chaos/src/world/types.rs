//! What goes into a world, what comes out of it, and what happens in between.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use everstep_coordinator::raft::Kept;
use everstep_coordinator::seat::{self, Seat, SeatError};
use everstep_transport::protocol::outcome::WorkerResult;
use everstep_transport::protocol::{Frame, Lineage, Message, MetricsLine, RunSpec, Step, WorkerId};
use everstep_transport::time::Time;
use everstep_worker::device::Device;
use everstep_worker::registry::Registry;
use everstep_worker::step::core::Core;
use everstep_worker::step::event::{Input, Lane, Parcel, Report};

use super::bench::Done;
use super::wire::StreamId;
use crate::check::{Chronicle, Invariant, Violation};
use crate::fault::Fault;

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The run. It starts with all workers, whatever its `start_workers` says.
    pub run: RunSpec,
    /// What its model and data set are.
    pub registry: Arc<Registry>,
    /// How many workers there are.
    pub workers: u32,
    /// How many coordinators there are.
    pub coordinators: u32,
    /// The schedule of all that takes time follows from it.
    pub seed: u64,
    /// How the coordinators learn that a worker's process has ended.
    pub exits: Exits,
    /// The same run without faults, to compare every step with.
    pub reference: Option<Arc<Chronicle>>,
    /// Sees cores and devices first.
    pub prepare: Prepare,
}

/// How the coordinators learn that a worker's process has ended: silence never tells them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exits {
    /// A launcher looks after the processes, and says so until it is recorded.
    #[default]
    Reported,
    /// The run gives a silent owner up after [`GIVE_UP_AFTER`].
    GivenUp,
    /// The operator asks the run to go back when it has waited for owners for a while.
    RolledBack,
}

/// How long a run of [`Exits::GivenUp`] waits for silent owners.
pub const GIVE_UP_AFTER: Duration = Duration::from_secs(10);

/// What is done to cores and devices before their first input: tests plant bugs with it.
#[derive(Clone, Copy, Debug)]
pub struct Prepare {
    /// To a worker's core.
    pub worker: fn(&mut Core),
    /// To a worker's device.
    pub device: fn(&mut Device),
    /// Makes a coordinator: see [`Seat::new`].
    pub coordinator: fn(Time, seat::Options, Kept, Vec<Frame>) -> Result<Seat, SeatError>,
    /// A coordinator is told that a batch is durable when it has only been written.
    pub skips_fsync: bool,
    /// A coordinator does not make its history durable before a snapshot takes its entries' place.
    pub forgets_history: bool,
}

impl Default for Prepare {
    /// Nothing.
    fn default() -> Self {
        Self {
            worker: |_| {},
            device: |_| {},
            coordinator: Seat::new,
            skips_fsync: false,
            forgets_history: false,
        }
    }
}

/// A process of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    /// A coordinator, by its place among them.
    Coordinator(usize),
    /// The coordinator that leads when this is looked at: for faults only.
    Leader,
    /// Who submits the run and watches it.
    Operator,
    /// Another operator, of some: it asks for tokens.
    Client(usize),
    /// A worker, by its place among the processes; its rank is the coordinator's to say. The first
    /// processes of the slots `0..workers` have the same places; one that is started again has a
    /// new one. Faults name slots: machines.
    Worker(usize),
}

impl Node {
    /// A number for it.
    pub(super) fn word(self) -> u64 {
        match self {
            Self::Coordinator(place) => u64::MAX - place as u64,
            Self::Leader => u64::MAX - u64::from(u32::MAX),
            Self::Operator => 0,
            Self::Client(number) => u64::MAX / 2 + number as u64,
            Self::Worker(place) => place as u64 + 1,
        }
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Coordinator(place) => write!(f, "coordinator {place}"),
            Self::Leader => f.write_str("the leader"),
            Self::Operator => f.write_str("operator"),
            Self::Client(number) => write!(f, "client {number}"),
            Self::Worker(place) => write!(f, "worker {place}"),
        }
    }
}

/// Something on its way: a list of one. Who meddles may empty the list, change what is in it, or
/// add to it.
#[derive(Debug)]
pub enum Passing<'a> {
    /// On a control lane.
    Messages {
        /// Who says it.
        from: Node,
        /// To whom.
        to: Node,
        /// What.
        messages: &'a mut Vec<Message>,
    },
    /// On a bulk stream; what is added gets a stream of its own, so that it holds up nothing.
    Parcels {
        /// The sending worker.
        from: Node,
        /// The receiving worker.
        to: Node,
        /// The lane.
        lane: Lane,
        /// What.
        parcels: &'a mut Vec<Parcel>,
    },
}

/// Stands between the cores and the wire, to prove that the cores or the checkers notice.
pub type Meddler = Box<dyn FnMut(Passing<'_>)>;

/// A complete run.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Of the parameters and the optimizer's state; see
    /// [`state_hash`](everstep_transport::protocol::outcome::state_hash).
    pub state_hash: [u8; 32],
    /// The metrics, as a watcher was told them.
    pub lines: Vec<MetricsLine>,
    /// What the members reported.
    pub results: Vec<WorkerResult>,
    /// Every step of it, for comparison.
    pub chronicle: Chronicle,
    /// Messages and pieces that workers took and refused, or dropped at their header.
    pub refused: u64,
    /// When it was, in virtual time.
    pub at: Time,
}

/// A run that did not become complete.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    /// An invariant did not hold.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// The cluster itself says that the run has failed.
    #[error("the run failed: {0}")]
    Run(String),
    /// Nothing went on in time (invariant I11).
    #[error("nothing goes on for {limit:?} at {:.3} ms: {waiting}", .at.0 as f64 / 1e6)]
    Stuck {
        /// When that was noticed.
        at: Time,
        /// The time that there was.
        limit: Duration,
        /// What each worker waits for, in words.
        waiting: String,
    },
    /// A core met a broken invariant itself.
    #[error("a core stopped: {0}")]
    Assertion(String),
}

impl Failure {
    /// The broken invariant, if one is known.
    pub fn invariant(&self) -> Option<Invariant> {
        match self {
            Self::Violation(violation) => Some(violation.invariant),
            Self::Stuck { .. } => Some(Invariant::I11),
            Self::Run(_) | Self::Assertion(_) => None,
        }
    }
}

/// What is going to happen.
#[derive(Debug)]
pub enum Happening {
    /// Somebody tries to reach the coordinator at this place.
    Connect(Node, usize),
    /// A worker tries to reach another.
    Dial {
        /// The place of the one.
        place: usize,
        /// The other's id.
        to: WorkerId,
        /// When it began to.
        since: Time,
        /// How long it waits before it tries again.
        wait: Duration,
    },
    /// A worker's link to another should be up by now.
    Overdue {
        /// The place of the one.
        place: usize,
        /// The other's id.
        to: WorkerId,
        /// Since when it is awaited.
        since: Time,
    },
    /// The first item of a control lane is due: from whom, to whom, on which link.
    Deliver(Node, Node, u64),
    /// Something arrives outside its order.
    Stray(Box<Stray>),
    /// Something happens to a coordinator by itself.
    Coordinator(usize, seat::Input),
    /// The next batch is on a coordinator's disk.
    Durable(usize),
    /// The lines of this history are on a coordinator's disk up to this step.
    LinesDurable(usize, Lineage, Step),
    /// Something happens to a worker by itself.
    Worker(usize, Input),
    /// The device of a worker, the one of this number, has built itself or done something.
    Device(usize, u64, Done),
    /// The operator asks what is new, on the link of this number.
    Watch(u64),
    /// The header of a stream's next parcel is there to be admitted.
    Header(StreamId),
    /// The rest of it has arrived.
    Body(StreamId),
    /// A worker's device, the one of this number, has done its job.
    Free(usize, u64),
    /// A worker looks at the clock.
    WorkerTick(usize),
    /// A coordinator does.
    CoordinatorTick(usize),
    /// `owner` has perhaps heard nothing of `peer` for too long.
    Idle {
        /// Whose end of the link.
        owner: Node,
        /// Who is silent.
        peer: Node,
        /// When this was to be looked at, unless something has changed.
        due: Time,
    },
    /// A client asks for something, unless it has an answer since.
    Ask {
        /// Which.
        client: usize,
        /// Its attempts so far.
        attempt: u64,
    },
    /// The operator has something to say to the coordinator that leads.
    Operator(Box<Message>),
    /// Something goes wrong.
    Fault(Box<Fault>),
    /// A pause ends, unless it was made longer.
    Resume(Node, Time),
    /// Roads are open again.
    Reopen,
    /// A coordinator is to stop; since when, if it was told.
    Leave {
        /// Its place.
        place: usize,
        /// Since when it knows.
        since: Option<Time>,
        /// How much later than it has stopped it is started again.
        restart: Duration,
    },
    /// A coordinator has learned that the others go on without it.
    Removed(usize),
    /// A crashed node is started again.
    Restart(Node),
    /// The checkers are told that time passes.
    Glance,
    /// From now on nothing goes wrong.
    Calm,
}

/// Something that arrives a second time.
#[derive(Debug)]
pub enum Stray {
    /// A message.
    Message {
        /// Who said it.
        from: Node,
        /// To whom.
        to: Node,
        /// What.
        message: Box<Message>,
    },
    /// A parcel.
    Parcel {
        /// The sender's place.
        from: usize,
        /// The receiver's place.
        to: usize,
        /// What, with its lane and step.
        parcel: (Lane, Step, Parcel),
    },
}

impl Happening {
    /// Who handles it; it waits while that process stands still.
    pub fn owner(&self) -> Option<Node> {
        match self {
            Self::Dial { place, .. }
            | Self::Overdue { place, .. }
            | Self::Worker(place, _)
            | Self::Device(place, ..)
            | Self::Free(place, _)
            | Self::WorkerTick(place) => Some(Node::Worker(*place)),
            Self::Connect(node, _) => Some(*node),
            Self::Deliver(_, to, _) => Some(*to),
            Self::Stray(stray) => Some(stray.ends().1),
            Self::Coordinator(place, _)
            | Self::Durable(place)
            | Self::LinesDurable(place, ..)
            | Self::Leave { place, .. }
            | Self::Removed(place)
            | Self::CoordinatorTick(place) => Some(Node::Coordinator(*place)),
            Self::Header(stream) | Self::Body(stream) => Some(stream.ends().1),
            Self::Idle { owner, .. } => Some(*owner),
            _ => None,
        }
    }

    /// The way that it comes, if it comes over one.
    pub fn path(&self) -> Option<(Node, Node)> {
        match self {
            Self::Deliver(from, to, _) => Some((*from, *to)),
            Self::Stray(stray) => Some(stray.ends()),
            Self::Header(stream) | Self::Body(stream) => Some(stream.ends()),
            _ => None,
        }
    }

    /// What it is, for the trace: equal for equal happenings.
    pub fn words(&self) -> [u64; 3] {
        let ends = |kind: u64, one: Node, other: Node| [kind, one.word(), other.word()];
        match self {
            Self::Connect(node, place) => [1, node.word(), *place as u64],
            Self::Deliver(from, to, _) => ends(2, *from, *to),
            Self::Stray(stray) => ends(3, stray.ends().0, stray.ends().1),
            Self::Coordinator(place, _) => [4, *place as u64, 0],
            Self::Worker(place, _) => [5, *place as u64, 0],
            Self::Watch(link) => [6, *link, 0],
            Self::Header(stream) => [7, stream.word(), 0],
            Self::Body(stream) => [8, stream.word(), 0],
            Self::Free(place, _) => [9, *place as u64, 0],
            Self::WorkerTick(place) => [10, *place as u64, 0],
            Self::CoordinatorTick(place) => [11, *place as u64, 0],
            Self::Idle { owner, peer, .. } => ends(12, *owner, *peer),
            Self::Fault(_) => [13, 0, 0],
            Self::Resume(node, _) => [14, node.word(), 0],
            Self::Reopen => [15, 0, 0],
            Self::Restart(node) => [16, node.word(), 0],
            Self::Calm => [17, 0, 0],
            Self::Dial { place, to, .. } => [18, *place as u64, to.0],
            Self::Overdue { place, to, .. } => [18, *place as u64, !to.0],
            Self::Durable(place) => [19, *place as u64, 0],
            Self::LinesDurable(place, _, reach) => [19, *place as u64, 3 + reach.0],
            Self::Leave { place, .. } => [19, *place as u64, 1],
            Self::Removed(place) => [19, *place as u64, 2],
            Self::Device(place, build, done) => [20 + build, *place as u64, report_word(done)],
            Self::Operator(_) => [6, 0, 1],
            Self::Ask { client, .. } => [6, *client as u64, 3],
            Self::Glance => [6, 0, 2],
        }
    }

    /// Whether it is of the environment, and happens whatever becomes of the processes.
    pub fn is_fate(&self) -> bool {
        matches!(self, Self::Fault(_) | Self::Reopen | Self::Calm)
    }
}

impl Stray {
    fn ends(&self) -> (Node, Node) {
        match self {
            Self::Message { from, to, .. } => (*from, *to),
            Self::Parcel { from, to, .. } => (Node::Worker(*from), Node::Worker(*to)),
        }
    }
}

/// The numbers in a device's report are what a simulation is about.
fn report_word(done: &Done) -> u64 {
    let Done::Report(_, report) = done else { return 0 };
    match report {
        Report::Updated { digest, .. } | Report::State { digest, .. } => *digest,
        Report::Computed { contribution, .. } => contribution.loss.to_bits(),
        Report::Partial { sum, .. } => sum.first().map_or(0, |value| u64::from(value.to_bits())),
        _ => 1,
    }
}

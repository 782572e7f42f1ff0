//! The input of a world, its results, and the events in between.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use everstep_coordinator::core::HistoryCache;
use everstep_coordinator::node::{self, NodeError};
use everstep_coordinator::raft::DurableState;
use everstep_transport::protocol::outcome::WorkerResult;
use everstep_transport::protocol::{
    Generation, Lineage, Message, MetricsLine, RunSpec, Step, WorkerId,
};
use everstep_transport::time::Time;
use everstep_worker::device::Device;
use everstep_worker::registry::Registry;
use everstep_worker::step::core::Core;
use everstep_worker::step::event::{FileReport, Input, Lane, Report, StoreJob, StreamItem};
use everstep_worker::store_work::StoreWork;

use super::preemption::CloudEvent;
use super::sim_device::DeviceOutput;
use super::wire::StreamId;
use crate::check::{Invariant, RunHistory, Violation};
use crate::fault::Fault;
use crate::files::SyncFlaws;

/// A cluster and a run to simulate.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The run. It starts with all workers, whatever its `start_workers` says.
    pub run: RunSpec,
    /// The registry with the run's model and data set.
    pub registry: Arc<Registry>,
    /// The number of workers at first.
    pub workers: u32,
    /// The number of coordinators at first.
    pub coordinators: u32,
    /// The seed of all random delays and draws.
    pub seed: u64,
    /// How the coordinators learn that a worker's process has ended.
    pub exits: Exits,
    /// The same run without faults, to compare every step with.
    pub reference: Option<Arc<RunHistory>>,
    /// Changes cores and devices before their first input.
    pub prepare: Prepare,
}

/// How the coordinators learn that a worker's process has ended: silence never tells them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exits {
    /// A launcher watches the processes, and reports an end until the leader has recorded it.
    #[default]
    Reported,
    /// The run gives a silent owner up after [`GIVE_UP_AFTER`].
    GivenUp,
    /// The operator asks the run to go back when it has waited for owners for a while.
    RolledBack,
}

/// How long a run of [`Exits::GivenUp`] waits for silent owners.
pub const GIVE_UP_AFTER: Duration = Duration::from_secs(10);

/// Changes that tests make to cores and devices before their first input, to plant bugs.
#[derive(Clone, Copy, Debug)]
pub struct Prepare {
    /// Changes a worker's core.
    pub worker: fn(&mut Core),
    /// Changes a worker's device.
    pub device: fn(&mut Device),
    /// Changes what a worker does in the store of its run.
    pub store: fn(&mut StoreWork),
    /// Makes a coordinator: see [`node::Node::new`].
    pub coordinator:
        fn(Time, node::NodeOptions, DurableState, HistoryCache) -> Result<node::Node, NodeError>,
    /// When true, a coordinator hears that a batch is durable when it is only written.
    pub skips_fsync: bool,
    /// When true, a coordinator does not make its history durable before a snapshot replaces the
    /// entries.
    pub forgets_history: bool,
    /// When true, a coordinator forgets that refusals of a living worker's probes were wrong.
    pub forgets_wrong_refusals: bool,
    /// When true, a lane writes into shared memory over what its receiver has not read.
    pub frees_early: bool,
    /// What the file system of the store leaves out.
    pub sync_flaws: SyncFlaws,
    /// When true, every process of a coordinator but its machine's first is of a later build.
    pub upgrades: bool,
}

impl Default for Prepare {
    /// Cores and devices as they are in production.
    fn default() -> Self {
        Self {
            worker: |_| {},
            device: |_| {},
            store: |_| {},
            coordinator: node::Node::new,
            skips_fsync: false,
            forgets_history: false,
            forgets_wrong_refusals: false,
            frees_early: false,
            sync_flaws: SyncFlaws::default(),
            upgrades: false,
        }
    }
}

/// A process of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeId {
    /// A coordinator, by its place among them.
    Coordinator(usize),
    /// The coordinator that leads at the moment of a fault. Only faults use it.
    Leader,
    /// The operator that submits the run and watches it.
    Operator,
    /// Another operator, by its number. It asks for tokens.
    Client(usize),
    /// A worker, by its place among the processes. The coordinator alone decides its rank. The
    /// first processes of the slots `0..workers` have the same places. A process that starts again
    /// has a new place. Faults name slots: machines.
    Worker(usize),
}

impl NodeId {
    /// A number for the trace that stands for the node.
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

impl fmt::Display for NodeId {
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

/// Something on its way, as a list of one. An interceptor may empty the list, change its content,
/// or add to it.
#[derive(Debug)]
pub enum InFlight<'a> {
    /// A message on a control lane.
    Messages {
        /// The node that sends the message.
        from: NodeId,
        /// The node that the message goes to.
        to: NodeId,
        /// A list with the message alone.
        messages: &'a mut Vec<Message>,
    },
    /// An item on a bulk stream. Each added item gets a stream of its own, so that it delays no
    /// other.
    StreamItems {
        /// The worker that sends the item.
        from: NodeId,
        /// The worker that the item goes to.
        to: NodeId,
        /// The lane of the stream.
        lane: Lane,
        /// A list with the item alone.
        items: &'a mut Vec<StreamItem>,
    },
}

/// Stands between the cores and the wire. It proves that the cores or the checkers notice changes.
pub type Interceptor = Box<dyn FnMut(InFlight<'_>)>;

/// The results of a run that became complete.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The hash of the parameters and the optimizer's state: see
    /// [`state_hash`](everstep_transport::protocol::outcome::state_hash).
    pub state_hash: [u8; 32],
    /// The metrics lines that a watcher received.
    pub lines: Vec<MetricsLine>,
    /// What each member reported at the end.
    pub results: Vec<WorkerResult>,
    /// Every step of the run, for comparison.
    pub run_history: RunHistory,
    /// Messages and chunks that workers took and refused, or dropped at their header.
    pub refused: u64,
    /// The virtual time of the run's end.
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
    /// The run made no progress in time (invariant I11).
    #[error("nothing goes on for {limit:?} at {:.3} ms: {waiting}", .at.0 as f64 / 1e6)]
    Stuck {
        /// When the world noticed that.
        at: Time,
        /// The longest time without progress that is allowed.
        limit: Duration,
        /// What each worker waits for, in words.
        waiting: String,
    },
    /// A core itself detected a broken invariant.
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

/// An event to come.
#[derive(Debug)]
pub enum Event {
    /// A node dials the coordinator at this place.
    Connect(NodeId, usize),
    /// A worker dials another one.
    Dial {
        /// The place of the worker that dials.
        place: usize,
        /// The id of the other worker.
        to: WorkerId,
        /// When it began to dial.
        since: Time,
        /// How long it waits before it tries again.
        wait: Duration,
    },
    /// A worker's link to another one should be up by now.
    Overdue {
        /// The place of the worker that waits.
        place: usize,
        /// The id of the other worker.
        to: WorkerId,
        /// Since when the worker waits for the link.
        since: Time,
    },
    /// The first item of a control lane is due: sender, receiver, number of the link.
    Deliver(NodeId, NodeId, u64),
    /// An item arrives outside its lane's order.
    Orphan(Box<Orphan>),
    /// A coordinator takes an input that came over no link.
    Coordinator(usize, Box<node::NodeInput>),
    /// The next batch is on a coordinator's disk.
    Durable(usize),
    /// The lines of this history are on a coordinator's disk up to this step.
    LinesDurable(usize, Lineage, Step),
    /// A worker takes an input that came over no link.
    Worker(usize, Box<Input>),
    /// A worker's device, identified by its number, has been built or has reported.
    Device(usize, u64, Box<DeviceOutput>),
    /// The thread of a worker's model file has reported on the file of a generation: the place of
    /// the worker, and the number of the build that the thread is for.
    ModelFile(usize, u64, Box<(Generation, FileReport)>),
    /// A job of the thread that reads and writes a worker's checkpoints takes effect.
    Store {
        /// The place of the worker among the processes.
        place: usize,
        /// The number of the build that the thread is for.
        builds: u64,
        /// The thread has said that the store was away.
        was_away: bool,
        /// The job that takes effect.
        job: Box<StoreJob>,
    },
    /// The thread of a worker tries again what the store has failed to do: the place of the worker,
    /// and the number of the build that the thread is for.
    StoreAgain(usize, u64),
    /// The operator asks for news, on the link of this number.
    Watch(u64),
    /// The header of a stream's next item has arrived for admission.
    Header(StreamId),
    /// The body of a stream's next item has arrived.
    Body(StreamId),
    /// A worker's device, identified by its number, has finished its job.
    Free(usize, u64),
    /// A worker's shell tells its core the time.
    WorkerTick(usize),
    /// A coordinator's shell tells its core the time.
    CoordinatorTick(usize),
    /// `owner` may have heard nothing of `peer` for too long.
    Idle {
        /// The process that listens on the link.
        owner: NodeId,
        /// The process that may be silent.
        peer: NodeId,
        /// The time of this event. If the link's due time is another by now, nothing happens.
        due: Time,
    },
    /// A coordinator probes a worker of which a firewall refuses probes.
    Probe {
        /// The coordinator that probes.
        owner: NodeId,
        /// The worker that it probes.
        peer: NodeId,
        /// The number of their link. Probes of an earlier link come to nothing.
        link: u64,
    },
    /// A client asks a question, unless it had an answer in the meantime.
    Ask {
        /// The number of the client that asks.
        client: usize,
        /// How many waits the client had begun when this was scheduled.
        attempt: u64,
    },
    /// The operator sends a message to the leader.
    Operator(Box<Message>),
    /// A fault of the schedule happens.
    Fault(Box<Fault>),
    /// A cloud's notice ends, or a worker asks its cloud, or has to leave by what it has heard.
    Cloud(CloudEvent),
    /// A pause ends, unless it was made longer.
    Resume(NodeId, Time),
    /// Roads are open again.
    Reopen,
    /// A coordinator is to stop.
    Leave {
        /// The place of the coordinator that stops.
        place: usize,
        /// When it was told to stop. None if it does not know yet.
        since: Option<Time>,
        /// How long after its end it starts again.
        restart: Duration,
    },
    /// A coordinator has learned that the others go on without it.
    Removed(usize),
    /// A node starts again after a crash.
    Restart(NodeId),
    /// The operator lets the paused run go on.
    ResumeRun,
    /// The checkers hear that time passes.
    Check,
    /// The phase of faults ends, and that of liveness begins.
    Calm,
}

/// An item that a worker sends on a lane.
#[derive(Debug)]
pub struct LaneItem {
    /// The lane of its stream.
    pub lane: Lane,
    /// The step that the stream is for.
    pub step: Step,
    /// A message or a part of a tensor.
    pub item: StreamItem,
}

/// An item that arrives a second time.
#[derive(Debug)]
pub enum Orphan {
    /// A message of a control lane.
    Message {
        /// The node that sent the message.
        from: NodeId,
        /// The node that gets the message again.
        to: NodeId,
        /// The message, as it was sent.
        message: Box<Message>,
    },
    /// An item of a bulk lane.
    Item {
        /// The place of the worker that sent the item.
        from: usize,
        /// The place of the worker that gets the item again.
        to: usize,
        /// The item, with its lane and step.
        item: LaneItem,
    },
}

impl Event {
    /// The process that handles the event. The event waits while that process stands still.
    pub fn owner(&self) -> Option<NodeId> {
        match self {
            Self::Dial { place, .. }
            | Self::Overdue { place, .. }
            | Self::Worker(place, _)
            | Self::Device(place, ..)
            | Self::ModelFile(place, ..)
            | Self::Store { place, .. }
            | Self::StoreAgain(place, _)
            | Self::Free(place, _)
            | Self::WorkerTick(place) => Some(NodeId::Worker(*place)),
            Self::Connect(node, _) => Some(*node),
            Self::Deliver(_, to, _) => Some(*to),
            Self::Orphan(orphan) => Some(orphan.ends().1),
            Self::Coordinator(place, _)
            | Self::Durable(place)
            | Self::LinesDurable(place, ..)
            | Self::Leave { place, .. }
            | Self::Removed(place)
            | Self::CoordinatorTick(place) => Some(NodeId::Coordinator(*place)),
            Self::Header(stream) | Self::Body(stream) => Some(stream.ends().1),
            Self::Idle { owner, .. } | Self::Probe { owner, .. } => Some(*owner),
            Self::Cloud(event) => event.owner(),
            _ => None,
        }
    }

    /// The sender and receiver of an event that comes over a road. None for other events.
    pub fn path(&self) -> Option<(NodeId, NodeId)> {
        match self {
            Self::Deliver(from, to, _) => Some((*from, *to)),
            Self::Orphan(orphan) => Some(orphan.ends()),
            Self::Header(stream) | Self::Body(stream) => Some(stream.ends()),
            _ => None,
        }
    }

    /// The event's words in the trace. Equal events have equal words.
    pub fn words(&self) -> [u64; 3] {
        let ends = |kind: u64, one: NodeId, other: NodeId| [kind, one.word(), other.word()];
        match self {
            Self::Connect(node, place) => [1, node.word(), *place as u64],
            Self::Deliver(from, to, _) => ends(2, *from, *to),
            Self::Orphan(orphan) => ends(3, orphan.ends().0, orphan.ends().1),
            Self::Coordinator(place, _) => [4, *place as u64, 0],
            Self::Worker(place, _) => [5, *place as u64, 0],
            Self::Watch(link) => [6, *link, 0],
            Self::Header(stream) => [7, stream.word(), 0],
            Self::Body(stream) => [8, stream.word(), 0],
            Self::Free(place, _) => [9, *place as u64, 0],
            Self::WorkerTick(place) => [10, *place as u64, 0],
            Self::CoordinatorTick(place) => [11, *place as u64, 0],
            Self::Idle { owner, peer, .. } => ends(12, *owner, *peer),
            Self::Probe { owner, peer, .. } => ends(28, *owner, *peer),
            Self::Fault(_) => [13, 0, 0],
            Self::Cloud(event) => event.words(),
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
            Self::ModelFile(place, build, _) => [29, *place as u64, *build],
            Self::Store { place, builds, .. } => [26, *builds, *place as u64],
            Self::StoreAgain(place, builds) => [27, *builds, *place as u64],
            Self::Operator(_) => [6, 0, 1],
            Self::Ask { client, .. } => [6, *client as u64, 3],
            Self::Check => [6, 0, 2],
            Self::ResumeRun => [6, 0, 4],
        }
    }

    /// Whether the event belongs to the environment. The world keeps it when the processes end.
    pub fn is_fate(&self) -> bool {
        let is_notice = matches!(self, Self::Cloud(CloudEvent::NoticeEnds(..)));
        is_notice || matches!(self, Self::Fault(_) | Self::Reopen | Self::Calm)
    }
}

impl Orphan {
    fn ends(&self) -> (NodeId, NodeId) {
        match self {
            Self::Message { from, to, .. } => (*from, *to),
            Self::Item { from, to, .. } => (NodeId::Worker(*from), NodeId::Worker(*to)),
        }
    }
}

/// A word for the numbers in a device's report. A simulation checks these numbers.
fn report_word(done: &DeviceOutput) -> u64 {
    let DeviceOutput::Report(_, report) = done else { return 0 };
    match report {
        Report::Updated { digest, .. } | Report::State { digest, .. } => *digest,
        Report::Computed { contribution, .. } => contribution.loss.to_bits(),
        Report::Partial { sum, .. } => sum.first().map_or(0, |value| u64::from(value.to_bits())),
        _ => 1,
    }
}

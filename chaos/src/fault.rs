//! Faults: what may happen to a cluster, how often, and when.
//!
//! A [`Fault`] is a value: the [`world`](crate::world) inflicts it, a [`Schedule`] says when, and
//! [`Rates`] say how often. A schedule is a pure function of its seed. This module does not know
//! how a cluster takes a fault.

mod rates;
mod schedule;
mod words;

use std::time::Duration;

use everstep_worker::step::event::Lane;

use crate::world::NodeId;

pub use rates::Rates;
pub use schedule::{SPARE_COORDINATORS, SPARE_MACHINES, Schedule};

/// The longest interruption of a process or a path that a cluster must bear without a loss: less
/// than the coordinator's time-out, a heartbeat's interval and a tenth for a wrong clock.
pub const TOLERATED_OUTAGE: Duration = Duration::from_millis(1_500);

/// A fault, or a request to the cluster. Workers are named by their machine, `0..workers` and some
/// more. A fault hits the process that runs there at that moment. The operator's own process has no
/// faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A process ends without a word. Of the lanes on which it sent, some arrive and some do not.
    Crash {
        /// The machine of the process.
        node: NodeId,
        /// When it starts again: a worker as a new process that knows nothing, a coordinator with
        /// what is on its disk. None: it does not.
        restart: Option<Duration>,
    },
    /// The process of the leader ends when it has proposed the next generation, before that is
    /// durable.
    CrashProposing {
        /// When it starts again.
        restart: Duration,
    },
    /// A coordinator's process ends when it has shut out a removed coordinator, before all that it
    /// has to write is durable.
    CrashExpelling {
        /// When it starts again.
        restart: Duration,
    },
    /// Several processes end at once, without a word.
    CrashTogether {
        /// The machines of the processes.
        side: Vec<NodeId>,
        /// When all of them start again. None: they do not.
        restart: Option<Duration>,
    },
    /// A new worker starts, or a machine that asks to be a coordinator, if no process runs there.
    Join {
        /// The machine that the fault hits.
        node: NodeId,
    },
    /// An operator asks a coordinator to stop. A leader hands over first.
    Stop {
        /// The coordinator that stops in good order.
        node: NodeId,
        /// When it starts again.
        restart: Duration,
    },
    /// A coordinator's disk is lost with its process, unless the cluster would be lost with it. The
    /// operator removes the coordinator.
    Wipe {
        /// The coordinator that loses its disk.
        node: NodeId,
        /// When a process starts again there. It asks to be a coordinator.
        restart: Duration,
    },
    /// A coordinator's process ends, and a byte of its log changes, unless the cluster would be
    /// lost with it. The next start finds that and refuses. The operator removes the coordinator.
    /// Then its machine asks to be a coordinator with an empty disk.
    Damage {
        /// The coordinator with the damaged log.
        node: NodeId,
        /// How long after its end it starts again, and how long after its removal its machine asks.
        restart: Duration,
    },
    /// The disk of a coordinator has no room for the next write, so its process ends.
    FullDisk {
        /// The coordinator that cannot write.
        node: NodeId,
        /// When the disk has room, and the process starts again.
        restart: Duration,
    },
    /// The operator removes a coordinator, if there is another one and no change of members is
    /// under way.
    Remove {
        /// The coordinator that the cluster goes on without.
        node: NodeId,
        /// When its machine asks to be a coordinator again, with an empty disk. None: never.
        restart: Option<Duration>,
    },
    /// A worker is to leave.
    Drain {
        /// The machine of the worker that leaves.
        node: NodeId,
        /// Where the request to leave comes from.
        by: DrainOrigin,
        /// How long the worker has if its own machine asks: after that it leaves in any case. None:
        /// the worker stays until other workers have copies of all that it holds.
        grace: Option<Duration>,
    },
    /// All workers are to leave, by a signal to each of them.
    DrainAll {
        /// When other processes start on their machines, where the ones before have ended.
        restart: Duration,
    },
    /// A cloud takes machines of workers back, and tells that ahead. A worker that hears of it
    /// leaves. At the end of that time the cloud ends the processes there.
    Preempt {
        /// The machines that go away.
        side: Vec<NodeId>,
        /// How long ahead the cloud tells.
        ahead: Duration,
        /// What comes of the notice.
        end: NoticeEnd,
    },
    /// The operator pauses the run.
    Rest {
        /// When the operator resumes it.
        span: Duration,
    },
    /// The operator asks for a checkpoint.
    Save,
    /// A process stands still (SIGSTOP). It handles nothing, and its peers hear nothing of it. Then
    /// it handles all that has come.
    Pause {
        /// The machine of the process.
        node: NodeId,
        /// How long it stands still.
        span: Duration,
    },
    /// Several processes stand still together, as all virtual machines of a host do.
    PauseTogether {
        /// The machines of the processes.
        side: Vec<NodeId>,
        /// How long they stand still.
        span: Duration,
    },
    /// The disk of a coordinator writes nothing for a while.
    Stall {
        /// The coordinator with the stalled disk.
        node: NodeId,
        /// How long the disk writes nothing.
        span: Duration,
    },
    /// From now on the clock of a process runs too fast or too slow.
    Drift {
        /// The machine of the process.
        node: NodeId,
        /// Its seconds in a thousand true ones, 900 to 1,100.
        permille: u32,
    },
    /// A connection is lost for both ends, and all that is on it.
    Disconnect {
        /// The two ends of the connection.
        ends: (NodeId, NodeId),
    },
    /// Delays between two nodes become longer.
    Slow {
        /// The nodes between which delays grow.
        ends: (NodeId, NodeId),
        /// The most that is added to a delay.
        extra: Duration,
        /// How long the link stays slow.
        span: Duration,
    },
    /// No packet arrives on one path for a while. Then all do, in order.
    Clog {
        /// The node at the start of the path.
        from: NodeId,
        /// The node at its end.
        to: NodeId,
        /// How long the path is clogged.
        span: Duration,
    },
    /// No packet passes between these nodes and the others.
    Partition {
        /// The nodes on one side.
        side: Vec<NodeId>,
        /// How long the partition lasts.
        span: Duration,
    },
    /// No packet passes between the coordinators and the workers. The coordinators reach each
    /// other, and so do the workers.
    Isolation {
        /// How long the isolation lasts.
        span: Duration,
    },
    /// No packet passes from these nodes to the others. The way back is free.
    OneWay {
        /// The nodes that the others do not hear.
        side: Vec<NodeId>,
        /// How long that lasts.
        span: Duration,
    },
    /// A firewall refuses all packets between a worker and the coordinators. The worker lives on.
    Refuse {
        /// The machine of the worker that the firewall shuts off.
        node: NodeId,
        /// How long the firewall refuses packets.
        span: Duration,
    },
    /// A firewall refuses the coordinators' probes of a worker. All packets of links pass.
    RefuseProbes {
        /// The machine of the worker that is probed in vain.
        node: NodeId,
        /// How long the firewall refuses probes.
        span: Duration,
    },
    /// No packet passes between one coordinator and the workers. The other coordinators reach both.
    Deafen {
        /// The coordinator that no worker reaches.
        node: NodeId,
        /// How long that lasts.
        span: Duration,
    },
    /// Workers that start on a machine from now on state the address of another machine.
    Misstate {
        /// The machine of the workers.
        node: NodeId,
        /// The machine that has the stated address.
        of: NodeId,
    },
    /// Two nodes do not reach each other. Both reach all other nodes.
    Bridge {
        /// The nodes that do not reach each other.
        ends: (NodeId, NodeId),
        /// How long that lasts.
        span: Duration,
    },
    /// The next item of a kind arrives a second time. The protocol must refuse it.
    Duplicate {
        /// The node that sent the item.
        from: NodeId,
        /// The node that gets the item twice.
        to: NodeId,
        /// The kind of item.
        what: DuplicateKind,
        /// How much later it arrives again.
        after: Duration,
    },
    /// One bulk lane falls behind all others.
    Reorder {
        /// The sender, a worker.
        from: NodeId,
        /// The receiver, a worker.
        to: NodeId,
        /// The lane that falls behind.
        lane: Lane,
        /// The most that is added to a delay.
        extra: Duration,
        /// How long the lane stays behind.
        span: Duration,
    },
    /// The device of a worker does nothing for a while. The worker itself lives and sends
    /// heartbeats.
    Hang {
        /// The machine of the worker with the hung device.
        node: NodeId,
        /// How long the device hangs.
        span: Duration,
    },
    /// The device of a worker computes more slowly for a while.
    SlowDevice {
        /// The machine of the worker with the slow device.
        node: NodeId,
        /// How long a data shard takes there, in thousandths of its usual time.
        permille: u32,
        /// How long the device stays slow.
        span: Duration,
    },
    /// The store where a worker writes the model refuses writes for a while.
    FullStore {
        /// The machine of the worker that cannot write the model.
        node: NodeId,
        /// How long the store is full.
        span: Duration,
    },
    /// The directory where a worker writes the model does not answer for a while.
    SilentDirectory {
        /// The machine of the worker.
        node: NodeId,
        /// How long the directory does not answer.
        span: Duration,
    },
    /// The store of the run's checkpoints answers no worker for a while.
    StoreAway {
        /// How long it is away.
        span: Duration,
    },
    /// The power of the store's machine fails, mostly in the middle of a write. What is not synced
    /// may be lost or torn.
    CutStore,
    /// A disk of the store tears a part of the newest listed checkpoint, if an older one would do.
    TearCheckpoint,
    /// All processes end, and the disks of all coordinators are lost. Another cluster goes on from
    /// the store, if that has a checkpoint.
    LoseCluster,
    /// A bit flips in the memory of a worker's device. The device finds that before its next
    /// update.
    Flip {
        /// The machine of the worker with the flipped bit.
        node: NodeId,
    },
    /// A bit of the next reduced gradient flips in the memory of a worker. Its device finds that
    /// before it applies the gradient.
    Garble {
        /// The machine of the worker with the garbled gradient.
        node: NodeId,
    },
    /// A backup of a shard errs when it applies the next gradient. The owners' votes show that. No
    /// owner can know which bits are right, so the run ends.
    Mistake {
        /// The machine of the backup that errs.
        node: NodeId,
    },
}

/// The asker of a worker's leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainOrigin {
    /// The worker's own machine, by a signal.
    Machine,
    /// The operator, through the coordinator.
    Operator,
}

/// The end of a cloud's notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeEnd {
    /// The machines are gone when the time is over.
    TakenBack {
        /// When processes start on other machines in their places. None: never.
        restart: Option<Duration>,
    },
    /// The cloud withdraws the notice. A worker that has heard of the notice leaves all the same.
    Withdrawn {
        /// How long after the notice the cloud withdraws it.
        after: Duration,
        /// How long after that processes start where workers have left.
        restart: Duration,
    },
}

/// The kinds of items that may arrive twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DuplicateKind {
    /// A message of the control lane.
    Message,
    /// An item of a bulk lane.
    Item,
    /// A tensor of a bulk lane. The second one claims to be of the generation before.
    OlderItem,
}

impl Fault {
    /// A short name for the kind of fault.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Crash { node: NodeId::Worker(_), .. } => "crash of a worker",
            Self::Crash { .. } => "crash of a coordinator",
            Self::CrashProposing { .. } => "crash in a proposal",
            Self::CrashExpelling { .. } => "crash in a removal",
            Self::CrashTogether { .. } => "crash of several",
            Self::Join { node: NodeId::Worker(_) } => "join",
            Self::Join { .. } => "join of a coordinator",
            Self::Stop { .. } => "stop of a coordinator",
            Self::Wipe { .. } => "wiped disk",
            Self::Damage { .. } => "damaged log",
            Self::FullDisk { .. } => "full disk",
            Self::Remove { .. } => "removal of a coordinator",
            Self::Drain { by: DrainOrigin::Machine, .. } => "drain by a signal",
            Self::Drain { by: DrainOrigin::Operator, .. } => "drain by the operator",
            Self::DrainAll { .. } => "drain of all",
            Self::Preempt { end: NoticeEnd::Withdrawn { .. }, .. } => "withdrawn preemption",
            Self::Preempt { side, .. } if side.len() > 1 => "preemption of several",
            Self::Preempt { .. } => "preemption",
            Self::Rest { .. } => "pause of the run",
            Self::Save => "asked checkpoint",
            Self::Pause { .. } => "pause",
            Self::PauseTogether { .. } => "pause of several",
            Self::Stall { .. } => "stalled disk",
            Self::Drift { .. } => "clock drift",
            Self::Disconnect { .. } => "connection lost",
            Self::Slow { .. } => "slow link",
            Self::Clog { .. } => "clog",
            Self::Partition { .. } => "partition",
            Self::Isolation { .. } => "isolation",
            Self::OneWay { .. } => "one-way partition",
            Self::Refuse { .. } => "refusal",
            Self::RefuseProbes { .. } => "refused probes",
            Self::Deafen { .. } => "deaf coordinator",
            Self::Misstate { .. } => "misstated address",
            Self::Bridge { .. } => "bridge",
            Self::Duplicate { .. } => "duplicate",
            Self::Reorder { .. } => "reorder",
            Self::Hang { .. } => "hang of a device",
            Self::SlowDevice { .. } => "slow device",
            Self::FullStore { .. } => "full store",
            Self::SilentDirectory { .. } => "silent directory",
            Self::StoreAway { .. } => "store away",
            Self::CutStore => "power cut of the store",
            Self::TearCheckpoint => "torn checkpoint",
            Self::LoseCluster => "loss of the cluster",
            Self::Flip { .. } => "flipped bit",
            Self::Garble { .. } => "garbled gradient",
            Self::Mistake { .. } => "mistake",
        }
    }

    /// The same fault with `leader` in place of [`NodeId::Leader`].
    pub fn with_leader(mut self, leader: NodeId) -> Self {
        let named = |node: &mut NodeId| {
            if *node == NodeId::Leader {
                *node = leader;
            }
        };
        match &mut self {
            Self::CrashProposing { .. }
            | Self::CrashExpelling { .. }
            | Self::Isolation { .. }
            | Self::DrainAll { .. }
            | Self::Rest { .. }
            | Self::Save
            | Self::StoreAway { .. }
            | Self::CutStore
            | Self::TearCheckpoint
            | Self::LoseCluster => {}
            Self::CrashTogether { side, .. }
            | Self::Preempt { side, .. }
            | Self::PauseTogether { side, .. }
            | Self::Partition { side, .. }
            | Self::OneWay { side, .. } => side.iter_mut().for_each(named),
            Self::Disconnect { ends: (one, other) }
            | Self::Slow { ends: (one, other), .. }
            | Self::Bridge { ends: (one, other), .. }
            | Self::Misstate { node: one, of: other }
            | Self::Clog { from: one, to: other, .. }
            | Self::Duplicate { from: one, to: other, .. }
            | Self::Reorder { from: one, to: other, .. } => {
                [one, other].into_iter().for_each(named)
            }
            Self::Crash { node, .. }
            | Self::Join { node }
            | Self::Stop { node, .. }
            | Self::Wipe { node, .. }
            | Self::Damage { node, .. }
            | Self::FullDisk { node, .. }
            | Self::Remove { node, .. }
            | Self::Drain { node, .. }
            | Self::Pause { node, .. }
            | Self::Refuse { node, .. }
            | Self::RefuseProbes { node, .. }
            | Self::Deafen { node, .. }
            | Self::Stall { node, .. }
            | Self::Drift { node, .. }
            | Self::Hang { node, .. }
            | Self::SlowDevice { node, .. }
            | Self::FullStore { node, .. }
            | Self::SilentDirectory { node, .. }
            | Self::Flip { node }
            | Self::Garble { node }
            | Self::Mistake { node } => named(node),
        }
        self
    }

    /// How long a process or a path is out of action. Zero for faults of other kinds.
    pub fn outage(&self) -> Duration {
        match self {
            Self::Pause { span, .. }
            | Self::PauseTogether { span, .. }
            | Self::Stall { span, .. }
            | Self::Clog { span, .. }
            | Self::Partition { span, .. }
            | Self::Isolation { span }
            | Self::OneWay { span, .. }
            | Self::Refuse { span, .. }
            | Self::Deafen { span, .. }
            | Self::Bridge { span, .. } => *span,
            _ => Duration::ZERO,
        }
    }
}

//! Faults: what may happen to a cluster, how often, and when.
//!
//! A [`Fault`] is a value: the [`world`](crate::world) makes it happen, a [`Schedule`] says when,
//! [`Rates`] say how often. A schedule is a pure function of its seed. This module does not know
//! how a cluster takes a fault.

mod schedule;
mod words;

use std::time::Duration;

use everstep_worker::step::event::Lane;

use crate::world::Node;

pub use schedule::{Rates, SPARE_COORDINATORS, SPARE_MACHINES, Schedule};

/// The longest interruption of a process or a path that a cluster must bear without a loss: less
/// than the coordinator's patience, a heartbeat's interval and a tenth for a wrong clock.
pub const TOLERATED: Duration = Duration::from_millis(1_500);

/// Something that goes wrong, or that is asked of the cluster. Workers are named by their machine,
/// `0..workers` and some more: whatever process is there when it happens. The operator is beside
/// the coordinators, and spared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A process ends without a word. Of what it has sent, some lanes arrive and some do not.
    Crash {
        /// Which.
        node: Node,
        /// When somebody starts it again: a worker as a new process that knows nothing, a
        /// coordinator with what is on its disk.
        restart: Option<Duration>,
    },
    /// A coordinator's process ends when it has proposed the next generation, before that is
    /// durable.
    CrashProposing {
        /// When somebody starts it again.
        restart: Duration,
    },
    /// A coordinator's process ends when it has shut out another that was removed, before all that
    /// it has to write is durable.
    CrashExpelling {
        /// When somebody starts it again.
        restart: Duration,
    },
    /// Several processes end at once, without a word.
    CrashTogether {
        /// Which.
        side: Vec<Node>,
        /// When somebody starts all of them again.
        restart: Option<Duration>,
    },
    /// A new worker comes, or somebody who is to be a coordinator, if there is none there.
    Join {
        /// The machine.
        node: Node,
    },
    /// A coordinator is asked to stop: if it leads, it hands that over first.
    Stop {
        /// Which.
        node: Node,
        /// When somebody starts it again.
        restart: Duration,
    },
    /// A coordinator's disk is lost with its process, unless the cluster would be lost with it. The
    /// operator removes it.
    Wipe {
        /// Whose.
        node: Node,
        /// When somebody starts it again, as nobody's coordinator: it asks to be one.
        restart: Duration,
    },
    /// A coordinator's process ends, and a byte of its log is another one at the next start, which
    /// refuses that; unless the cluster would be lost with it. The operator removes it, and then
    /// its machine asks to be a coordinator with an empty disk.
    Damage {
        /// Whose.
        node: Node,
        /// How much later than it has ended it is started again, and than it is removed it asks.
        restart: Duration,
    },
    /// The disk of a coordinator has no room for the next write: its process ends.
    FullDisk {
        /// Whose.
        node: Node,
        /// When there is room, and somebody starts it again.
        restart: Duration,
    },
    /// The operator does without a coordinator, if there is another and nothing is about to change
    /// that.
    Remove {
        /// Which.
        node: Node,
        /// When its machine asks to be a coordinator again, with an empty disk; else never.
        restart: Option<Duration>,
    },
    /// A worker is asked to leave.
    Drain {
        /// The worker's machine.
        node: Node,
        /// The asker.
        by: Asker,
        /// How long the worker has, if it is asked itself: then it leaves in any case. None: the
        /// worker stays until other workers have copies of all that it holds.
        grace: Option<Duration>,
    },
    /// A process stands still (SIGSTOP): it handles nothing and its links hear nothing of it; then
    /// it handles all that has come.
    Pause {
        /// Which.
        node: Node,
        /// For how long.
        span: Duration,
    },
    /// Several processes stand still together, as all virtual machines of a host do.
    PauseTogether {
        /// Which.
        side: Vec<Node>,
        /// For how long.
        span: Duration,
    },
    /// The disk of a coordinator writes nothing for a while.
    Stall {
        /// Whose.
        node: Node,
        /// For how long.
        span: Duration,
    },
    /// From now on the clock of a process runs too fast or too slow.
    Drift {
        /// Whose.
        node: Node,
        /// Its seconds in a thousand true ones, 900 to 1,100.
        permille: u32,
    },
    /// A connection is lost for both ends, and all that is on it.
    Disconnect {
        /// Between whom.
        ends: (Node, Node),
    },
    /// All between two nodes takes longer.
    Slow {
        /// Which two.
        ends: (Node, Node),
        /// How much longer, at most.
        extra: Duration,
        /// For how long.
        span: Duration,
    },
    /// Nothing arrives on one path; then all does, in order.
    Clog {
        /// Where the path begins.
        from: Node,
        /// Where it ends.
        to: Node,
        /// For how long.
        span: Duration,
    },
    /// Nothing passes between these nodes and the others.
    Partition {
        /// One side.
        side: Vec<Node>,
        /// For how long.
        span: Duration,
    },
    /// Nothing passes between the coordinators and the workers. The coordinators reach each other,
    /// and so do the workers.
    Isolation {
        /// For how long.
        span: Duration,
    },
    /// Nothing passes from these nodes to the others; the way back is free.
    OneWay {
        /// Who is not heard.
        side: Vec<Node>,
        /// For how long.
        span: Duration,
    },
    /// A firewall refuses all between a worker and the coordinators: the worker lives on.
    Refuse {
        /// Which worker.
        node: Node,
        /// For how long.
        span: Duration,
    },
    /// Nothing passes between one coordinator and the workers; the other coordinators reach both.
    Deafen {
        /// Which coordinator.
        node: Node,
        /// For how long.
        span: Duration,
    },
    /// Workers that begin on a machine from now on state the address of another machine.
    Misstate {
        /// Which machine.
        node: Node,
        /// The machine that has the stated address.
        of: Node,
    },
    /// Two nodes do not reach each other; both reach all the rest.
    Bridge {
        /// Which two.
        ends: (Node, Node),
        /// For how long.
        span: Duration,
    },
    /// The next of its kind is delivered a second time, which the protocol must refuse.
    Duplicate {
        /// The sender.
        from: Node,
        /// The receiver.
        to: Node,
        /// The kind.
        what: Twice,
        /// How much later.
        after: Duration,
    },
    /// One bulk lane falls behind all others.
    Reorder {
        /// The sender, a worker.
        from: Node,
        /// The receiver, a worker.
        to: Node,
        /// The lane.
        lane: Lane,
        /// How far, at most.
        extra: Duration,
        /// For how long.
        span: Duration,
    },
    /// The device of a worker does nothing for a while; the worker itself lives and says so.
    Hang {
        /// Whose.
        node: Node,
        /// For how long.
        span: Duration,
    },
    /// The store where a worker writes the model takes nothing for a while.
    FullStore {
        /// Whose.
        node: Node,
        /// For how long.
        span: Duration,
    },
    /// A bit flips in what a worker's device holds: it finds that before its next update.
    Flip {
        /// Whose memory.
        node: Node,
    },
    /// A bit of the next reduced gradient that comes flips in the memory of a worker: its device
    /// finds that before it applies it.
    Garble {
        /// Whose memory.
        node: Node,
    },
    /// A worker that backs a shard up errs when it applies the next gradient: the owners' votes
    /// tell, nobody can say who is right, and the run ends.
    Mistake {
        /// Whose.
        node: Node,
    },
}

/// Who asks a worker to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// Its own machine, by a signal.
    Machine,
    /// The operator, by way of the coordinator.
    Operator,
}

/// What is delivered twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Twice {
    /// A control message.
    Message,
    /// A parcel of a bulk lane.
    Parcel,
    /// A tensor of a bulk lane, the second time as if of the generation before.
    OlderParcel,
}

impl Fault {
    /// One word for it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Crash { node: Node::Worker(_), .. } => "crash of a worker",
            Self::Crash { .. } => "crash of a coordinator",
            Self::CrashProposing { .. } => "crash in a proposal",
            Self::CrashExpelling { .. } => "crash in a removal",
            Self::CrashTogether { .. } => "crash of several",
            Self::Join { node: Node::Worker(_) } => "join",
            Self::Join { .. } => "join of a coordinator",
            Self::Stop { .. } => "stop of a coordinator",
            Self::Wipe { .. } => "wiped disk",
            Self::Damage { .. } => "damaged log",
            Self::FullDisk { .. } => "full disk",
            Self::Remove { .. } => "removal of a coordinator",
            Self::Drain { by: Asker::Machine, .. } => "drain by a signal",
            Self::Drain { by: Asker::Operator, .. } => "drain by the operator",
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
            Self::Deafen { .. } => "deaf coordinator",
            Self::Misstate { .. } => "misstated address",
            Self::Bridge { .. } => "bridge",
            Self::Duplicate { .. } => "duplicate",
            Self::Reorder { .. } => "reorder",
            Self::Hang { .. } => "hang of a device",
            Self::FullStore { .. } => "full store",
            Self::Flip { .. } => "flipped bit",
            Self::Garble { .. } => "garbled gradient",
            Self::Mistake { .. } => "mistake",
        }
    }

    /// The same where whoever leads is meant by name.
    pub fn with_leader(mut self, leader: Node) -> Self {
        let named = |node: &mut Node| {
            if *node == Node::Leader {
                *node = leader;
            }
        };
        match &mut self {
            Self::CrashProposing { .. } | Self::CrashExpelling { .. } | Self::Isolation { .. } => {}
            Self::CrashTogether { side, .. }
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
            | Self::Deafen { node, .. }
            | Self::Stall { node, .. }
            | Self::Drift { node, .. }
            | Self::Hang { node, .. }
            | Self::FullStore { node, .. }
            | Self::Flip { node }
            | Self::Garble { node }
            | Self::Mistake { node } => named(node),
        }
        self
    }

    /// How long a process or a path is out of action; zero for faults of other kinds.
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

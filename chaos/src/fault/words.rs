//! The sentence that a report has for each fault.

use std::fmt;

use super::{DrainOrigin, Fault, NoticeEnd};
use crate::world::NodeId;

/// Some nodes, with commas.
fn all(side: &[NodeId]) -> String {
    side.iter().map(NodeId::to_string).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Crash { node, restart: None } => write!(f, "{node} crashes"),
            Self::Crash { node, restart: Some(after) } => {
                write!(f, "{node} crashes, and is started again after {after:?}")
            }
            Self::CrashProposing { restart } => {
                write!(
                    f,
                    "a coordinator crashes when it proposes, and is started again {restart:?} later"
                )
            }
            Self::CrashExpelling { restart } => {
                write!(
                    f,
                    "a coordinator crashes when it shuts one out, and is back {restart:?} later"
                )
            }
            Self::CrashTogether { side, restart: None } => {
                write!(f, "{} crash at once", all(side))
            }
            Self::CrashTogether { side, restart: Some(after) } => {
                write!(f, "{} crash at once, and are started again after {after:?}", all(side))
            }
            Self::Join { node } => write!(f, "{node} joins, if there is none"),
            Self::Stop { .. }
            | Self::Wipe { .. }
            | Self::Damage { .. }
            | Self::FullDisk { .. }
            | Self::Remove { .. } => self.tell_of_a_coordinator(f),
            Self::DrainAll { .. } | Self::Rest { .. } | Self::Save => self.tell_of_a_run(f),
            Self::StoreAway { .. } => self.tell_of_a_run(f),
            Self::CutStore | Self::TearCheckpoint | Self::LoseCluster => self.tell_of_a_run(f),
            Self::Preempt { side, ahead, end } => {
                write!(f, "a cloud is to take {} back in {ahead:?}: {end}", all(side))
            }
            Self::PauseTogether { side, span } => {
                write!(f, "{} are paused for {span:?}", all(side))
            }
            Self::Disconnect { ends: (a, b) } => {
                write!(f, "the connection of {a} and {b} is lost")
            }
            Self::Slow { ends: (a, b), extra, span } => {
                write!(f, "{a} and {b} are up to {extra:?} slower for {span:?}")
            }
            Self::Clog { from, to, span } => write!(f, "{from} to {to} is clogged for {span:?}"),
            Self::Partition { side, span } => write!(f, "{} cut off for {span:?}", all(side)),
            Self::OneWay { side, span } => write!(f, "{} not heard for {span:?}", all(side)),
            Self::Bridge { ends: (a, b), span } => {
                write!(f, "{a} and {b} do not reach each other for {span:?}")
            }
            Self::Duplicate { from, to, what, after } => {
                write!(f, "{what:?} of {from} to {to} twice, {after:?} later")
            }
            Self::Reorder { from, to, lane, extra, span } => {
                write!(f, "{lane:?} of {from} to {to} up to {extra:?} late for {span:?}")
            }
            _ => self.tell_of_a_machine(f),
        }
    }
}

impl fmt::Display for NoticeEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TakenBack { restart: None } => f.write_str("they are"),
            Self::TakenBack { restart: Some(after) } => {
                write!(f, "they are, and others start {after:?} after that")
            }
            Self::Withdrawn { after, restart } => {
                write!(f, "that is withdrawn after {after:?}, and others start {restart:?} later")
            }
        }
    }
}

impl Fault {
    /// Describes a fault of a clock, of a worker's device, store or memory, or of its roads.
    fn tell_of_a_machine(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drift { node, permille } => {
                write!(f, "the clock of {node} runs at {}.{:03}", permille / 1000, permille % 1000)
            }
            Self::Drain { node, by: DrainOrigin::Operator, .. } => {
                write!(f, "the operator asks {node} to leave")
            }
            Self::Drain { node, grace: Some(grace), .. } => {
                write!(f, "{node} is to leave within {grace:?}")
            }
            Self::Drain { node, grace: None, .. } => {
                write!(f, "{node} is to leave, as soon as nothing depends on it")
            }
            Self::Refuse { node, span } => {
                write!(f, "a firewall refuses {node} to the coordinators for {span:?}")
            }
            Self::RefuseProbes { node, span } => {
                write!(f, "a firewall refuses the coordinators' probes of {node} for {span:?}")
            }
            Self::Isolation { span } => {
                write!(f, "no coordinator reaches any worker for {span:?}")
            }
            Self::Deafen { node, span } => write!(f, "no worker reaches {node} for {span:?}"),
            Self::Pause { node, span } => write!(f, "{node} is paused for {span:?}"),
            Self::Stall { node, span } => write!(f, "the disk of {node} stalls for {span:?}"),
            Self::Misstate { node, of } => write!(f, "{node} states the address of {of}"),
            Self::Hang { node, span } => write!(f, "the device of {node} hangs for {span:?}"),
            Self::SlowDevice { node, permille, span } => {
                let times = f64::from(*permille) / 1_000.0;
                write!(f, "the device of {node} takes {times} times as long for {span:?}")
            }
            Self::FullStore { node, span } => write!(f, "the store of {node} is full for {span:?}"),
            Self::SilentDirectory { node, span } => {
                write!(f, "the directory of {node} does not answer for {span:?}")
            }
            Self::Flip { node } => write!(f, "a bit flips in the memory of {node}"),
            Self::Garble { node } => write!(f, "a gradient is garbled in the memory of {node}"),
            Self::Mistake { node } => write!(f, "{node} errs in an update"),
            other => f.write_str(other.kind()),
        }
    }

    /// Describes what all workers are asked, an operator's word, or what befalls the store.
    fn tell_of_a_run(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DrainAll { restart } => {
                write!(f, "all workers are to leave, and others start after {restart:?}")
            }
            Self::Rest { span } => write!(f, "the operator pauses the run for {span:?}"),
            Self::Save => f.write_str("the operator asks for a checkpoint"),
            Self::StoreAway { span } => write!(f, "the store is away for {span:?}"),
            Self::CutStore => f.write_str("the power of the store's machine fails in a write"),
            Self::TearCheckpoint => f.write_str("a disk tears the newest checkpoint"),
            Self::LoseCluster => f.write_str(
                "the cluster and its disks are lost, and another one goes on from the store",
            ),
            other => f.write_str(other.kind()),
        }
    }

    /// Describes a fault of one coordinator.
    fn tell_of_a_coordinator(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stop { node, restart } => {
                write!(f, "{node} is asked to stop, and is started again {restart:?} later")
            }
            Self::Wipe { node, restart } => {
                write!(f, "{node} crashes, its disk is lost, and it joins again after {restart:?}")
            }
            Self::Damage { node, restart } => {
                write!(
                    f,
                    "{node} crashes, its log is damaged, and it begins anew after {restart:?}"
                )
            }
            Self::FullDisk { node, restart } => {
                write!(f, "the disk of {node} is full, and has room {restart:?} later")
            }
            Self::Remove { node, restart: None } => {
                write!(f, "the operator does without {node} for good")
            }
            Self::Remove { node, restart: Some(after) } => {
                write!(f, "the operator does without {node}, which joins again after {after:?}")
            }
            other => f.write_str(other.kind()),
        }
    }
}

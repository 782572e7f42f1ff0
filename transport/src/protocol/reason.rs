//! Why a worker was lost, why a run failed, went back, pauses or stands still, and why a
//! checkpoint was not written.
//!
//! The replicated state and the entries of the log hold these values, and no sentences: a build
//! that words a sentence in another way holds the same state. Each value displays itself as the
//! sentence for people. The words of a worker, or of a user's own code, stay as they came.

// The derive does not carry the docs of variants' fields over to the archived type.
#![allow(missing_docs)]

mod ends;

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use rkyv::{Archive, Deserialize, Serialize};

pub use self::ends::{LinkEnd, ProcessExit};
use super::ids::{NodeName, Shard, Step, WorkerId, WorkerLabel};

/// JSON has the sentence of a reason.
pub(super) fn as_words<S: serde::Serializer>(
    reason: &impl fmt::Display,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(reason)
}

/// JSON has the hexadecimal digits of a hash.
pub(super) fn as_hex<S: serde::Serializer>(
    hash: &[u8; 32],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&blake3::Hash::from_bytes(*hash).to_hex())
}

/// The name of a worker in a sentence.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub enum NamedWorker {
    /// The state remembers the worker.
    Label(WorkerLabel),
    /// The state has forgotten the worker, or never knew it.
    Id(WorkerId),
}

impl NamedWorker {
    /// The name of the worker with this id, of which the state remembers this label.
    pub fn of(worker: WorkerId, label: Option<WorkerLabel>) -> Self {
        label.map_or(Self::Id(worker), Self::Label)
    }
}

impl fmt::Display for NamedWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Label(label) => label.fmt(f),
            Self::Id(worker) => write!(f, "the worker with id {worker}"),
        }
    }
}

/// How long a device that hangs has been at one data shard or update, and how long that takes as a
/// rule.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceHang {
    /// How long it has been at a data shard or an update, milliseconds.
    pub spent_ms: u64,
    /// How long that takes there as a rule, milliseconds. 0 if that is not known: for the first
    /// after a build, and for a device that begins anew.
    pub usual_ms: u64,
}

impl fmt::Display for DeviceHang {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [spent, usual] = [self.spent_ms, self.usual_ms].map(Duration::from_millis);
        if usual.is_zero() {
            return write!(f, "its device has finished nothing for {spent:.1?}");
        }
        write!(
            f,
            "its device has been at one data shard or update for {spent:.1?}, which takes \
             {usual:.1?} there as a rule"
        )
    }
}

/// How a coordinator noticed that a worker is lost.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LossReason {
    /// The worker's link has ended.
    #[error("its link closed: {0}")]
    LinkClosed(LinkEnd),
    /// The worker has sent no heartbeat for so many milliseconds.
    #[error("no heartbeat for {:?}", Duration::from_millis(*.0))]
    Silent(u64),
    /// The member did not promise the next generation.
    #[error("it did not answer a Pause")]
    NoAnswer,
    /// The member and this one cannot reach each other, and one of them had to be left out.
    #[error("it and {0} cannot reach each other")]
    Unreachable(NamedWorker),
    /// Another process registered under the name of the worker's node.
    #[error("it registered anew")]
    RegisteredAnew,
    /// Another process of the same machine listens at the worker's address.
    #[error("another process listens at its address")]
    AddressReplaced,
    /// Another worker states the worker's address, perhaps of another machine.
    #[error("another worker states its address")]
    AddressStated,
    /// The launcher of the worker's process says that it has ended, and how.
    #[error("its process {0}")]
    ProcessEnded(ProcessExit),
    /// An earlier leader knew that the worker's process has ended.
    #[error("an earlier leader found that it has ended")]
    FoundDead,
    /// An operator revoked the worker's certificate.
    #[error("an operator revoked it")]
    Revoked,
    /// The worker cannot go on, in its own words.
    #[error("it failed: {0}")]
    Failed(String),
    /// The worker has given up what it held, in its own words, and tries again.
    #[error("it cannot compute yet: {0}")]
    CannotCompute(String),
    /// The worker's device hangs.
    #[error("{0}")]
    DeviceHangs(DeviceHang),
    /// The worker has left with all others, once a checkpoint had what they held.
    #[error("it has left")]
    Left,
}

/// Why a worker cannot compute a run.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct UnableReason {
    /// What keeps the worker from it.
    pub cause: UnableCause,
    /// The machine of a worker without a registration: an operator finds it by nothing else. `None`
    /// if it is not known.
    pub address: Option<IpAddr>,
}

/// What keeps a worker from computing a run.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnableCause {
    /// A lack or an error, in words that the worker says or is told.
    #[error("{0}")]
    Words(String),
    /// The worker's build of the model and the data has taken so many milliseconds, and goes on.
    #[error(
        "its build of the model and the data has taken {:?} so far", Duration::from_millis(*.0)
    )]
    BuildOverdue(u64),
}

impl fmt::Display for UnableReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)?;
        match self.address {
            Some(address) => write!(f, " (the worker is at {address})"),
            None => Ok(()),
        }
    }
}

/// Why a run has failed.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FailReason {
    /// An operator cancelled the run.
    #[error("it was cancelled")]
    Cancelled,
    /// A worker says that the run's history is broken, in its own words.
    #[error("{worker} cannot go on, nor may any other worker: {words}")]
    Broken { worker: NamedWorker, words: String },
    /// The last worker has failed, in its own words.
    #[error("{worker} was lost: it failed: {words}")]
    LastWorkerFailed { worker: NamedWorker, words: String },
    /// A member cannot compute the run, in its own words, nor could another worker.
    #[error("{worker} cannot compute it: {words}")]
    MemberUnable { worker: WorkerLabel, words: String },
    /// A run that has not begun cannot be computed by this worker, nor by so many others.
    #[error("{name} cannot compute it{}: {reason}", nor_others(*.others))]
    Unable { name: NodeName, others: u64, reason: UnableReason },
    /// Two owners of a parameter shard ended with different bits.
    #[error(
        "{} and {} ended with different copies of parameter shard {shard}", .owners.0, .owners.1
    )]
    OwnersDiffer { owners: (NodeName, NodeName), shard: Shard },
    /// The record of a generation takes more bytes than an entry of the log may have.
    #[error(
        "the record of a generation takes {bytes} bytes of the log, which takes {most} at most: \
         train with fewer workers or copies"
    )]
    RecordTooLarge { bytes: u64, most: u64 },
    /// The run was to go on from this checkpoint and from no other one, and a worker found damage
    /// in it, in these words.
    #[error("the checkpoint of step {step}, from which the run was to go on, is damaged: {damage}")]
    OriginDamaged { step: Step, damage: String },
    /// The run was to go on from a store in which no checkpoint is whole. A worker found damage in
    /// the last one, in these words.
    #[error("no checkpoint of the run is whole, and that of step {step} is damaged: {damage}")]
    NoWholeCheckpoint { step: Step, damage: String },
}

fn nor_others(others: u64) -> String {
    match others {
        0 => String::new(),
        1 => ", nor can another worker".into(),
        others => format!(", nor can {others} other workers"),
    }
}

impl FailReason {
    /// The names of nodes in it. An archive holds them as any text.
    pub(super) fn names(&self) -> Vec<&NodeName> {
        match self {
            Self::Unable { name, .. } => vec![name],
            Self::OwnersDiffer { owners: (one, other), .. } => vec![one, other],
            _ => Vec::new(),
        }
    }
}

/// Why a run went back.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub enum RollbackReason {
    /// An operator asked for it.
    Asked,
    /// Every owner of some parameter shards was lost.
    ShardsLost {
        /// The first of the shards.
        first: Shard,
        /// How many more shards were lost.
        more: u32,
        /// The workers that owned the first shard.
        owners: Vec<NamedWorker>,
    },
    /// The members were to restore the checkpoint of this step, and it is damaged.
    CheckpointDamaged(Step),
}

impl fmt::Display for RollbackReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked => f.write_str("an operator asked for it"),
            Self::ShardsLost { first, more, owners } => {
                let owners: Vec<String> = owners.iter().map(ToString::to_string).collect();
                let owners = owners.join(" and ");
                match more {
                    0 => write!(f, "parameter shard {first} was lost with {owners}"),
                    more => write!(
                        f,
                        "parameter shard {first}, of {owners}, and {more} others were lost"
                    ),
                }
            }
            Self::CheckpointDamaged(step) => {
                write!(f, "the checkpoint of step {step} is damaged")
            }
        }
    }
}

/// Why no device of a run gets on.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StandstillReason {
    /// The device of one worker hangs, and no other device gets on.
    #[error("{worker}: {hang}")]
    DeviceHangs { worker: NamedWorker, hang: DeviceHang },
}

/// Why a checkpoint was not written.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnsavedReason {
    /// The run went back to an earlier step.
    #[error("the run went back before that step")]
    WentBack,
    /// A worker cannot write its part or the manifest, or cannot use the store, in its own words.
    #[error("{worker}: {words}")]
    Worker { worker: NamedWorker, words: String },
    /// The worker that wrote the manifest and the workers that wrote the parts do not agree.
    #[error("{0} states another state hash than the parts have")]
    OtherHash(NamedWorker),
    /// The parts do not have this parameter shard, and none will come.
    #[error("no worker saved parameter shard {0}")]
    ShardMissing(Shard),
    /// The parts are whole, and a later checkpoint was complete before the manifest.
    #[error("its manifest was not written in time")]
    NoManifest,
    /// No part is known to the leader.
    #[error("no worker saved a part of it")]
    NoPart,
}

/// Why a worker does not write its part of a checkpoint, or the manifest.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub enum UnsavedPart {
    /// The part of an earlier step is still being written. So the checkpoint is skipped.
    Skipped {
        /// The step of that part.
        earlier: Step,
    },
    /// The worker cannot write it, in these words for the user.
    Failed(String),
}

/// Why a run pauses.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PauseReason {
    /// An operator asked for it.
    #[error("an operator asked for it")]
    Asked,
    /// A checkpoint was not written, in a run that asks for a pause then.
    #[error("the checkpoint of step {step} was not written: {reason}")]
    Unsaved { step: Step, reason: UnsavedReason },
}

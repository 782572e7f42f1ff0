//! The commands that change the cluster's history: the entries of the log.
//!
//! An entry says everything that its application needs, the time included. It does not know its
//! index or its term: the log gives it those.

// The derive does not carry the docs of variants' fields over to the archived type.
#![allow(missing_docs)]

use std::net::SocketAddr;

use everstep_transport::identity::{AcceptedToken, TokenId};
use everstep_transport::protocol::figures::RunFigures;
use everstep_transport::protocol::format::LogFormat;
use everstep_transport::protocol::message::Registration;
use everstep_transport::protocol::outcome::{EventKind, Outcome, WaitNotice};
use everstep_transport::protocol::reason::{LossReason, RollbackReason, UnsavedReason};
use everstep_transport::protocol::{
    CheckpointId, CoordinatorId, Generation, Lineage, ListedCheckpoint, NodeName, OperatorCommand,
    PreemptionNotice, Record, RequestId, RunId, Step, WorkerId,
};
use rkyv::{Archive, Deserialize, Serialize};

use super::awaited::OwnerWait;
use super::lines::Gap;

/// A command that the coordinators agree on, with the wall clock of its proposer.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct CommandEntry {
    /// The proposer's wall clock, milliseconds of Unix time.
    pub unix_ms: u64,
    /// The change of the state that the entry asks for.
    pub command: Command,
}

/// How a run does, as one coordinator knows it.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct RunSoFar {
    /// The newest step of which it has the line.
    pub steps: Step,
    /// The figures of the run. None if the command ends no run.
    pub figures: Option<RunFigures>,
}

/// What an entry changes.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub enum Command {
    /// A worker asks to take part.
    Register {
        /// The id of the run that it registers for.
        run: RunId,
        /// The name of the node that it runs on.
        name: NodeName,
        /// What the worker states of itself.
        registration: Registration,
    },
    /// The proposer leads, in the term of the entry.
    Lead {
        /// The id of the new leader.
        coordinator: CoordinatorId,
    },
    /// A worker that is no member is gone. A member goes only by a generation without it.
    Lose {
        /// The id of the worker that is gone.
        worker: WorkerId,
        /// How a coordinator noticed that.
        reason: LossReason,
    },
    /// A worker is to leave.
    Drain {
        /// The id of the worker that is to leave.
        worker: WorkerId,
    },
    /// A generation follows the current one.
    Generation(Change),
    /// No process has these metrics lines any more.
    LoseLines {
        /// The history that the lines belong to.
        lineage: Lineage,
        /// The steps of the lost lines.
        gap: Gap,
    },
    /// The history has to tell this event of a run.
    Note {
        /// The run that the proposer means. With another one under way, nothing changes.
        run: RunId,
        /// The event, as watchers get it.
        kind: EventKind,
    },
    /// A run is over.
    End {
        /// The run that the proposer means. With another one under way, nothing changes.
        run: RunId,
        /// How the run ended: complete, or failed for a reason.
        outcome: Outcome,
        /// How it did, as the proposer knows it from lines and events.
        figures: RunFigures,
        /// The newest step of which the proposer has the line.
        steps: Step,
    },
    /// An operator sends a command. The state carries it out once, however often this comes into
    /// the log.
    Request {
        /// The client's id, and the number that it gave this request.
        id: RequestId,
        /// What the operator asks for.
        command: OperatorCommand,
        /// The run as the proposer knows it, in case this ends the run.
        so_far: RunSoFar,
    },
    /// The cluster begins: the first entry about coordinators.
    Found {
        /// Whether the cluster is there for one run, and dismisses its workers afterwards.
        ephemeral: bool,
        /// The coordinator that founds the cluster, and is the first of it.
        founder: CoordinatorInfo,
        /// The tokens in the coordinators' files, which admit nodes from the beginning.
        tokens: Vec<AcceptedToken>,
    },
    /// A coordinator joins the others, or has moved to another address.
    Coordinator {
        /// Its id, if it was given one.
        id: Option<CoordinatorId>,
        /// What the coordinator tells of itself.
        coordinator: CoordinatorInfo,
    },
    /// The log goes on without a removed coordinator, and a majority of the others has this on
    /// disk. The removed coordinator's word is needed no more.
    ShutOut {
        /// The id of the removed coordinator.
        coordinator: CoordinatorId,
    },
    /// An operator goes on from the directory of one coordinator. All others are lost for good, and
    /// shut out. The directory may lack entries that were agreed on.
    Recover {
        /// The id of the coordinator that is left.
        survivor: CoordinatorId,
    },
    /// A node was admitted with a token.
    SpendToken {
        /// The id of the token that it has shown.
        token: TokenId,
        /// The name that the node was admitted under.
        node: NodeName,
    },
    /// The process of a member has ended, and the generation without it may take long. The member
    /// goes by that generation, as any other member does.
    Died(Loss),
    /// A change of generation waits for these owners of parameter shards, which may live. Or it
    /// waits for none.
    AwaitOwners {
        /// The newest generation there was when this was proposed: the wait ends with the next.
        generation: Generation,
        /// The owners, by id.
        owners: Vec<OwnerWait>,
        /// The wait as people see it, if there is one.
        awaited: Option<WaitNotice>,
    },
    /// A checkpoint is complete: its manifest is durable, and its step is settled.
    ListCheckpoint {
        /// The run that the proposer means. With another one under way, nothing changes.
        run: RunId,
        /// The checkpoint with its digests.
        checkpoint: ListedCheckpoint,
        /// Dropped checkpoints that the writer of the manifest has deleted.
        deleted: Vec<CheckpointId>,
        /// How many checkpoints were skipped between the one before and this one, as far as the
        /// proposer has heard.
        skipped: u64,
    },
    /// A worker has found damage in a checkpoint.
    DamageCheckpoint {
        /// The run that the proposer means. With another one under way, nothing changes.
        run: RunId,
        /// The checkpoint that cannot be restored.
        id: CheckpointId,
        /// The file, the shard, and what is wrong.
        reason: String,
    },
    /// A checkpoint is not written, and an event has to tell why.
    FailCheckpoint {
        /// The run that the proposer means. With another one under way, nothing changes.
        run: RunId,
        /// The checkpoint that is not written.
        id: CheckpointId,
        /// Why it is not written.
        reason: UnsavedReason,
    },
    /// A checkpoint is skipped, and an event has to tell so.
    SkipCheckpoint {
        /// The run that the proposer means. With another one under way, nothing changes.
        run: RunId,
        /// The checkpoint that is not written.
        id: CheckpointId,
        /// The step of the checkpoint that is being written.
        earlier: Step,
    },
    /// All members are to leave, and a checkpoint has all that they hold: they leave together.
    LeaveAll {
        /// The generation of these members.
        generation: Generation,
    },
    /// As Drain: a cloud takes the worker's machine back.
    Preempt {
        /// The id of the worker that is to leave.
        worker: WorkerId,
        /// The cloud, and the time that it leaves to the worker.
        notice: PreemptionNotice,
    },
}

/// A coordinator, as it tells of itself.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct CoordinatorInfo {
    /// The name in its certificate.
    pub name: NodeName,
    /// A number drawn once for its directory. With another directory it is another coordinator: it
    /// does not know what it promised under its old id.
    pub incarnation: u64,
    /// The address at which it listens for links.
    pub address: SocketAddr,
    /// The address of its HTTP API, if it has one.
    pub api: Option<SocketAddr>,
    /// The newest format of the log that its build reads.
    pub log_format: LogFormat,
}

/// A generation, and what it does to workers that are no part of it.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Change {
    /// The record of the generation that begins.
    pub record: Record,
    /// Members of the generation before that were lost.
    pub lost: Vec<Loss>,
    /// Members of the generation before that drained, and are free.
    pub left: Vec<WorkerId>,
    /// Whether a step was under way, and is done again.
    pub redone: bool,
    /// Pairs of members, the lower id first, that cannot reach each other, and of which neither can
    /// be left out.
    pub unreachable: Vec<(WorkerId, WorkerId)>,
    /// The last committed step, and the reason, if the run goes back to the resume step.
    pub rollback: Option<(Step, RollbackReason)>,
}

/// How a member was lost.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The member that was lost.
    pub worker: WorkerId,
    /// How the coordinator noticed that.
    pub reason: LossReason,
    /// From the member's last sign of life until then, milliseconds.
    pub detect_ms: u64,
    /// From then until the change was planned, milliseconds.
    pub pause_ms: u64,
}

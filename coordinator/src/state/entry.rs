//! What the log is made of: the commands that change the cluster's history.
//!
//! An entry says everything that its application needs, the time included. It does not know its
//! index or its term: those are given to it by the log.

// The derive does not carry the docs of variants' fields over to the archived type.
#![allow(missing_docs)]

use std::net::SocketAddr;

use everstep_transport::identity::{AcceptedToken, TokenId};
use everstep_transport::protocol::figures::RunFigures;
use everstep_transport::protocol::message::Registration;
use everstep_transport::protocol::outcome::{EventKind, Outcome};
use everstep_transport::protocol::{
    CoordinatorId, Generation, Lineage, NodeName, Record, RequestId, Step, Wish, WorkerId,
};
use rkyv::{Archive, Deserialize, Serialize};

use super::awaited::AwaitedOwner;
use super::lines::Gap;

/// What is agreed on, with the wall clock of its proposer.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Entry {
    /// The proposer's wall clock, milliseconds of Unix time.
    pub unix_ms: u64,
    /// What changes.
    pub command: Command,
}

/// What an entry changes.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub enum Command {
    /// A worker asks to take part.
    Register {
        /// For which run, by its id.
        run: u64,
        /// Its node.
        name: NodeName,
        /// What it states.
        registration: Registration,
    },
    /// The proposer leads, in the term of the entry.
    Lead {
        /// Its id.
        coordinator: CoordinatorId,
    },
    /// A worker that is no member is gone. A member goes by a generation without it, and only so.
    Lose {
        /// Its id.
        worker: WorkerId,
        /// How that was noticed.
        reason: String,
    },
    /// A worker shall leave.
    Drain {
        /// Its id.
        worker: WorkerId,
    },
    /// A generation follows the current one.
    Generation(Change),
    /// No process has these metrics lines any more.
    LoseLines {
        /// Of which history.
        lineage: Lineage,
        /// Of which steps.
        gap: Gap,
    },
    /// Something of a run that the history has to tell.
    Note {
        /// Of which run, by its id.
        run: u64,
        /// What.
        kind: EventKind,
    },
    /// A run is over.
    End {
        /// Which, by its id.
        run: u64,
        /// How.
        outcome: Outcome,
        /// How it did, as the proposer knows it from lines and events.
        figures: RunFigures,
        /// The newest step whose line the proposer has.
        steps: Step,
    },
    /// An operator wishes something. However often this comes into the log, it is done once.
    Request {
        /// Whose wish this is, and which.
        id: RequestId,
        /// What.
        wish: Wish,
        /// The newest step of the run whose line the proposer has, in case this ends the run.
        steps: Step,
    },
    /// The cluster begins: the first of all that is said of coordinators.
    Found {
        /// It is there for one run, and dismisses its workers afterwards.
        ephemeral: bool,
        /// The first coordinator.
        founder: Coordinator,
        /// The tokens in the coordinators' files, which admit nodes from the beginning.
        tokens: Vec<AcceptedToken>,
    },
    /// A coordinator is to be one of them, or is found elsewhere than before.
    Coordinator {
        /// Its id, if it was told one.
        id: Option<CoordinatorId>,
        /// As it tells of itself.
        coordinator: Coordinator,
    },
    /// The log goes on without a coordinator that was removed, and a majority of those that are
    /// left have this on their disks: its word is needed no more.
    ShutOut {
        /// Its id.
        coordinator: CoordinatorId,
    },
    /// An operator goes on from the directory of one coordinator: all others are lost for good, and
    /// shut out. The directory may lack entries that were agreed on.
    Recover {
        /// The id of the coordinator that is left.
        survivor: CoordinatorId,
    },
    /// A node was admitted with a token.
    SpendToken {
        /// Which.
        token: TokenId,
        /// The node.
        node: NodeName,
    },
    /// The process of a member has ended, and the generation without it may take long. The member
    /// goes by that generation, as any other.
    Died(Loss),
    /// A change of generation waits for owners of parameter shards that may live; or for none.
    AwaitOwners {
        /// The newest generation there was when this was proposed: the wait ends with the next.
        generation: Generation,
        /// The owners, by id.
        owners: Vec<AwaitedOwner>,
    },
}

/// A coordinator, as it tells of itself.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Coordinator {
    /// The name in its certificate.
    pub name: NodeName,
    /// Drawn once for its directory. With another directory it is another coordinator: what it
    /// promised under its old id, it does not know.
    pub incarnation: u64,
    /// Where it listens for links.
    pub address: SocketAddr,
    /// Where its HTTP API is, if it has one.
    pub api: Option<SocketAddr>,
}

/// A generation, and what it does to those who are not part of it.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Change {
    /// The generation.
    pub record: Record,
    /// Members of the generation before that were lost.
    pub lost: Vec<Loss>,
    /// Members of the generation before that drained, and are free.
    pub left: Vec<WorkerId>,
    /// A step was under way, and is done again.
    pub redone: bool,
    /// Pairs of members, the lower id first, that cannot reach each other, and of which neither can
    /// be left out.
    pub unreachable: Vec<(WorkerId, WorkerId)>,
    /// The run goes back to the resume step: the last step that was committed, and why.
    pub rollback: Option<(Step, String)>,
}

/// How a member was lost.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Its id.
    pub worker: WorkerId,
    /// How that was noticed.
    pub reason: String,
    /// From its last sign of life until then, milliseconds.
    pub detect_ms: u64,
    /// From then until the change was planned, milliseconds.
    pub pause_ms: u64,
}

//! What the log is made of: the commands that change the cluster's history.
//!
//! An entry says everything that its application needs, the time included. It does not know its
//! index or its term: those are given to it by the log.

// The derive does not carry the docs of variants' fields over to the archived type.
#![allow(missing_docs)]

use everstep_transport::protocol::message::Registration;
use everstep_transport::protocol::outcome::Outcome;
use everstep_transport::protocol::{MetricsLine, NodeName, Record, RunSpec, Step, WorkerId};
use rkyv::{Archive, Deserialize, Serialize};

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
    /// Train this.
    Submit(RunSpec),
    /// A worker asks to take part.
    Register {
        /// Its node.
        name: NodeName,
        /// What it states.
        registration: Registration,
    },
    /// The proposer leads, in the term of the entry.
    Lead,
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
    /// The run is over.
    End(Outcome),
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
    /// Lines of steps up to the resume step, in order, after those that were written at the
    /// proposal.
    pub lines: Vec<MetricsLine>,
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

//! What a run waits for before it goes on: workers, owners of parameter shards, or an operator.

// The derive does not carry the docs of variants' fields over to the archived type.
#![allow(missing_docs)]

use std::fmt;

use rkyv::{Archive, Deserialize, Serialize};

use crate::protocol::ids::{Step, WorkerId, WorkerLabel};
use crate::protocol::reason::{PauseReason, as_words};

/// A run that starts no step, because too few workers take part.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Number of workers that take part, or would.
    pub members: u32,
    /// Number of workers that the run needs.
    pub wanted: u32,
    /// Since when: wall clock of the coordinator, milliseconds of Unix time.
    pub since_unix_ms: u64,
}

/// A run that starts no step: no worker shows some parameter shards, and their owners may live.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Eq)]
pub struct OwnersAwaited {
    /// Number of parameter shards that no worker shows.
    pub shards: u32,
    /// The silent owners, by id.
    pub owners: Vec<WorkerId>,
    /// Since when: wall clock of the coordinator, milliseconds of Unix time.
    pub since_unix_ms: u64,
    /// The silent owners, by the names that people use.
    pub workers: Vec<WorkerLabel>,
    /// The step to which the run goes back if an operator gives them up: that of the newest
    /// checkpoint. 0: the initial state.
    pub checkpoint: Step,
}

impl fmt::Display for OwnersAwaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let called: Vec<String> = self.workers.iter().map(ToString::to_string).collect();
        let (is, has, it) = match called.len() {
            1 => ("is", "has", "it"),
            _ => ("are", "have", "they"),
        };
        let (called, shards, step) = (called.join(", "), self.shards, self.checkpoint);
        let plural = if shards == 1 { "" } else { "s" };
        write!(
            f,
            "{called} {is} silent, and no other worker holds {shards} parameter \
             shard{plural}; if {it} {has} ended for good, `everstep run rollback --step {step}` \
             gives up what {it} held"
        )
    }
}

/// A run that starts no step until an operator resumes it.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Eq)]
pub struct RunPause {
    /// What asked for it.
    pub by: PausedBy,
    /// The reason. JSON has its sentence.
    #[serde(serialize_with = "as_words")]
    pub reason: PauseReason,
    /// Since when it was asked for: wall clock of the coordinator, milliseconds of Unix time.
    pub since_unix_ms: u64,
    /// Whether the pause is in force. Before that the members finish the step under way.
    pub in_force: bool,
}

impl fmt::Display for RunPause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.by {
            PausedBy::Operator => f.write_str("paused by an operator"),
            PausedBy::FailedCheckpoint => write!(f, "paused, since {}", self.reason),
        }
    }
}

/// What pauses a run.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum PausedBy {
    /// An operator asked for it.
    Operator,
    /// A checkpoint that was not written, in a run that asks for a pause then.
    FailedCheckpoint,
}

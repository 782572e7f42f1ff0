//! What a run waits for before it goes on: workers, owners of parameter shards, or an operator.

// The derive does not carry the docs of variants' fields over to the archived type.
#![allow(missing_docs)]

use std::fmt;

use rkyv::{Archive, Deserialize, Serialize};

use crate::protocol::ids::{Step, WorkerId, WorkerLabel};
use crate::protocol::reason::{LossReason, PauseReason, as_words};

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
/// Each owner has its place in `owners`, `workers` and `reasons`.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Eq)]
pub struct WaitNotice {
    /// Number of parameter shards that no worker shows.
    pub shards: u32,
    /// The owners, by id.
    pub owners: Vec<WorkerId>,
    /// Since when: wall clock of the coordinator, milliseconds of Unix time.
    pub since_unix_ms: u64,
    /// The owners, by the names that people use.
    pub workers: Vec<WorkerLabel>,
    /// Why each of them is suspected. JSON has sentences.
    #[serde(serialize_with = "as_sentences")]
    pub reasons: Vec<LossReason>,
    /// The step to which the run goes back if an operator gives them up: that of the newest
    /// checkpoint. 0: the initial state.
    pub checkpoint: Step,
}

impl fmt::Display for WaitNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (has, it) = if self.workers.len() == 1 { ("has", "it") } else { ("have", "they") };
        let (shards, step, standings) = (self.shards, self.checkpoint, self.standings());
        let plural = if shards == 1 { "" } else { "s" };
        write!(f, "{standings}, and no other worker holds {shards} parameter shard{plural}. ")?;
        if self.silent().count() == self.workers.len() {
            write!(f, "If {it} {has} ended for good, ")?;
        }
        write!(f, "`everstep run rollback --step {step}` gives up what {it} held")
    }
}

impl WaitNotice {
    /// How each owner stands, in words: the silent ones together, each other one by its reason.
    fn standings(&self) -> String {
        let silent: Vec<String> = self.silent().map(ToString::to_string).collect();
        let is = if silent.len() == 1 { "is" } else { "are" };
        let silent = (!silent.is_empty()).then(|| format!("{} {is} silent", silent.join(", ")));
        let others =
            self.workers.iter().zip(&self.reasons).filter_map(|(worker, reason)| match reason {
                LossReason::DeviceHangs(hang) => Some(format!("{worker} hangs ({hang})")),
                LossReason::Revoked => Some(format!("{worker} is revoked")),
                _ => None,
            });
        silent.into_iter().chain(others).collect::<Vec<String>>().join(", ")
    }

    /// The owners of which nothing is heard, or no answer.
    fn silent(&self) -> impl Iterator<Item = &WorkerLabel> {
        let silent = |reason: &LossReason| {
            !matches!(reason, LossReason::DeviceHangs(_) | LossReason::Revoked)
        };
        let owners = self.workers.iter().zip(&self.reasons);
        owners.filter(move |(_, reason)| silent(reason)).map(|(worker, _)| worker)
    }
}

/// JSON has the sentences of reasons.
fn as_sentences<S: serde::Serializer>(
    reasons: &[LossReason],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(reasons.iter().map(ToString::to_string))
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

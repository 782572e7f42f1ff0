//! Records as format 1 stores them: with a commit that has no factor of the gradient, and a line
//! that has no evaluation.

// The types mirror those of that build. Their docs are at today's types.
#![allow(missing_docs)]

use everstep_transport::protocol::{
    Cause, Commit, Decision, Generation, LossScale, Member, MetricsLine, Ownership, Record, Step,
    Term,
};
use rkyv::{Archive, Deserialize, Serialize};

#[derive(Archive, Serialize, Deserialize)]
pub(super) struct RecordV1 {
    number: Generation,
    predecessor: Generation,
    term: Term,
    cause: Cause,
    members: Vec<Member>,
    owners: Vec<Ownership>,
    resume: Step,
    commit: Option<CommitV1>,
    waiting: bool,
}

impl From<RecordV1> for Record {
    fn from(record: RecordV1) -> Self {
        let RecordV1 { number, predecessor, term, cause, members, owners, .. } = record;
        let RecordV1 { resume, commit, waiting, .. } = record;
        let commit = commit.map(Into::into);
        Self { number, predecessor, term, cause, members, owners, resume, commit, waiting }
    }
}

#[derive(Archive, Serialize, Deserialize)]
struct CommitV1 {
    generation: Generation,
    step: Step,
    norm: f64,
    loss: f64,
    decision: Decision,
    updates: u64,
    loss_scale: LossScale,
    hold: bool,
    line: MetricsLineV1,
}

impl From<CommitV1> for Commit {
    fn from(commit: CommitV1) -> Self {
        Self {
            generation: commit.generation,
            step: commit.step,
            norm: commit.norm,
            loss: commit.loss,
            decision: commit.decision,
            // Format 1 knows no weights.
            gradient_factor: 1.0,
            updates: commit.updates,
            loss_scale: commit.loss_scale,
            hold: commit.hold,
            line: commit.line.into(),
        }
    }
}

#[derive(Archive, Serialize, Deserialize, Clone)]
pub(crate) struct MetricsLineV1 {
    step: Step,
    generation: Generation,
    world_size: u32,
    loss: f64,
    grad_norm: f64,
    decision: Decision,
    loss_scale: u32,
    learning_rate: f64,
    tokens: u64,
    seconds: f64,
    unix_ms: u64,
    compute_seconds: f64,
    commit_seconds: f64,
    samples_lost: u64,
    samples_repeated: u64,
}

impl From<MetricsLineV1> for MetricsLine {
    fn from(line: MetricsLineV1) -> Self {
        Self {
            step: line.step,
            generation: line.generation,
            world_size: line.world_size,
            loss: line.loss,
            grad_norm: line.grad_norm,
            decision: line.decision,
            loss_scale: line.loss_scale,
            learning_rate: line.learning_rate,
            tokens: line.tokens,
            seconds: line.seconds,
            unix_ms: line.unix_ms,
            compute_seconds: line.compute_seconds,
            commit_seconds: line.commit_seconds,
            samples_lost: line.samples_lost,
            samples_repeated: line.samples_repeated,
            validation_loss: None,
            metric: None,
            scalars: Vec::new(),
        }
    }
}

//! Records as format 1 stores them: with a commit that has no factor of the gradient.

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
    line: MetricsLine,
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
            line: commit.line,
        }
    }
}

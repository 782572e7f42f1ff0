//! How the checkpoints stand that are not listed: asked for, under way, failed, skipped.
//!
//! Every decision about such a checkpoint follows from this part of the state: whether an event
//! tells of a failure, whether the run pauses, whether a request is answered, and whether the run
//! may end. A leader proposes what workers tell it, and proposes only what is news. A skipped
//! checkpoint is no failure: it answers no request, pauses no run, and is never the run's last.

use std::collections::BTreeSet;

use everstep_transport::protocol::outcome::{EventKind, PausedBy};
use everstep_transport::protocol::reason::{PauseReason, UnsavedReason};
use everstep_transport::protocol::rejection::Rejection;
use everstep_transport::protocol::{CheckpointId, Generation, OnFailure, Record, Step};
use rkyv::{Archive, Deserialize, Serialize};

use super::{EntryOutcome, State};

/// How many failed checkpoints the state remembers: the newest.
const MAX_FAILED: usize = 16;

/// How a checkpoint of the run's history stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointStanding {
    /// A generation was asked to save it, and it is neither listed nor failed.
    Requested,
    /// It is due, or may be. Nothing is known of it.
    Pending,
    /// The run can go on from it, or could before it was damaged.
    Listed,
    /// An event has told that it is not written. It can be asked for anew.
    Failed,
}

/// A checkpoint that was asked for.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskedCheckpoint {
    /// The checkpoint of the requested state.
    pub id: CheckpointId,
    /// The newest generation that was asked to save it.
    pub generation: Generation,
}

/// Checkpoints that were skipped, one after the other. An event has told of the first.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
struct SkippedCheckpoints {
    first: CheckpointId,
    last: Step,
    /// How many there were before the newest listed checkpoint.
    count: u64,
}

/// What the log knows of checkpoints that are not listed.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub(super) struct CheckpointProgress {
    /// The checkpoint that a generation was asked to save, until it is listed or has failed.
    asked: Option<AskedCheckpoint>,
    /// Those of which an event has told that they failed, later than the newest listed one.
    failed: BTreeSet<CheckpointId>,
    skipped: Option<SkippedCheckpoints>,
}

impl CheckpointProgress {
    fn fail(&mut self, id: CheckpointId) {
        self.asked.take_if(|asked| asked.id == id);
        self.failed.insert(id);
        if self.failed.len() > MAX_FAILED {
            self.failed.pop_first();
        }
    }
}

impl State {
    /// How a checkpoint of the run's history stands.
    pub fn checkpoint_standing(&self, id: CheckpointId) -> CheckpointStanding {
        let progress = &self.checkpoints.progress;
        match () {
            () if progress.asked.is_some_and(|asked| asked.id == id) => {
                CheckpointStanding::Requested
            }
            () if progress.failed.contains(&id) => CheckpointStanding::Failed,
            () if self.checkpoints.find(id).is_some() => CheckpointStanding::Listed,
            () => CheckpointStanding::Pending,
        }
    }

    /// The checkpoint that a generation was asked to save, until it is listed or has failed.
    pub fn asked_checkpoint(&self) -> Option<AskedCheckpoint> {
        self.checkpoints.progress.asked
    }

    /// Whether the checkpoint of a step of the run's history has failed.
    pub fn has_failed(&self, step: Step) -> bool {
        self.checkpoints.progress.failed.iter().any(|failed| failed.step == step)
    }

    fn pauses_on_failure(&self) -> bool {
        let spec = self.run().and_then(|run| run.checkpoint.as_ref());
        spec.is_some_and(|spec| spec.on_failure == OnFailure::Pause) && self.pause().is_none()
    }

    /// Whether an event tells it if this checkpoint fails: the first that fails after the newest
    /// listed one, the run's last, one that was asked for, and one that makes the run pause.
    pub fn tells_failure(&self, id: CheckpointId) -> bool {
        let is_last = self.run().is_some_and(|run| run.steps == id.step.0);
        let is_next = self.checkpoints.newest_step() < id.step;
        let is_first = self.checkpoints.progress.failed.is_empty();
        self.is_of_history(id)
            && match self.checkpoint_standing(id) {
                CheckpointStanding::Requested => true,
                CheckpointStanding::Pending => {
                    is_next && (is_last || is_first || self.pauses_on_failure())
                }
                CheckpointStanding::Listed | CheckpointStanding::Failed => false,
            }
    }

    /// A checkpoint is not written. Only the failures of which an event tells are proposed.
    pub(super) fn fail_checkpoint(
        &mut self,
        unix_ms: u64,
        id: CheckpointId,
        reason: &UnsavedReason,
    ) -> Result<EntryOutcome, Rejection> {
        let CheckpointId { step, generation } = id;
        if !self.is_of_history(id) {
            return Err(Rejection::OtherHistory { step, generation });
        }
        if self.checkpoint_standing(id) == CheckpointStanding::Listed {
            return Err(Rejection::CheckpointListed(step));
        }
        if self.tells_failure(id) {
            let pauses = self.pauses_on_failure();
            self.checkpoints.progress.fail(id);
            let reason = reason.clone();
            self.events.note(unix_ms, EventKind::CheckpointFailed { step, reason: reason.clone() });
            if pauses {
                let reason = PauseReason::Unsaved { step, reason };
                self.begin_pause(unix_ms, PausedBy::FailedCheckpoint, reason);
            }
        }
        Ok(EntryOutcome::Accepted)
    }

    /// Whether an event tells it if a checkpoint is skipped now: none has told of one since
    /// checkpoints were last written in time.
    pub fn tells_skip(&self) -> bool {
        self.checkpoints.progress.skipped.is_none()
    }

    /// Whether a checkpoint may be skipped while an earlier one is being written: it is due, was
    /// not asked for, and is not the run's last.
    pub fn may_skip(&self, id: CheckpointId) -> bool {
        let is_last = self.run().is_none_or(|run| run.steps == id.step.0);
        let is_next = self.checkpoints.newest_step() < id.step;
        let standing = self.checkpoint_standing(id);
        !is_last && is_next && standing == CheckpointStanding::Pending && self.is_of_history(id)
    }

    /// A checkpoint is skipped, since an earlier one is being written.
    pub(super) fn skip_checkpoint(
        &mut self,
        unix_ms: u64,
        id: CheckpointId,
        earlier: Step,
    ) -> Result<EntryOutcome, Rejection> {
        let CheckpointId { step, generation } = id;
        if !self.is_of_history(id) {
            return Err(Rejection::OtherHistory { step, generation });
        }
        if self.may_skip(id) && self.tells_skip() {
            let skipped = SkippedCheckpoints { first: id, last: step, count: 0 };
            self.checkpoints.progress.skipped = Some(skipped);
            self.events.note(unix_ms, EventKind::CheckpointSkipped { step, earlier });
        }
        Ok(EntryOutcome::Accepted)
    }

    /// A checkpoint is about to be listed, after the newest one or before it. `skipped` says how
    /// many of those that were due in between were skipped, as far as the leader has heard.
    pub(super) fn settle_progress(&mut self, unix_ms: u64, id: CheckpointId, skipped: u64) {
        let spec = self.run().and_then(|run| run.checkpoint.as_ref());
        let newest = self.checkpoints.newest_step();
        let unwritten = spec.and_then(|spec| spec.due_between(newest, id.step));
        let is_last = self.run().is_some_and(|run| run.steps == id.step.0);
        let progress = &mut self.checkpoints.progress;
        progress.asked.take_if(|asked| asked.id == id);
        let failed = progress.failed.range(..CheckpointId { step: id.step, ..Default::default() });
        let have_failed = failed.count() > 0;
        progress.failed.retain(|failed| failed.step > id.step);
        let (from, to, count) = unwritten.unwrap_or_default();
        // The first failure always has an event. So without one there were only skips.
        let skips = if have_failed { skipped.min(count) } else { count };
        // A single one that failed has an event of its own.
        if count - skips > 1 {
            let count = count - skips;
            self.events.note(unix_ms, EventKind::CheckpointsResumed { from, to, count });
        }
        if let Some(skipped) = progress.skipped.as_mut().filter(|_| skips > 0) {
            (skipped.last, skipped.count) = (to, skipped.count + skips);
        }
        if newest < id.step && (skips == 0 || is_last) {
            let ended = progress.skipped.take_if(|skipped| skipped.last < id.step);
            if let Some(SkippedCheckpoints { first, last, count }) = ended.filter(|it| it.count > 1)
            {
                let (from, to) = (first.step, last);
                self.events.note(unix_ms, EventKind::CheckpointsSkipped { from, to, count });
            }
        }
    }

    /// A generation begins, and may save the state that it begins with.
    pub(super) fn begin_saving(&mut self, unix_ms: u64, record: &Record, is_news: bool) {
        let id = record.commit.as_ref().map(CheckpointId::of).filter(|_| record.saves());
        let Some(id) = id else { return };
        let is_listed = self.checkpoints.find_whole(id).is_some();
        let progress = &mut self.checkpoints.progress;
        let is_same = progress.asked.is_some_and(|asked| asked.id == id);
        progress.failed.remove(&id);
        let asked = AskedCheckpoint { id, generation: record.number };
        progress.asked = Some(asked).filter(|_| !is_listed);
        if is_news || !is_same {
            self.events.note(unix_ms, EventKind::CheckpointRequested { step: id.step });
        }
    }

    /// A generation begins, and may undo steps. A request for the checkpoint of such a step fails.
    pub(super) fn drop_undone_checkpoints(&mut self, unix_ms: u64) {
        let mut progress = std::mem::take(&mut self.checkpoints.progress);
        let undone = progress.asked.take_if(|asked| !self.is_of_history(asked.id));
        progress.failed.retain(|failed| self.is_of_history(*failed));
        progress.skipped.take_if(|skipped| !self.is_of_history(skipped.first));
        self.checkpoints.progress = progress;
        if let Some(asked) = undone {
            let (step, reason) = (asked.id.step, UnsavedReason::WentBack);
            self.events.note(unix_ms, EventKind::CheckpointFailed { step, reason });
        }
    }
}

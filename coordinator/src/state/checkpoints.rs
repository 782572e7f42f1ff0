//! The checkpoints that the log lists: the current run can be restored from each of them.
//!
//! A leader proposes to list a checkpoint when its manifest is durable and its step is settled. The
//! state refuses a checkpoint that is not of the run's history. A listing drops the checkpoints
//! that the run does not keep, and a rollback drops those of undone steps. Dropped ones stay on a
//! list until a worker has deleted them. This module knows no store: it takes the leader's word for
//! what is in one.

use std::collections::{BTreeMap, BTreeSet};

use everstep_transport::protocol::checkpoint::Retention;
use everstep_transport::protocol::outcome::EventKind;
use everstep_transport::protocol::rejection::Rejection;
use everstep_transport::protocol::{CheckpointId, Commit, ListedCheckpoint, RunOrigin, Step};
use rkyv::{Archive, Deserialize, Serialize};

use super::checkpoint_progress::CheckpointProgress;
use super::{EntryOutcome, State};

/// The run has checkpoints, and none that it may go back to can be restored. Only an operator lets
/// it begin anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoWholeCheckpoint;

/// The checkpoints of the current run.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct Checkpoints {
    /// The listed checkpoints, by step. Damaged ones are among them.
    listed: BTreeMap<Step, ListedCheckpoint>,
    /// The checkpoints that are listed no more, and that a worker has to delete.
    to_delete: BTreeSet<CheckpointId>,
    /// How those stand that are not listed.
    pub(super) progress: CheckpointProgress,
}

impl Checkpoints {
    /// Those of a run that goes on from what a store has. Later ones are to be deleted.
    pub(super) fn of_origin(origin: &RunOrigin) -> Self {
        let listed = origin.checkpoints.iter().map(|listed| (listed.commit.step, listed.clone()));
        let to_delete = origin.undone.iter().copied().collect();
        Self { listed: listed.collect(), to_delete, ..Self::default() }
    }

    /// The listed checkpoints, ascending by step. Damaged ones are among them.
    pub fn listed(&self) -> impl DoubleEndedIterator<Item = &ListedCheckpoint> {
        self.listed.values()
    }

    /// The newest step of which a checkpoint is listed, damaged or not. 0 if there is none: the
    /// initial state needs no checkpoint.
    pub fn newest_step(&self) -> Step {
        self.listed.last_key_value().map_or(Step(0), |(step, _)| *step)
    }

    /// The newest checkpoint that can be restored, of this step at most.
    pub fn newest_up_to(&self, step: Step) -> Option<&ListedCheckpoint> {
        let older = self.listed.range(..=step).rev().map(|(_, listed)| listed);
        older.into_iter().find(|listed| listed.damage.is_none())
    }

    /// The checkpoint for a run that goes back to this step at most. `None` if the run begins
    /// anew: it goes back to step 0, or has no checkpoint.
    ///
    /// # Errors
    /// [`NoWholeCheckpoint`]: damage of all checkpoints may be that of a disk that can be mended.
    pub fn to_restore(&self, step: Step) -> Result<Option<&ListedCheckpoint>, NoWholeCheckpoint> {
        match self.newest_up_to(step) {
            None if step > Step(0) && !self.listed.is_empty() => Err(NoWholeCheckpoint),
            found => Ok(found),
        }
    }

    /// The listed checkpoint of this step. It may be damaged.
    pub fn of_step(&self, step: Step) -> Option<&ListedCheckpoint> {
        self.listed.get(&step)
    }

    /// The checkpoint of this name, if it is listed. It may be damaged.
    pub fn find(&self, id: CheckpointId) -> Option<&ListedCheckpoint> {
        self.of_step(id.step).filter(|listed| listed.id() == id)
    }

    /// The checkpoint of this name, if it is listed and can be restored.
    pub fn find_whole(&self, id: CheckpointId) -> Option<&ListedCheckpoint> {
        self.find(id).filter(|listed| listed.damage.is_none())
    }

    /// The checkpoints that a worker has to delete, ascending by step.
    pub fn to_delete(&self) -> impl Iterator<Item = CheckpointId> {
        self.to_delete.iter().copied()
    }

    /// Lists a checkpoint, and drops those that the run does not keep. Pinned ones stay.
    pub(super) fn list(
        &mut self,
        checkpoint: ListedCheckpoint,
        retention: Retention,
        pinned: Option<Step>,
    ) {
        self.listed.insert(checkpoint.commit.step, checkpoint);
        let whole = self.listed.iter().filter(|(_, listed)| listed.damage.is_none());
        let whole = whole.map(|(step, _)| *step).collect();
        let pinned = pinned.into_iter().collect();
        for step in retention.expired(&whole, &pinned, &BTreeSet::new()) {
            let expired = self.listed.remove(&step);
            self.to_delete.extend(expired.map(|expired| expired.id()));
        }
    }

    /// A worker has deleted these.
    fn delete(&mut self, deleted: &[CheckpointId]) {
        self.to_delete.retain(|id| !deleted.contains(id));
    }

    /// The steps after this one are undone. Their checkpoints would be in the way of those of the
    /// same steps to come.
    pub(super) fn go_back(&mut self, step: Step) {
        let undone = self.listed.split_off(&step.next());
        self.to_delete.extend(undone.values().map(ListedCheckpoint::id));
    }

    /// A checkpoint cannot be restored.
    fn damage(&mut self, id: CheckpointId, reason: &str) -> Result<(), Rejection> {
        let listed = self.listed.get_mut(&id.step).filter(|listed| listed.id() == id);
        let listed = listed.ok_or(Rejection::NoCheckpoint(id.step))?;
        if listed.damage.is_some() {
            return Err(Rejection::CheckpointDamaged(id.step));
        }
        listed.damage = Some(reason.to_owned());
        Ok(())
    }

    /// A condition that applying an entry relies on, and that does not hold.
    pub(super) fn contradiction(&self) -> Option<&'static str> {
        let is_own = |(step, listed): (&Step, &ListedCheckpoint)| *step == listed.commit.step;
        match () {
            () if !self.listed.iter().all(is_own) => Some("a checkpoint is of another step"),
            () if self.listed.values().any(|listed| self.to_delete.contains(&listed.id())) => {
                Some("a listed checkpoint is to be deleted")
            }
            () => None,
        }
    }
}

/// Whether two commits are one, however each of them holds. The norm or the loss of a skipped step
/// may be NaN, which equals nothing.
pub(crate) fn is_same(one: &Commit, other: &Commit) -> bool {
    let verdict = |commit: &Commit| {
        let Commit { norm, loss, decision, updates, loss_scale, .. } = *commit;
        (CheckpointId::of(commit), norm.to_bits(), loss.to_bits(), decision, updates, loss_scale)
    };
    verdict(one) == verdict(other)
}

impl State {
    /// The checkpoints of the current run.
    pub fn checkpoints(&self) -> &Checkpoints {
        &self.checkpoints
    }

    /// Whether the step of this checkpoint can be of the run's history, by its generation. The
    /// state does not know which steps of the current generation are settled: a leader does, since
    /// their lines are written.
    pub fn is_of_history(&self, id: CheckpointId) -> bool {
        let Some(record) = self.record() else { return false };
        let CheckpointId { step, generation } = id;
        let resumed = record.commit.as_ref().map(CheckpointId::of);
        match step.cmp(&record.resume) {
            _ if step == Step(0) => false,
            std::cmp::Ordering::Greater => generation == record.number,
            std::cmp::Ordering::Equal => resumed == Some(id),
            std::cmp::Ordering::Less => {
                generation < record.number && self.lines.admits(step, generation)
            }
        }
    }

    /// A checkpoint is complete, and a worker has deleted others. `skipped` says how many were
    /// skipped since the one before.
    pub(super) fn list_checkpoint(
        &mut self,
        unix_ms: u64,
        checkpoint: &ListedCheckpoint,
        deleted: &[CheckpointId],
        skipped: u64,
    ) -> Result<EntryOutcome, Rejection> {
        let Some(run) = self.run() else { return Err(Rejection::NoRun) };
        let Some(spec) = &run.checkpoint else { return Err(Rejection::NotOfRun) };
        let id @ CheckpointId { step, generation } = checkpoint.id();
        if !(1..=run.steps).contains(&step.0) {
            return Err(Rejection::Unsettled { from: step, to: step });
        }
        if !self.is_of_history(id) {
            return Err(Rejection::OtherHistory { step, generation });
        }
        if self.checkpoints.listed.contains_key(&step) {
            return Err(Rejection::CheckpointListed(step));
        }
        let retention = spec.retention();
        self.settle_progress(unix_ms, id, skipped);
        self.checkpoints.delete(deleted);
        self.checkpoints.list(checkpoint.clone(), retention, self.runs.goes_back);
        let state_hash = checkpoint.state_hash;
        let (bytes, seconds) = (checkpoint.bytes, checkpoint.write_ms as f64 / 1e3);
        self.events.note(unix_ms, EventKind::Checkpoint { step, bytes, seconds, state_hash });
        self.meet_request(unix_ms);
        Ok(EntryOutcome::Accepted)
    }

    /// A worker has found damage in a checkpoint. The run goes back to it no more.
    pub(super) fn damage_checkpoint(
        &mut self,
        unix_ms: u64,
        id: CheckpointId,
        reason: &str,
    ) -> Result<EntryOutcome, Rejection> {
        self.checkpoints.damage(id, reason)?;
        let (step, reason) = (id.step, reason.to_owned());
        let is_last = self.checkpoints.to_restore(Step(u64::MAX)).is_err();
        self.events.note(unix_ms, EventKind::CheckpointDamaged { step, reason, is_last });
        Ok(EntryOutcome::Accepted)
    }

    /// Checks that the run can go back to this step: to the initial state, or to a checkpoint that
    /// can be restored.
    pub(super) fn can_go_back_to(&self, step: Step) -> Result<(), Rejection> {
        match self.checkpoints.listed.get(&step) {
            _ if step == Step(0) => Ok(()),
            Some(listed) if listed.damage.is_none() => Ok(()),
            Some(_) => Err(Rejection::CheckpointDamaged(step)),
            None => Err(Rejection::NoCheckpoint(step)),
        }
    }
}

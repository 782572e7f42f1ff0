//! The checkpoint of a run's last step: the run ends when it is listed, or when it has failed.

use std::time::Duration;

use everstep_transport::protocol::outcome::EventKind;
use everstep_transport::protocol::{CheckpointId, OnFailure, RunSpec, Step};
use everstep_transport::time::Time;

use crate::core::Core;

/// The end of a run waits this long for parts that members of an earlier generation had to save,
/// and for a store that is away.
pub(in crate::core) const STORE_GIVEN_UP_AFTER: Duration = Duration::from_secs(30);

/// Whether a run has a store, and goes on without checkpoints while that fails.
pub(in crate::core) fn goes_on_without_checkpoints(run: &RunSpec) -> bool {
    run.checkpoint.as_ref().is_some_and(|it| it.on_failure == OnFailure::Continue)
}

impl Core {
    /// Whether the run must not end yet, since the checkpoint of its last step is not listed.
    pub(in crate::core) fn lacks_last_checkpoint(&self) -> bool {
        let Some(run) = self.state.run().filter(|run| run.checkpoint.is_some()) else {
            return false;
        };
        let last = Step(run.steps);
        let pauses =
            run.checkpoint.as_ref().is_some_and(|spec| spec.on_failure == OnFailure::Pause);
        // Such a run pauses with the event, and an operator decides.
        let has_failed = if pauses { self.is_told_failed(last) } else { self.has_failed(last) };
        self.state.checkpoints().newest_step() < last && !has_failed
    }

    /// Whether the run has nothing left to do but its last checkpoint, or its model.
    pub(super) fn awaits_last_checkpoint(&self) -> bool {
        self.is_over() && self.lacks_last_checkpoint()
    }

    /// Whether the checkpoint of a step was not written. An earlier leader's word counts, too.
    pub(in crate::core) fn has_failed(&self, step: Step) -> bool {
        let is_own = |id: &CheckpointId| id.step == step && self.state.is_of_history(*id);
        self.checkpoints.failed.iter().any(is_own) || self.is_told_failed(step)
    }

    /// Whether an event has told that the checkpoint of a step was not written, and none since that
    /// it is asked for anew.
    fn is_told_failed(&self, step: Step) -> bool {
        let told = self.state.events().iter().rev().map(|event| &event.kind);
        let mut of_history = told.take_while(|kind| {
            !matches!(kind, EventKind::Rollback { to, .. } if *to < step)
                && !matches!(kind, EventKind::Submitted { .. })
                && **kind != EventKind::CheckpointRequested { step }
        });
        let is_it = |kind: &EventKind| match kind {
            EventKind::CheckpointFailed { step: failed, .. } => *failed == step,
            _ => false,
        };
        of_history.any(is_it)
    }

    /// Gives a checkpoint up that an earlier generation was asked for, if steps go on and its parts
    /// do not come.
    pub(super) fn give_asked_checkpoint_up(&mut self, now: Time) {
        let (Some(asked), Some(record)) = (self.state.asked_checkpoint(), self.state.record())
        else {
            return;
        };
        if asked.generation == record.number {
            return;
        }
        let pending = self.checkpoints.pending.get(&asked.id);
        let is_whole =
            pending.is_some_and(|pending| pending.cover(self.state.shards().unwrap_or(0)).is_ok());
        let heard = pending.map_or(Time(0), |pending| pending.heard());
        let since = self.checkpoints.renewed.max(heard);
        let is_over = now.since(since) >= STORE_GIVEN_UP_AFTER;
        if !is_whole && is_over && !self.checkpoints.failed.contains(&asked.id) {
            self.fail_incomplete(now, asked.id);
        }
    }

    /// Gives the last checkpoint up if a member that had to save a part of it is gone, or if the
    /// store is away and the run goes on without.
    pub(super) fn give_last_checkpoint_up(&mut self, now: Time) {
        if !self.awaits_last_checkpoint() {
            return;
        }
        let (Some(run), Some(record)) = (self.state.run(), self.state.record()) else { return };
        let last = Step(run.steps);
        let goes_on = goes_on_without_checkpoints(run);
        let generation = self.lines.generation_of(last).unwrap_or(record.number);
        let id = CheckpointId { step: last, generation };
        let is_there = |worker| self.state.is_member(worker);
        let away = self.checkpoints.store_errors.oldest(is_there).filter(|_| goes_on);
        let is_over = |since: Time| now.since(since) >= STORE_GIVEN_UP_AFTER;
        let away = away.filter(|(_, since, _)| is_over(*since));
        if let Some((worker, _, words)) = away {
            let reason = format!("{}: {words}", self.state.called(worker));
            return self.fail_checkpoint(now, id, reason);
        }
        let pending = self.checkpoints.pending.get(&id);
        let shards = self.state.shards().unwrap_or(0);
        let is_whole = pending.is_some_and(|pending| pending.cover(shards).is_ok());
        let heard = pending.map_or(Time(0), |pending| pending.heard());
        let changed = record.resume == last;
        if changed && !is_whole && is_over(self.checkpoints.renewed.max(heard)) {
            self.fail_incomplete(now, id);
        }
    }
}

//! The checkpoint of a run's last step: the run ends when it is listed, or when it has failed.

use std::time::Duration;

use everstep_transport::protocol::reason::UnsavedReason;
use everstep_transport::protocol::{CheckpointId, OnFailure, RunSpec, Step};
use everstep_transport::time::Time;

use crate::core::Core;

/// The end of a run waits this long for parts that members of an earlier generation had to save,
/// and for a store that is away.
pub(super) const STORE_GIVEN_UP_AFTER: Duration = Duration::from_secs(30);

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
        self.state.checkpoints().newest_step() < last && !self.state.has_failed(last)
    }

    /// Whether the run has nothing left to do but its last checkpoint, or its model.
    pub(super) fn awaits_last_checkpoint(&self) -> bool {
        self.is_over() && self.lacks_last_checkpoint()
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
        if !is_whole && is_over {
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
        let failed = self.checkpoints.without_store(now);
        let is_failed = |worker| failed.contains(&worker) && self.state.is_member(worker);
        let away = self.checkpoints.store_errors.oldest(is_failed).filter(|_| goes_on);
        if let Some((worker, _, words)) = away {
            let (worker, words) = (self.state.called(worker), words.to_owned());
            return self.fail_checkpoint(now, id, UnsavedReason::Worker { worker, words });
        }
        let pending = self.checkpoints.pending.get(&id);
        let shards = self.state.shards().unwrap_or(0);
        let is_whole = pending.is_some_and(|pending| pending.cover(shards).is_ok());
        let heard = pending.map_or(Time(0), |pending| pending.heard());
        let is_over = |since: Time| now.since(since) >= STORE_GIVEN_UP_AFTER;
        let changed = record.resume == last;
        if changed && !is_whole && is_over(self.checkpoints.renewed.max(heard)) {
            self.fail_incomplete(now, id);
        }
    }
}

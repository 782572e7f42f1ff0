//! How the checkpoints of a run become complete.
//!
//! A worker tells the leader of each part that is durable, and tells the newest one again to each
//! new leader. When the parts have all parameter shards, and the step is settled, the leader orders
//! one member to write the manifest. When the manifest is durable, the leader proposes the entry
//! that lists the checkpoint. If a part or the manifest cannot be written, an event says so once,
//! and the next due checkpoint follows. This knowledge is the leader's own: a new leader gets the
//! parts again. The leader knows no store, and waits for none except at the end of a run.

mod end;
mod manifest_order;
mod parts;
mod restore;
mod store_errors;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use everstep_transport::protocol::outcome::{Event, EventKind};
use everstep_transport::protocol::reason::UnsavedReason;
use everstep_transport::protocol::{
    CheckpointId, ListedCheckpoint, ManifestToWrite, Record, SavedPart, Step, WorkerId, WorkerPart,
    WrittenManifest,
};
use everstep_transport::time::Time;

pub(super) use self::end::{STORE_GIVEN_UP_AFTER, goes_on_without_checkpoints};
use self::manifest_order::ManifestOrder;
use self::parts::{PendingCheckpoint, hash_of};
pub use self::store_errors::CheckpointStoreError;
use self::store_errors::StoreErrors;
use super::workers::bounded;
use super::{Core, ShellEffect, invariants};
#[cfg(feature = "planted")]
use crate::plant::CorePlant;
use crate::state::{Command, EntryOutcome, State};

/// How many incomplete checkpoints the leader keeps the parts of: the newest.
const MAX_PENDING: usize = 4;
/// How many failed checkpoints the leader remembers: the newest.
const MAX_FAILED: usize = 16;
/// How many lines go to the store with one checkpoint: the newest.
const MAX_STORED_LINES: u64 = 16_384;

/// What the leader knows of checkpoints that are not listed.
#[derive(Debug, Default)]
pub(super) struct CheckpointWriting {
    pending: BTreeMap<CheckpointId, PendingCheckpoint>,
    order: Option<ManifestOrder>,
    /// Checkpoints that were not written. An event tells of each step.
    failed: BTreeSet<CheckpointId>,
    store_errors: StoreErrors,
    /// When the current generation began, or when this coordinator came to lead in it.
    renewed: Time,
}

impl CheckpointWriting {
    /// The knowledge of a coordinator that begins or ceases to lead now.
    pub(super) fn new(now: Time) -> Self {
        Self { renewed: now, ..Self::default() }
    }

    /// A generation begins. If it saves the state that it begins with, the primaries tell of their
    /// parts anew.
    pub(super) fn renew(&mut self, now: Time, record: &Record) {
        self.renewed = now;
        let saved = record.commit.as_ref().map(CheckpointId::of).filter(|_| record.saves());
        if let Some(id) = saved {
            self.drop_pending(id);
            self.failed.remove(&id);
        }
    }

    /// The workers that the store has failed for so long.
    pub(super) fn failing_since(&self, now: Time, span: Duration) -> BTreeSet<WorkerId> {
        self.store_errors.since(now, span)
    }

    /// Takes a part. Returns the oldest checkpoint if there are too many.
    fn take(&mut self, now: Time, worker: WorkerId, part: SavedPart) -> Option<CheckpointId> {
        let id = CheckpointId::of(&part.commit);
        let renewed = self.renewed;
        let pending = self.pending.entry(id).or_insert_with(|| PendingCheckpoint::new(renewed));
        pending.take(now, worker, part);
        let oldest = self.pending.keys().next().copied();
        oldest.filter(|_| self.pending.len() > MAX_PENDING)
    }

    /// A checkpoint is not pending any more.
    fn drop_pending(&mut self, id: CheckpointId) {
        self.pending.remove(&id);
        self.order.take_if(|order| order.id == id);
    }

    /// Drops the checkpoints of undone steps, and the words of workers that are gone.
    fn drop_undone(&mut self, state: &State) {
        self.pending.retain(|id, _| state.is_of_history(*id));
        self.order.take_if(|order| !state.is_of_history(order.id));
        self.store_errors.keep(|worker| state.is_present(worker));
    }

    /// A checkpoint is not written. Returns whether this is news.
    fn fail(&mut self, id: CheckpointId) -> bool {
        self.drop_pending(id);
        let is_news = self.failed.insert(id);
        if self.failed.len() > MAX_FAILED {
            self.failed.pop_first();
        }
        is_news
    }

    /// The checkpoints of steps before this one. No part of them will come, since each worker saves
    /// one checkpoint after the other, and none is taken: the next order has their parts swept.
    fn outrun_by(&self, step: Step) -> Vec<CheckpointId> {
        self.pending.keys().filter(|id| id.step < step).copied().collect()
    }
}

// What workers tell.
impl Core {
    /// A part of a checkpoint is durable.
    pub(super) fn saved(&mut self, now: Time, worker: WorkerId, part: SavedPart) {
        let id = CheckpointId::of(&part.commit);
        let agrees = |pending: &PendingCheckpoint| pending.agrees_with(&part);
        let fits = part.shards.is_sorted_by(|(a, _), (b, _)| a < b)
            && part.shards.last().is_some_and(|(last, _)| Some(last.0) < self.state.shards())
            && self.checkpoints.pending.get(&id).is_none_or(agrees);
        if !fits || !self.may_save(worker, id) {
            return self.links.ignore();
        }
        let newest = self.state.checkpoints().newest_step();
        if self.checkpoints.failed.contains(&id) || id.step <= newest {
            return;
        }
        if let Some(oldest) = self.checkpoints.take(now, worker, part) {
            self.fail_incomplete(now, oldest);
        }
        self.see_to_checkpoints(now);
    }

    /// A worker does not write its part of a checkpoint, or not its manifest.
    pub(super) fn unsaved(&mut self, now: Time, worker: WorkerId, id: CheckpointId, why: &str) {
        if !self.may_save(worker, id) {
            return self.links.ignore();
        }
        if self.state.checkpoints().find(id).is_some() {
            return;
        }
        let refuses = |order: &mut ManifestOrder| order.is_refused_by(worker, id);
        let is_order = self.checkpoints.order.as_mut().is_some_and(refuses);
        let order = self.checkpoints.order.as_ref();
        let others = order.is_some_and(|order| !order.is_refused_by_all(self.state.members()));
        if is_order && others {
            return self.see_to_checkpoints(now);
        }
        let reason = format!("{}: {}", self.state.called(worker), bounded(why));
        self.fail_checkpoint(now, id, reason);
    }

    /// The manifest of a checkpoint is durable.
    pub(super) fn wrote_manifest(&mut self, now: Time, worker: WorkerId, it: WrittenManifest) {
        let WrittenManifest { id, bytes, state_hash, deleted } = it;
        if !self.may_save(worker, id) {
            return self.links.ignore();
        }
        let Some(parts) = self.complete_parts(id) else { return };
        let is_own = hash_of(id.step, &parts) == state_hash;
        #[cfg(feature = "planted")]
        let is_own = is_own || self.state.plant == Some(CorePlant::ListWithoutPart);
        if !is_own {
            let reason = format!(
                "{} states another state hash than the parts have",
                self.state.called(worker)
            );
            return self.fail_checkpoint(now, id, reason);
        }
        invariants::check_checkpoint(self, id, &parts);
        let Some(pending) = self.checkpoints.pending.get_mut(&id) else { return };
        let checkpoint = pending.propose(bytes, state_hash);
        self.checkpoints.order = None;
        let run = self.state.run_id();
        self.propose(now, Command::ListCheckpoint { run, checkpoint, deleted });
    }

    /// Whether a worker has a word in a checkpoint: a member, or a worker that has just left, and a
    /// step of the run's history that is due or was asked for.
    fn may_save(&self, worker: WorkerId, id: CheckpointId) -> bool {
        let Some(run) = self.state.run() else { return false };
        let is_due = |step| run.checkpoint.as_ref().is_some_and(|it| it.is_due(step, run.steps));
        let is_asked = self.state.asked_checkpoint().is_some_and(|asked| asked.id == id);
        self.running()
            && (self.state.is_member(worker) || self.state.has_left(worker))
            && id.step <= Step(run.steps)
            && (is_due(id.step) || is_asked)
            && self.state.is_of_history(id)
    }
}

// What the leader does.
impl Core {
    /// Orders a member to write the next manifest, if it is time.
    pub(super) fn see_to_checkpoints(&mut self, now: Time) {
        if self.leader().is_none() || !self.running() {
            return;
        }
        self.checkpoints.drop_undone(&self.state);
        if self.change.is_free() {
            self.order_manifest(now);
        }
        self.give_last_checkpoint_up(now);
        self.give_asked_checkpoint_up(now);
    }

    fn order_manifest(&mut self, now: Time) {
        let mut pending = self.checkpoints.pending.keys().copied();
        let Some((id, parts)) = pending.find_map(|id| Some((id, self.complete_parts(id)?))) else {
            return;
        };
        let Self { checkpoints, state, links, health, .. } = self;
        let roster = super::Roster { now, state, links, detector: &health.detector };
        let writer = ManifestOrder::next_writer(&mut checkpoints.order, roster, id);
        let link = writer.and_then(|writer| self.links.of_registered(writer));
        if let (Some(term), Some(link)) = (self.leader(), link) {
            let generation = self.state.generation();
            let bitwise = self.state.divergence().is_none();
            let delete = self.state.checkpoints().to_delete().collect();
            let sweep = self.state.checkpoints().newest_step();
            #[cfg(feature = "planted")]
            let sweep = match self.state.plant {
                Some(CorePlant::SweepAhead) => Step(u64::MAX),
                _ => sweep,
            };
            invariants::check_sweep(self, id, sweep);
            let (lines, events) = (Vec::new(), self.events_since_checkpoint());
            let order =
                ManifestToWrite { term, generation, parts, bitwise, delete, sweep, lines, events };
            let (to, after, to_step) = (link, self.stored_lines(id.step), id.step);
            let order = Box::new(order);
            self.outbox.push(ShellEffect::OrderManifest { to, after, to_step, order });
        }
    }

    /// The step up to which the store has the lines: that of the checkpoint before this step. A
    /// checkpoint takes along the newest [`MAX_STORED_LINES`] at most.
    fn stored_lines(&self, step: Step) -> Step {
        let listed = self.state.checkpoints().listed().map(|listed| listed.commit.step);
        let before = listed.filter(|listed| *listed < step).max().unwrap_or_default();
        before.max(Step(step.0.saturating_sub(MAX_STORED_LINES)))
    }

    /// The events since the newest checkpoint was listed, as far as the state has them.
    fn events_since_checkpoint(&self) -> Vec<Event> {
        let events = self.state.events();
        let is_listing = |event: &Event| matches!(event.kind, EventKind::Checkpoint { .. });
        let newest = events.iter().rposition(is_listing);
        events.iter().skip(newest.map_or(0, |at| at + 1)).cloned().collect()
    }

    /// The parts of a checkpoint that is settled, whole, and neither listed nor about to be.
    fn complete_parts(&self, id: CheckpointId) -> Option<Vec<WorkerPart>> {
        let pending = self.checkpoints.pending.get(&id).filter(|pending| !pending.is_proposed())?;
        let is_settled = self.is_settled(id);
        let parts = pending.cover(self.state.shards()?);
        #[cfg(feature = "planted")]
        let is_settled = is_settled || self.state.plant == Some(CorePlant::ListUnsettled);
        #[cfg(feature = "planted")]
        let parts = match self.state.plant {
            Some(CorePlant::ListWithoutPart) => Ok(pending.all()),
            _ => parts,
        };
        parts.ok().filter(|_| is_settled)
    }

    /// Whether the step of a checkpoint is settled, and of its generation: the line is written.
    pub(super) fn is_settled(&self, id: CheckpointId) -> bool {
        let is_own = self.lines.generation_of(id.step).map(|it| it == id.generation);
        self.written() >= id.step && is_own.unwrap_or_else(|| self.state.is_of_history(id))
    }

    /// The log has decided on a listing.
    pub(super) fn listed(&mut self, now: Time, it: &ListedCheckpoint, verdict: &EntryOutcome) {
        let id = it.id();
        self.checkpoints.drop_pending(id);
        if *verdict != EntryOutcome::Accepted {
            return;
        }
        for outrun in self.checkpoints.outrun_by(id.step) {
            self.fail_incomplete(now, outrun);
        }
        self.conclude(now);
    }

    /// The parts of a checkpoint do not have all shards, and none will come.
    pub(super) fn fail_incomplete(&mut self, now: Time, id: CheckpointId) {
        let shards = self.state.shards().unwrap_or(0);
        let lacks = self.checkpoints.pending.get(&id).map(|pending| pending.cover(shards));
        let reason = match lacks {
            Some(Err(shard)) => format!("no worker saved parameter shard {shard}"),
            Some(Ok(_)) => "its manifest was not written in time".into(),
            None => "no worker saved a part of it".into(),
        };
        self.fail_checkpoint(now, id, reason);
    }

    /// A checkpoint is not written, for this reason. An event tells of the first that fails, of the
    /// run's last, and of one that was asked for. The listing of a later one tells of the others.
    fn fail_checkpoint(&mut self, now: Time, id: CheckpointId, reason: String) {
        let is_known = self.has_failed(id.step);
        self.departures.save_failed(now);
        let last = self.state.run().map_or(Step(0), |run| Step(run.steps));
        let is_asked = self.state.asked_checkpoint().is_some_and(|asked| asked.id == id);
        let is_told = id.step == last || is_asked || !self.fails_since(id);
        if self.checkpoints.fail(id) && !is_known && is_told {
            let reason = UnsavedReason::Words(reason);
            self.note(now, EventKind::CheckpointFailed { step: id.step, reason });
        }
        self.conclude(now);
    }

    /// Whether an event has told of another checkpoint that failed since the newest one was listed.
    fn fails_since(&self, id: CheckpointId) -> bool {
        let newest = self.state.checkpoints().newest_step();
        let is_later = |step: Step| newest < step && step != id.step && newest < id.step;
        let mut known = self.checkpoints.failed.iter().filter(|it| self.state.is_of_history(**it));
        let mut told = self.state.events().iter().rev().take_while(|event| {
            let kind = &event.kind;
            !matches!(kind, EventKind::Rollback { .. } | EventKind::Submitted { .. })
        });
        known.any(|known| is_later(known.step))
            || told.any(|event| match event.kind {
                EventKind::CheckpointFailed { step, .. } => is_later(step),
                _ => false,
            })
    }
}

//! How the checkpoints of a run become complete.
//!
//! A worker tells the leader of each part that is durable, and tells the newest one again to each
//! new leader. When the parts have all parameter shards, and the step is settled, the leader orders
//! one member to write the manifest. When the manifest is durable, the leader proposes the entry
//! that lists the checkpoint. If a part or the manifest cannot be written, the checkpoint has
//! failed. If a worker still writes an earlier part, the checkpoint is skipped. In both cases the
//! next due checkpoint follows. The log alone says what has failed and what was asked for
//! (`state/checkpoint_progress.rs`). What this module knows besides is the leader's own: a new
//! leader gets the parts again. The leader knows no store, and waits for none except at the end of
//! a run.

mod end;
mod manifest_order;
mod parts;
mod restore;
mod store_errors;
mod verification;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use everstep_transport::protocol::outcome::{Event, EventKind};
use everstep_transport::protocol::reason::{UnsavedPart, UnsavedReason};
use everstep_transport::protocol::{
    CheckpointId, ListedCheckpoint, ManifestToWrite, Record, SavedPart, Step, WorkerId, WorkerPart,
    WrittenManifest,
};
use everstep_transport::time::Time;

use self::end::STORE_GIVEN_UP_AFTER;
pub(super) use self::end::goes_on_without_checkpoints;
use self::manifest_order::ManifestOrder;
use self::parts::{PendingCheckpoint, hash_of};
pub use self::restore::RestoreProgress;
pub use self::store_errors::CheckpointStoreError;
use self::store_errors::StoreErrors;
use self::verification::OrderedVerification;
use super::workers::bounded;
use super::{Core, ShellEffect, invariants};
#[cfg(feature = "planted")]
use crate::plant::CorePlant;
use crate::state::{CheckpointStanding, Command, EntryOutcome, State};

/// How many checkpoints the leader keeps the parts of before they are listed: the newest, and the
/// checkpoint with a manifest that is being written.
const MAX_PENDING: usize = 4;
/// Of how many checkpoints the leader takes no further part: the newest that some worker does not
/// write.
const MAX_GIVEN_UP: usize = 16;
/// How many skipped checkpoints the leader remembers until a later one is listed: the newest.
const MAX_SKIPPED: usize = 4_096;
/// How many lines go to the store with one checkpoint: the newest.
const MAX_STORED_LINES: u64 = 16_384;

/// What the leader knows of checkpoints that are not listed.
#[derive(Debug, Default)]
pub(super) struct CheckpointWriting {
    pending: BTreeMap<CheckpointId, PendingCheckpoint>,
    order: Option<ManifestOrder>,
    /// Checkpoints that some worker does not write. Further parts of them are of no use.
    given_up: BTreeSet<CheckpointId>,
    /// Skipped checkpoints that are later than the newest listed one.
    skipped: BTreeSet<CheckpointId>,
    /// An entry is on its way that says that a checkpoint is skipped.
    tells_skip: bool,
    store_errors: StoreErrors,
    verification: Option<OrderedVerification>,
    /// When the current generation began, or when this coordinator came to lead in it.
    renewed: Time,
}

impl CheckpointWriting {
    /// The knowledge of a coordinator that begins or ceases to lead now.
    pub(super) fn new(now: Time) -> Self {
        Self { renewed: now, ..Self::default() }
    }

    /// A generation begins, as the state has it. If it saves the state that it begins with, the
    /// primaries tell of their parts anew.
    pub(super) fn renew(&mut self, now: Time, record: &Record, state: &State) {
        self.renewed = now;
        self.skipped.retain(|id| state.is_of_history(*id));
        let saved = record.commit.as_ref().map(CheckpointId::of).filter(|_| record.saves());
        if let Some(id) = saved {
            self.drop_pending(id);
            self.given_up.remove(&id);
        }
    }

    /// The workers that have said for so long that the store fails them.
    pub(super) fn failing_for(&self, span: Duration) -> BTreeSet<WorkerId> {
        self.store_errors.lasting(span)
    }

    /// The workers that say that the store is away for good.
    pub(super) fn without_store(&self, now: Time) -> BTreeSet<WorkerId> {
        self.store_errors.lasting_until(now, STORE_GIVEN_UP_AFTER)
    }

    /// Takes the part of a worker. Its checkpoint may be new here.
    fn take(&mut self, now: Time, worker: WorkerId, part: SavedPart) {
        let id = CheckpointId::of(&part.commit);
        let renewed = self.renewed;
        let pending = self.pending.entry(id).or_insert_with(|| PendingCheckpoint::new(renewed));
        pending.take(now, worker, part);
    }

    /// The checkpoints that are about to be listed, and the checkpoint with the manifest that is
    /// under way. If there are none, the oldest checkpoint that is whole: its manifest comes next.
    fn being_written(&self, shards: u32) -> BTreeSet<CheckpointId> {
        let proposed = self.pending.iter().filter(|(_, pending)| pending.is_proposed());
        let ordered = self.order.as_ref().map(|order| order.id);
        let written: BTreeSet<_> = proposed.map(|(id, _)| *id).chain(ordered).collect();
        if !written.is_empty() {
            return written;
        }
        let whole = self.pending.iter().find(|(_, pending)| pending.cover(shards).is_ok());
        whole.map(|(id, _)| *id).into_iter().collect()
    }

    /// A checkpoint is not pending any more.
    fn drop_pending(&mut self, id: CheckpointId) {
        self.pending.remove(&id);
        self.order.take_if(|order| order.id == id);
    }

    /// Drops the checkpoints of undone steps, and the words of workers that are gone.
    fn drop_undone(&mut self, state: &State) {
        self.pending.retain(|id, _| state.is_of_history(*id));
        self.given_up.retain(|id| state.is_of_history(*id));
        self.order.take_if(|order| !state.is_of_history(order.id));
        self.store_errors.keep(|worker| state.is_present(worker));
    }

    /// A checkpoint is not written. Returns whether this is news.
    fn give_up(&mut self, id: CheckpointId) -> bool {
        self.drop_pending(id);
        let is_news = self.given_up.insert(id);
        if self.given_up.len() > MAX_GIVEN_UP {
            self.given_up.pop_first();
        }
        is_news
    }

    /// A checkpoint is skipped.
    fn skip(&mut self, id: CheckpointId) {
        if self.give_up(id) {
            self.skipped.insert(id);
        }
        if self.skipped.len() > MAX_SKIPPED {
            self.skipped.pop_first();
        }
    }

    /// The log has taken the entry that says that a checkpoint is skipped.
    pub(super) fn skip_told(&mut self) {
        self.tells_skip = false;
    }

    /// How many checkpoints were skipped between those of two steps.
    fn skipped_between(&self, listed: Step, step: Step) -> u64 {
        let skipped = self.skipped.iter().filter(|it| listed < it.step && it.step < step);
        skipped.count() as u64
    }

    /// A checkpoint is listed: nothing earlier is pending any more.
    fn drop_outrun(&mut self, step: Step) {
        for outrun in self.outrun_by(step) {
            self.drop_pending(outrun);
        }
        self.skipped.retain(|skipped| skipped.step > step);
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
        let has_failed = self.state.checkpoint_standing(id) == CheckpointStanding::Failed;
        if has_failed || self.checkpoints.given_up.contains(&id) || id.step <= newest {
            return;
        }
        self.checkpoints.take(now, worker, part);
        self.see_to_checkpoints(now);
        if self.checkpoints.pending.len() > MAX_PENDING {
            self.drop_oldest(now);
        }
    }

    /// Parts come faster than lines and manifests are written. One checkpoint is kept until it is
    /// listed, or none would ever be. The oldest of the others makes room.
    fn drop_oldest(&mut self, now: Time) {
        let shards = self.state.shards().unwrap_or(0);
        let Self { checkpoints, state, .. } = self;
        let written = checkpoints.being_written(shards);
        let others = checkpoints.pending.iter().filter(|(id, _)| !written.contains(id));
        let mut others = others.map(|(id, pending)| (*id, pending.cover(shards).is_ok()));
        let oldest = others.find(|(id, is_whole)| !is_whole || state.may_skip(*id));
        match (oldest, written.first()) {
            (Some((id, true)), Some(earlier)) => self.skipped(now, id, earlier.step),
            (Some((id, _)), _) => self.fail_incomplete(now, id),
            (None, _) => {}
        }
    }

    /// A worker does not write its part of a checkpoint, or not its manifest.
    pub(super) fn unsaved(
        &mut self,
        now: Time,
        worker: WorkerId,
        id: CheckpointId,
        reason: UnsavedPart,
    ) {
        if !self.may_save(worker, id) {
            return self.links.ignore();
        }
        match reason {
            UnsavedPart::Skipped { earlier } => self.skipped(now, id, earlier),
            UnsavedPart::Failed(words) => self.cannot_save(now, worker, id, &words),
        }
    }

    /// A worker still writes an earlier part, so the next checkpoint is skipped. An event tells of
    /// the first, and the listing of a later checkpoint of the others.
    fn skipped(&mut self, now: Time, id: CheckpointId, earlier: Step) {
        if !self.state.may_skip(id) {
            return;
        }
        self.checkpoints.skip(id);
        if self.state.tells_skip() && !self.checkpoints.tells_skip {
            self.checkpoints.tells_skip = true;
            let run = self.state.run_id();
            self.propose(now, Command::SkipCheckpoint { run, id, earlier });
        }
    }

    fn cannot_save(&mut self, now: Time, worker: WorkerId, id: CheckpointId, words: &str) {
        if self.state.checkpoint_standing(id) == CheckpointStanding::Listed {
            return;
        }
        let refuses = |order: &mut ManifestOrder| order.is_refused_by(worker, id, words);
        let is_order = self.checkpoints.order.as_mut().is_some_and(refuses);
        let order = self.checkpoints.order.as_ref();
        let others =
            order.is_some_and(|order| order.refusal_of_all(self.state.members()).is_none());
        if is_order && others {
            return self.see_to_checkpoints(now);
        }
        let (worker, words) = (self.state.called(worker), bounded(words));
        self.fail_checkpoint(now, id, UnsavedReason::Worker { worker, words });
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
            let reason = UnsavedReason::OtherHash(self.state.called(worker));
            return self.fail_checkpoint(now, id, reason);
        }
        invariants::check_checkpoint(self, id, &parts);
        let Some(pending) = self.checkpoints.pending.get_mut(&id) else { return };
        let checkpoint = pending.propose(bytes, state_hash);
        self.checkpoints.order = None;
        self.fail_outrun(now, id.step);
        let newest = self.state.checkpoints().newest_step();
        let skipped = self.checkpoints.skipped_between(newest, id.step);
        let run = self.state.run_id();
        self.propose(now, Command::ListCheckpoint { run, checkpoint, deleted, skipped });
    }

    /// A later checkpoint is complete before these: no part of them will come.
    fn fail_outrun(&mut self, now: Time, step: Step) {
        let asked = self.state.asked_checkpoint().map(|asked| asked.id);
        let asked = asked.filter(|asked| asked.step < step);
        let mut outrun: BTreeSet<CheckpointId> = asked.into_iter().collect();
        outrun.extend(self.checkpoints.outrun_by(step));
        for id in outrun {
            self.fail_incomplete(now, id);
        }
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
        self.fail_refused(now);
        if self.change.is_free() {
            self.order_manifest(now);
        }
        self.give_last_checkpoint_up(now);
        self.give_asked_checkpoint_up(now);
    }

    /// A manifest that no member can write keeps later ones from being written.
    fn fail_refused(&mut self, now: Time) {
        let Some(order) = &self.checkpoints.order else { return };
        let Some((worker, words)) = order.refusal_of_all(self.state.members()) else { return };
        let (worker, words) = (self.state.called(*worker), words.clone());
        self.fail_checkpoint(now, order.id, UnsavedReason::Worker { worker, words });
    }

    fn order_manifest(&mut self, now: Time) {
        let mut pending = self.checkpoints.pending.keys().copied();
        let Some((id, parts)) = pending.find_map(|id| Some((id, self.complete_parts(id)?))) else {
            return;
        };
        let Self { checkpoints, state, links, health, .. } = self;
        let roster = health.roster(now, state, links);
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
        self.checkpoints.drop_outrun(id.step);
        self.conclude(now);
    }

    /// The parts of a checkpoint do not have all shards, and none will come.
    pub(super) fn fail_incomplete(&mut self, now: Time, id: CheckpointId) {
        let shards = self.state.shards().unwrap_or(0);
        let lacks = self.checkpoints.pending.get(&id).map(|pending| pending.cover(shards));
        let reason = match lacks {
            Some(Err(shard)) => UnsavedReason::ShardMissing(shard),
            Some(Ok(_)) => UnsavedReason::NoManifest,
            None => UnsavedReason::NoPart,
        };
        self.fail_checkpoint(now, id, reason);
    }

    /// A checkpoint is not written, for this reason. The state says of which failures an event
    /// tells. The listing of a later checkpoint tells of the others.
    fn fail_checkpoint(&mut self, now: Time, id: CheckpointId, reason: UnsavedReason) {
        let is_news = self.checkpoints.give_up(id) | self.checkpoints.skipped.remove(&id);
        if is_news {
            self.departures.save_failed(now);
        }
        if is_news && self.state.tells_failure(id) {
            let run = self.state.run_id();
            self.propose(now, Command::FailCheckpoint { run, id, reason });
        }
    }
}

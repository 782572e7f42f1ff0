//! Checkpoints: which states this worker saves, which manifest it writes, and what it restores.
//!
//! A step is due by the run's specification alone. The device hands out the states of which this
//! worker is primary, and the store's thread writes them while training goes on. A step that is due
//! meanwhile is skipped, and the leader hears so. While the store fails, one part waits beside the
//! one that is tried, and no more: each holds states of its own. The last step is never skipped:
//! its part follows the earlier ones. The leader hears of a durable part again whenever another
//! coordinator comes to lead.
//!
//! The core does not know the store, and never waits for it.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::VecDeque;

use everstep_transport::protocol::reason::UnsavedPart;
use everstep_transport::protocol::{
    CheckpointId, Commit, Generation, ManifestToWrite, Message, Record, SavedPart, Shard, Step,
    Term, Verification, WrittenManifest,
};

use super::{Core, Phase};
use crate::step::event::{Effect, Job, PartToSave, Report, ShardToSave, StoreJob, StoreReport};
use crate::step::member::Member;

/// What the core knows of the run's checkpoints.
#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    /// The newest due step that this worker has seen to: the worker saves it once.
    seen: Option<CheckpointId>,
    /// The newest generation that asked for a checkpoint, and was seen to.
    asked: Generation,
    /// The checkpoints of the parts that the store's thread has, in order.
    writing: VecDeque<CheckpointId>,
    /// The newest durable part.
    saved: Option<SavedPart>,
    /// The newest checkpoint that this worker does not write, and why, unless it has saved a later
    /// part.
    unsaved: Option<(CheckpointId, UnsavedPart)>,
    /// The manifest that the store's thread writes.
    manifest: Option<CheckpointId>,
    /// The checkpoint that the store's thread reads for an operator.
    verifying: Option<CheckpointId>,
    /// The checkpoint that this worker could not restore in this generation, and why.
    damaged: Option<(CheckpointId, String)>,
    /// Why the store does not do what this worker wants, while its thread tries again.
    error: Option<String>,
}

impl Checkpoints {
    /// Another generation begins. What is not part of its history counts no more.
    pub(super) fn renew(&mut self, record: &Record) {
        if record.begins_anew() {
            // The checkpoint that the generation begins with is there already.
            self.seen = record.restores();
        }
        self.saved.take_if(|part| !is_history(record, &part.commit));
        self.unsaved.take_if(|(id, _)| id.step > record.resume && id.generation < record.number);
        self.damaged = None;
    }

    /// Whether a part is being written, by a store that does what is asked.
    pub(super) fn is_writing(&self) -> bool {
        !self.writing.is_empty() && self.error.is_none()
    }

    /// The step for which a due one is skipped: the newest part that the store's thread has, if it
    /// may have no other one. The first of two parts gives way once an attempt to write it has
    /// failed, which may take minutes.
    fn skips_for(&self) -> Option<Step> {
        let most = if self.error.is_some() { 2 } else { 1 };
        self.writing.back().filter(|_| self.writing.len() >= most).map(|newest| newest.step)
    }

    /// The store's thread no longer has a part of this checkpoint.
    fn ended(&mut self, id: CheckpointId) {
        if let Some(at) = self.writing.iter().position(|writing| *writing == id) {
            self.writing.remove(at);
        }
    }

    /// Why the store does not do what this worker wants. None while it does.
    pub(super) fn error(&self) -> Option<String> {
        self.error.clone()
    }
}

/// Whether a commit is part of the history of a record's generation.
fn is_history(record: &Record, commit: &Commit) -> bool {
    commit.step <= record.resume || commit.generation == record.number
}

impl Core {
    /// Handles the states that the device hands out. Returns any other report.
    pub(super) fn follow_saving(&mut self, report: Report) -> Option<Report> {
        match report {
            Report::Saving { commit, shards } => self.save(*commit, shards),
            other => return Some(other),
        }
        None
    }

    /// Has a due step saved, unless a part of an earlier one is still being written. A generation
    /// that asks for a checkpoint does not skip it, nor does any generation skip the last one: its
    /// part follows the earlier ones. A part has a name of the current generation, in which the
    /// primaries stay. So the same name always stands for the same shards.
    fn save(&mut self, commit: Commit, shards: Vec<ShardToSave>) {
        let (id, Some(worker)) = (CheckpointId::of(&commit), self.worker()) else { return };
        let Some(record) = self.record() else { return };
        let (number, is_current) = (record.number, is_history(record, &commit));
        let is_beginning = record.commit.as_ref().map(CheckpointId::of) == Some(id);
        // Where a generation begins with a state, its members save that themselves. What the device
        // handed out for the generation before may lack shards of which this worker is primary now.
        if is_beginning && !self.are_primaries(&shards) {
            return;
        }
        let is_asked = record.saves() && is_beginning;
        if is_asked {
            self.checkpoints.seen = Some(id);
            return self.save_anew(PartToSave { worker, generation: number, commit, shards });
        }
        // A state that a rollback has undone is not seen to: if it counted, the checkpoint of that
        // rollback would be due again, and its part would be written over.
        if !is_current || self.checkpoints.seen.replace(id) == Some(id) {
            return;
        }
        let is_last = self.run().is_some_and(|run| id.step == Step(run.steps));
        if let Some(earlier) = self.checkpoints.skips_for().filter(|_| !is_last) {
            return self.give_up(id, UnsavedPart::Skipped { earlier });
        }
        self.write_part(PartToSave { worker, generation: number, commit, shards });
    }

    /// Whether these are the shards of which this worker is primary in its generation.
    fn are_primaries(&self, shards: &[ShardToSave]) -> bool {
        let owned = self.member().into_iter().flat_map(|member| member.plan().owned());
        let primaries = owned.filter(|(_, primary)| **primary).map(|(shard, _)| *shard);
        primaries.eq(shards.iter().map(|of| of.shard))
    }

    /// Has the state saved that a generation begins with, once, under a name of that generation: an
    /// earlier try at the same step may have failed, or may have had other primaries. A durable
    /// part with just these shards is told again instead.
    fn save_anew(&mut self, to_save: PartToSave) {
        let PartToSave { generation, commit, shards, .. } = &to_save;
        if std::mem::replace(&mut self.checkpoints.asked, *generation) == *generation {
            return;
        }
        // What became of an earlier try is of no interest to the next leader.
        let id = CheckpointId::of(commit);
        self.checkpoints.unsaved.take_if(|(given_up, _)| *given_up == id);
        let own = shards.iter().map(|of| of.shard);
        let is_this = |part: &SavedPart| {
            CheckpointId::of(&part.commit) == id
                && part.shards.iter().map(|(shard, _)| *shard).eq(own)
        };
        match self.checkpoints.saved.as_ref().is_some_and(is_this) {
            true => self.report_saved(),
            false => self.write_part(to_save),
        }
    }

    fn write_part(&mut self, part: PartToSave) {
        self.checkpoints.writing.push_back(CheckpointId::of(&part.commit));
        self.out.push_back(Effect::Store(StoreJob::Save(part)));
    }

    /// The leader asks for the manifest of a checkpoint.
    pub(super) fn write_manifest(&mut self, order: ManifestToWrite) {
        let id = order.parts.first().map(|of| CheckpointId::of(&of.part.commit));
        let obeys = self.obeys(order.term, order.generation);
        if obeys && id.is_some() && self.checkpoints.manifest != id {
            self.checkpoints.manifest = id;
            self.out.push_back(Effect::Store(StoreJob::Manifest(Box::new(order))));
        }
    }

    /// The leader asks whether a checkpoint is damaged.
    pub(super) fn verify(&mut self, term: Term, id: CheckpointId) {
        if self.leader.hear(term) && self.checkpoints.verifying != Some(id) {
            self.checkpoints.verifying = Some(id);
            self.out.push_back(Effect::Store(StoreJob::Verify { id }));
        }
    }

    /// The store's thread says how far it has read a checkpoint, or what that has shown.
    fn verified(&mut self, id: CheckpointId, state: Verification) {
        if !matches!(state, Verification::Reading { .. }) {
            self.checkpoints.verifying.take_if(|verifying| *verifying == id);
        }
        self.send_to_leader(Message::Verification { id, state });
    }

    /// A generation begins from a checkpoint: the worker reads the shards that it owns.
    pub(super) fn restore(&mut self) {
        let Phase::Training(member) = &self.phase else { return };
        let Some((id, shards)) = member.to_restore() else { return };
        let generation = self.generation();
        self.out.push_back(Effect::Store(StoreJob::Restore { generation, id, shards }));
        self.store_model_again();
    }

    /// The store's thread reports.
    pub(super) fn store(&mut self, report: StoreReport) {
        match report {
            StoreReport::Saved(part) => self.saved(part),
            StoreReport::Unsaved { id, reason } => {
                self.checkpoints.ended(id);
                self.give_up(id, UnsavedPart::Failed(reason));
            }
            StoreReport::Manifest(written) => self.wrote_manifest(written),
            StoreReport::NoManifest { id, reason } => {
                self.checkpoints.manifest.take_if(|manifest| *manifest == id);
                self.give_up(id, UnsavedPart::Failed(reason));
            }
            StoreReport::Restored { generation, shard, digest, parts } => {
                if generation == self.generation() {
                    self.give_restored(shard, digest, parts);
                }
            }
            StoreReport::Damaged { generation, id, reason } => {
                if generation == self.generation() {
                    self.checkpoints.damaged = Some((id, reason));
                    self.report_damage();
                }
            }
            StoreReport::Verification { id, state } => self.verified(id, state),
            StoreReport::Stored { generation, place } => self.stored(generation, place),
            StoreReport::Failing(error) => self.checkpoints.error = error,
        }
        self.end_if_free();
    }

    fn saved(&mut self, part: SavedPart) {
        let id = CheckpointId::of(&part.commit);
        self.checkpoints.ended(id);
        let is_current = self.record().is_some_and(|record| is_history(record, &part.commit));
        if is_current {
            self.checkpoints.saved = Some(part);
            self.checkpoints.unsaved.take_if(|(given_up, _)| given_up.step <= id.step);
            self.report_saved();
        }
    }

    /// The worker does not write a part, or a manifest.
    fn give_up(&mut self, id: CheckpointId, reason: UnsavedPart) {
        self.checkpoints.unsaved = Some((id, reason.clone()));
        self.send_to_leader(Message::Unsaved { id, reason });
    }

    fn wrote_manifest(&mut self, written: WrittenManifest) {
        self.checkpoints.manifest.take_if(|manifest| *manifest == written.id);
        self.send_to_leader(Message::WrittenManifest(written));
    }

    fn give_restored(
        &mut self,
        shard: Shard,
        digest: u64,
        parts: Vec<everstep_kernels::buffer::Buffer>,
    ) {
        let Phase::Training(member) = &self.phase else { return };
        if let Some((id, _)) = member.to_restore() {
            let restore = Job::Restore { shard, version: id.step, digest, parts };
            self.out.push_back(Effect::Device(restore));
        }
    }

    /// Tells the leader of the newest durable part, of what is not written, and of damage, once
    /// more.
    pub(super) fn repeat_checkpoints(&mut self) {
        self.report_saved();
        if let Some((id, reason)) = self.checkpoints.unsaved.clone() {
            self.send_to_leader(Message::Unsaved { id, reason });
        }
        self.report_damage();
    }

    fn report_saved(&mut self) {
        if let Some(part) = self.checkpoints.saved.clone() {
            self.send_to_leader(Message::Saved(part));
        }
    }

    fn report_damage(&mut self) {
        if let Some((id, reason)) = self.checkpoints.damaged.clone() {
            self.send_to_leader(Message::Damaged { id, reason });
        }
    }

    fn record(&self) -> Option<&Record> {
        self.member().map(Member::plan).map(|plan| plan.record())
    }
}

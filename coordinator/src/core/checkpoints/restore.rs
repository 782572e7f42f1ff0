//! Checkpoints that are read: what follows from a damaged one, and what operators see of them.

use everstep_transport::protocol::checkpoint::step_folder;
use everstep_transport::protocol::outcome::Outcome;
use everstep_transport::protocol::{
    CheckpointId, CheckpointSpec, CheckpointView, ListedCheckpoint, Record, Step, WorkerId,
};
use everstep_transport::time::Time;
use serde::Serialize;

use crate::core::Core;
use crate::core::workers::bounded;
use crate::state::{Command, EntryOutcome};

/// How far members have read the checkpoint that they restore. Each owner of a shard reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RestoreProgress {
    /// The step of the checkpoint.
    pub step: Step,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that are to be read.
    pub total_bytes: u64,
}

impl RestoreProgress {
    /// So much of so much, in words.
    pub(crate) fn words(&self) -> String {
        let [read, total] = [self.read_bytes, self.total_bytes].map(|bytes| bytes as f64 / 1e6);
        format!("{read:.1} of {total:.1} MB")
    }
}

impl Core {
    /// How far the members have read the checkpoint that they restore, as far as the leader knows.
    pub(in crate::core) fn restore_progress(&self) -> Option<RestoreProgress> {
        let id = self.leader().and_then(|_| self.restores())?;
        let start = RestoreProgress { step: id.step, read_bytes: 0, total_bytes: 0 };
        let of_members = self.state.members().filter_map(|member| self.restore_of(member));
        Some(of_members.fold(start, |sum, of| RestoreProgress {
            step: id.step,
            read_bytes: sum.read_bytes + of.read_bytes,
            total_bytes: sum.total_bytes + of.total_bytes,
        }))
    }

    /// How far a member has read the checkpoint. A member that has told nothing has read nothing.
    pub(in crate::core) fn restore_of(&self, member: WorkerId) -> Option<RestoreProgress> {
        let id = self.leader().and_then(|_| self.restores())?;
        let (record, listed) = (self.state.record()?, self.state.checkpoints().find(id)?);
        let rank = record.rank(member)?;
        let owned = record.owners.iter().filter(|ownership| ownership.owners.contains(&rank));
        let owned: u128 = owned.map(|ownership| u128::from(ownership.count)).sum();
        let shards = u128::from(record.shards().max(1));
        let total_bytes = (u128::from(listed.bytes) * owned / shards) as u64;
        let unread = self.health.unread(member, record.number).unwrap_or(total_bytes);
        let read_bytes = total_bytes.saturating_sub(unread);
        Some(RestoreProgress { step: id.step, read_bytes, total_bytes })
    }

    /// The checkpoint that the members restore: no step was committed since.
    pub(in crate::core) fn restores(&self) -> Option<CheckpointId> {
        let id = self.state.record().and_then(Record::restores)?;
        (self.change.reached() <= id.step).then_some(id)
    }

    /// Whether the members restore a checkpoint that is known to be damaged.
    pub(in crate::core) fn restores_damaged(&self) -> bool {
        self.restores().is_some_and(|id| self.state.checkpoints().find_whole(id).is_none())
    }

    /// A worker has found damage in a checkpoint.
    pub(in crate::core) fn damaged(
        &mut self,
        now: Time,
        worker: WorkerId,
        id: CheckpointId,
        why: &str,
    ) {
        let is_listed = self.state.checkpoints().find(id).is_some();
        if !is_listed || !self.state.is_member(worker) {
            return self.links.ignore();
        }
        self.note_damage(now, id, bounded(why));
    }

    /// Proposes that a listed checkpoint is damaged, unless the log knows.
    pub(super) fn note_damage(&mut self, now: Time, id: CheckpointId, reason: String) {
        if self.state.checkpoints().find_whole(id).is_some() {
            let run = self.state.run_id();
            self.propose(now, Command::DamageCheckpoint { run, id, reason });
        }
    }

    /// The log knows of damage. If the members restore that checkpoint, the run goes back to an
    /// older one. A run that another cluster has begun fails if there is none.
    pub(in crate::core) fn damage_known(&mut self, now: Time, verdict: &EntryOutcome) {
        if *verdict == EntryOutcome::Accepted
            && self.restores_damaged()
            && !self.ends_without_checkpoint(now)
        {
            self.go_back(now);
        }
    }

    /// Ends a run that another cluster has begun if the checkpoint that its members restore is
    /// damaged, and none may take its place. Returns whether it does.
    pub(in crate::core) fn ends_without_checkpoint(&mut self, now: Time) -> bool {
        let damaged = self.leader().and_then(|_| self.restores());
        let reason = damaged.and_then(|id| self.state.cannot_resume(id));
        let is_over = reason.is_some();
        if let Some(reason) = reason {
            self.propose_end(now, Outcome::Failed { name: None, reason });
        }
        is_over
    }

    /// The step of the newest checkpoint that can be restored. 0 if there is none.
    pub(in crate::core) fn newest_checkpoint(&self) -> Step {
        let newest = self.state.checkpoints().newest_up_to(Step(u64::MAX));
        newest.map_or(Step(0), |listed| listed.commit.step)
    }

    /// The checkpoints of the current run, ascending by step.
    pub(in crate::core) fn checkpoint_views(&self) -> Vec<CheckpointView> {
        let spec = self.state.run().and_then(|run| run.checkpoint.as_ref());
        let Some(spec) = spec else { return Vec::new() };
        self.state.checkpoints().listed().map(|listed| view(spec, listed)).collect()
    }
}

fn view(spec: &CheckpointSpec, listed: &ListedCheckpoint) -> CheckpointView {
    let step = listed.commit.step;
    CheckpointView {
        step,
        bytes: listed.bytes,
        seconds: Some(listed.write_ms as f64 / 1e3),
        state_hash: Some(blake3::Hash::from_bytes(listed.state_hash).to_hex().to_string()),
        complete: listed.damage.is_none(),
        path: spec.path_of(&step_folder(step)),
        damage: listed.damage.clone(),
    }
}

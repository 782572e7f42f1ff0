//! I16: every listed owner can reach the resume version from its own state, and every shard has at
//! least one owner. I6, as far as a record is about it: no plan gives up a copy that is needed.

use std::collections::BTreeMap;

use everstep_transport::protocol::{Cause, Record, Shard, Step, WorkerId};

use super::{Breach, Invariant};

/// The versions that each device has reported, or will hold after the jobs that it was given.
#[derive(Debug, Default)]
pub(super) struct HeldVersions(BTreeMap<WorkerId, BTreeMap<Shard, Step>>);

impl HeldVersions {
    /// A device holds a version of a shard. A newer version that it has a job for counts instead.
    pub(super) fn holds(&mut self, worker: WorkerId, shard: Shard, version: Step) {
        let held = self.0.entry(worker).or_default().entry(shard).or_default();
        *held = version.max(*held);
    }

    /// A device has restored a shard.
    pub(super) fn restored(&mut self, worker: WorkerId, shard: Shard, version: Step) {
        self.0.entry(worker).or_default().insert(shard, version);
    }

    /// A device has a job to make a version of a shard that it holds.
    pub(super) fn given(&mut self, worker: WorkerId, shard: Shard, version: Step) {
        if let Some(held) = self.0.get_mut(&worker).and_then(|held| held.get_mut(&shard)) {
            *held = version;
        }
    }

    /// A device has entered a generation. It holds these shards, and perhaps some that it syncs.
    pub(super) fn entered(
        &mut self,
        worker: WorkerId,
        owned: &[(Shard, Step, u64)],
        resume: Step,
    ) -> Result<(), Breach> {
        let held = self.0.entry(worker).or_default();
        held.extend(owned.iter().map(|(shard, version, _)| (*shard, *version)));
        let other = owned.iter().find(|(_, version, _)| *version != resume);
        other.map_or(Ok(()), |(shard, version, _)| {
            let seen = format!(
                "worker {worker} enters with shard {shard} at version {version}, not {resume}"
            );
            Err((Invariant::I16, seen))
        })
    }

    /// A worker is gone, or has discarded everything.
    pub(super) fn gone(&mut self, worker: WorkerId) {
        self.0.remove(&worker);
    }

    /// A leader proposes a generation after another one. A copy that lags by one step has the
    /// reduced gradient of the recorded commit: its worker could not have voted for that step
    /// otherwise.
    pub(super) fn proposed(
        &self,
        record: &Record,
        before: Option<&Record>,
        copies: u32,
    ) -> Result<(), Breach> {
        let resume = record.resume;
        // The state follows from the seed, or is in a checkpoint.
        let Some(before) = before.filter(|_| resume > Step(0) && record.cause != Cause::Rollback)
        else {
            return Ok(());
        };
        // Before the first step after a restore, a worker may not have heard yet that its device
        // has read its shards. It does not state them then, and the checkpoint has them.
        let is_restored = before.restores().is_none_or(|id| id.step < resume);
        for shard in (0..record.shards()).map(Shard) {
            let owners: Vec<WorkerId> = owners(record, shard).collect();
            if let Some(worker) = owners.iter().find(|it| !self.reaches(**it, shard, resume)) {
                let held = self.0.get(worker).and_then(|held| held.get(&shard));
                let seen = format!(
                    "generation {} lists worker {worker} as owner of shard {shard} at version \
                     {resume}, but it holds {held:?}",
                    record.number
                );
                return Err((Invariant::I16, seen));
            }
            let kept = owners_before(before, record, shard);
            let holders = kept.filter(|worker| self.reaches(*worker, shard, resume)).count();
            if is_restored && owners.len() < holders.min(copies as usize) {
                let seen = format!(
                    "generation {} lists {owners:?} as owners of shard {shard}, but {holders} of \
                     those before are members and hold it",
                    record.number
                );
                return Err((Invariant::I6, seen));
            }
        }
        Ok(())
    }

    fn reaches(&self, worker: WorkerId, shard: Shard, resume: Step) -> bool {
        let version = self.0.get(&worker).and_then(|held| held.get(&shard));
        version.is_some_and(|version| *version == resume || version.next() == resume)
    }
}

fn owners(record: &Record, shard: Shard) -> impl Iterator<Item = WorkerId> {
    record.owners_of(shard).iter().map(|rank| record.member(*rank).worker)
}

/// The former owners of a shard that are also members of the next generation.
fn owners_before(before: &Record, record: &Record, shard: Shard) -> impl Iterator<Item = WorkerId> {
    owners(before, shard).filter(|worker| record.rank(*worker).is_some())
}

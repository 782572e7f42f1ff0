//! I3: every copy of a parameter shard at one version has the same bits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use everstep_transport::protocol::{Record, Shard, Step, WorkerId};

use super::{Breach, Invariant, RunHistory, ShardCopy};

#[derive(Debug)]
pub(super) struct Copies {
    reference: Option<Arc<RunHistory>>,
    /// For each version of each shard, the first digest, and the worker that had it.
    first: BTreeMap<(Step, Shard), (WorkerId, u64)>,
    /// Workers whose memory was corrupted.
    corrupted: BTreeSet<WorkerId>,
    /// The copies of those workers that differ, with their newest versions.
    diverged: BTreeMap<(WorkerId, Shard), Step>,
}

impl Copies {
    pub(super) fn new(reference: Option<Arc<RunHistory>>) -> Self {
        let (first, corrupted, diverged) = Default::default();
        Self { reference, first, corrupted, diverged }
    }

    /// From now on the worker's copies may differ. If it owns one of them, no member may commit on
    /// top of that. A copy that it only syncs is no part of a commit.
    pub(super) fn corrupted(&mut self, worker: WorkerId) {
        self.corrupted.insert(worker);
    }

    /// Whether no worker's memory was corrupted.
    pub(super) fn are_trusted(&self) -> bool {
        self.corrupted.is_empty()
    }

    pub(super) fn committed(&self, step: Step, record: &Record) -> Result<(), Breach> {
        let owns = |worker, shard| {
            let rank = record.rank(worker);
            rank.is_some_and(|rank| record.owners_of(shard).contains(&rank))
        };
        let mut older = self.diverged.iter().filter(|(_, version)| **version < step);
        let found = older.find(|((worker, shard), _)| owns(*worker, *shard));
        let Some(((worker, shard), version)) = found else { return Ok(()) };
        let seen = format!(
            "step {step} is committed, and worker {worker} has another version {version} of shard \
             {shard}"
        );
        Err((Invariant::I19, seen))
    }

    pub(super) fn updated(&mut self, worker: WorkerId, copy: ShardCopy<'_>) -> Result<(), Breach> {
        let Some(digest) = copy.digest else { return Ok(()) };
        let key @ (version, shard) = (copy.version, copy.shard);
        let (owner, first) = *self.first.entry(key).or_insert((worker, digest));
        let reference = self.reference.as_ref().and_then(|run| run.digests.get(&key).copied());
        let other = match reference {
            Some(known) if known != digest => format!("the reference has {known:016x}"),
            None if first != digest => format!("worker {owner} has {first:016x}"),
            _ => {
                self.diverged.remove(&(worker, shard));
                return Ok(());
            }
        };
        if self.corrupted.contains(&worker) || self.corrupted.contains(&owner) {
            self.diverged.insert((worker, shard), version);
            return Ok(());
        }
        let seen = format!(
            "worker {worker} has {digest:016x} of shard {shard} at version {version}, {other}"
        );
        Err((Invariant::I3, seen))
    }

    /// A device was given the state of a shard, with the digest that it must have.
    pub(super) fn offered(&self, worker: WorkerId, copy: ShardCopy<'_>) -> Result<(), Breach> {
        let key = (copy.version, copy.shard);
        let reference = self.reference.as_ref().and_then(|run| run.digests.get(&key).copied());
        let known = reference.or_else(|| self.first.get(&key).map(|(_, first)| *first));
        match known.zip(copy.digest) {
            Some((first, digest)) if first != digest && self.corrupted.is_empty() => {
                let ShardCopy { version, shard, .. } = copy;
                let seen = format!(
                    "worker {worker} takes on shard {shard} at version {version} with \
                     {digest:016x}, not {first:016x}"
                );
                Err((Invariant::I3, seen))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn digests(&self) -> BTreeMap<(Step, Shard), u64> {
        self.first.iter().map(|(key, (_, digest))| (*key, *digest)).collect()
    }
}

//! The parts of one checkpoint that workers have told.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use everstep_transport::protocol::outcome::{WorkerResult, state_hash};
use everstep_transport::protocol::{
    Commit, ListedCheckpoint, SavedPart, Shard, Step, WorkerId, WorkerPart,
};
use everstep_transport::time::Time;

use crate::state::is_same;

/// A checkpoint of which not all parts are known. A worker that is gone leaves its part: the file
/// is durable.
#[derive(Debug)]
pub(super) struct PendingCheckpoint {
    parts: BTreeMap<WorkerId, SavedPart>,
    /// When the newest part came.
    heard: Time,
    /// Whether the leader has proposed to list the checkpoint.
    is_proposed: bool,
}

impl PendingCheckpoint {
    pub(super) fn new(now: Time) -> Self {
        Self { parts: BTreeMap::new(), heard: now, is_proposed: false }
    }

    pub(super) fn is_proposed(&self) -> bool {
        self.is_proposed
    }

    /// When the newest part came.
    pub(super) fn heard(&self) -> Time {
        self.heard
    }

    /// Whether a part is of the same commit as the others.
    pub(super) fn agrees_with(&self, part: &SavedPart) -> bool {
        self.commit().is_none_or(|commit| is_same(&commit, &part.commit))
    }

    /// Takes a part. A repetition is no news.
    pub(super) fn take(&mut self, now: Time, worker: WorkerId, part: SavedPart) {
        if self.parts.get(&worker) != Some(&part) {
            self.parts.insert(worker, part);
            self.heard = now;
        }
    }

    /// Parts that have each of so many shards once, from the newest generation to the oldest.
    ///
    /// Two generations may have saved one shard. The newest part counts then: all parts that the
    /// newest generation was asked for have each shard once, and the part of a worker that has left
    /// may come late. The error is the first shard that is missing.
    pub(super) fn cover(&self, shards: u32) -> Result<Vec<WorkerPart>, Shard> {
        let mut there = BTreeSet::new();
        let mut cover = Vec::new();
        let mut newest_first: Vec<_> = self.parts.iter().collect();
        newest_first.sort_by_key(|(_, part)| Reverse(part.generation));
        for (worker, part) in newest_first {
            let own: BTreeSet<Shard> = part.shards.iter().map(|(shard, _)| *shard).collect();
            if there.is_disjoint(&own) {
                there.extend(own);
                cover.push(WorkerPart { worker: *worker, part: part.clone() });
            }
        }
        match (0..shards).map(Shard).find(|shard| !there.contains(shard)) {
            Some(missing) => Err(missing),
            None => Ok(cover),
        }
    }

    /// All parts, whatever they have.
    #[cfg(feature = "planted")]
    pub(super) fn all(&self) -> Vec<WorkerPart> {
        let parts = self.parts.iter();
        parts.map(|(worker, part)| WorkerPart { worker: *worker, part: part.clone() }).collect()
    }

    /// The checkpoint as the log lists it. From now on it is proposed.
    pub(super) fn propose(&mut self, bytes: u64, state_hash: [u8; 32]) -> ListedCheckpoint {
        self.is_proposed = true;
        let commit = self.commit().expect("a complete checkpoint has a part");
        let write_ms = self.parts.values().map(|part| part.write_ms).max().unwrap_or(0);
        ListedCheckpoint { commit, bytes, write_ms, state_hash, damage: None }
    }

    fn commit(&self) -> Option<Commit> {
        self.parts.values().next().map(|part| unheld(&part.commit))
    }
}

/// A commit as records have it: it does not hold.
fn unheld(commit: &Commit) -> Commit {
    Commit { hold: false, ..commit.clone() }
}

/// The state hash at this step, by the digests of all shards.
pub(super) fn hash_of(step: Step, parts: &[WorkerPart]) -> [u8; 32] {
    let digests = parts.iter().flat_map(|part| part.part.shards.iter().copied()).collect();
    let whole = WorkerResult { digests, ..WorkerResult::default() };
    state_hash(step.0, &[whole]).unwrap_or_default()
}

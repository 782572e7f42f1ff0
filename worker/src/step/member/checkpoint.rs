//! A member's part in checkpoints: the states that it saves, and those that it takes from one.
//!
//! A generation that begins from a checkpoint begins without any state. The core has the owned
//! shards read, and the device takes them over one by one. The member hands out parameters only of
//! shards that are there, and votes when all of them are.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::BTreeSet;

use everstep_transport::protocol::{CheckpointId, Commit, Record, Shard, Step, WorkerId};

use super::Member;
use crate::step::event::Job;
use crate::step::sized_record::SizedRecord;
use crate::step::version::Version;

/// The shards that a member takes from a checkpoint.
#[derive(Debug, Default)]
pub(super) struct Restoring {
    /// The owned shards that are not here yet.
    missing: BTreeSet<Shard>,
    /// Other members' questions for parameters of shards that were missing.
    requests: Vec<(WorkerId, Vec<Shard>)>,
}

impl Restoring {
    /// The shards that an owner of these takes from a checkpoint: all of them if the record begins
    /// from one.
    pub fn new(record: &Record, owned: impl Iterator<Item = Shard>) -> Self {
        let missing = owned.filter(|_| record.restores().is_some()).collect();
        Self { missing, requests: Vec::new() }
    }

    /// Whether all owned shards are here.
    pub fn is_over(&self) -> bool {
        self.missing.is_empty()
    }

    /// Whether a shard is still to come.
    pub fn lacks(&self, shard: Shard) -> bool {
        self.missing.contains(&shard)
    }

    /// Puts a question off if one of its shards is still to come. Returns it otherwise.
    pub fn put_off(&mut self, to: WorkerId, shards: Vec<Shard>) -> Option<Vec<Shard>> {
        if !shards.iter().any(|shard| self.lacks(*shard)) {
            return Some(shards);
        }
        self.requests.push((to, shards));
        None
    }

    /// Bytes of the shards that are still to come, of this many vectors each.
    pub fn unread(&self, sized_record: &SizedRecord, state_parts: usize) -> u64 {
        let elements = |shard: &Shard| sized_record.length(*shard);
        let elements: usize = self.missing.iter().map(elements).sum();
        (elements * state_parts * size_of::<f32>()) as u64
    }

    /// A shard has come. Returns the questions that can be answered now.
    fn arrived(&mut self, shard: Shard) -> Vec<(WorkerId, Vec<Shard>)> {
        self.missing.remove(&shard);
        let missing = &self.missing;
        let answerable = |request: &mut (WorkerId, Vec<Shard>)| {
            !request.1.iter().any(|shard| missing.contains(shard))
        };
        self.requests.extract_if(.., answerable).collect()
    }
}

impl Member {
    /// Asks the device for the states to save, once all owned shards have reached a due step, or
    /// the step that this generation begins with, if the record asks for that. The next step cannot
    /// commit before that, so its updates come after this job.
    pub(super) fn save_if_due(&mut self) {
        let (Some(spec), Some(commit)) = (&self.setup.run.checkpoint, self.commit()) else {
            return;
        };
        let is_here = self.replica.device.entering.is_none() && self.all_gather.is_updated();
        let record = self.plan.record();
        let is_due = spec.is_due(commit.step, self.setup.run.steps)
            || record.saves() && commit.step == record.resume;
        if !is_here || self.control.is_promised() || !is_due {
            return;
        }
        let primaries = self.plan.owned().iter().filter(|(_, primary)| **primary);
        let shards: Vec<Shard> = primaries.map(|(shard, _)| *shard).collect();
        if !shards.is_empty() {
            let commit = Box::new(Commit { hold: false, ..commit.clone() });
            self.device(Job::Save { commit, shards });
        }
    }

    /// The checkpoint that this generation begins with, and the owned shards that the member lacks
    /// of it. None if it lacks nothing.
    pub(in crate::step) fn to_restore(&self) -> Option<(CheckpointId, Vec<Shard>)> {
        let commit = self.plan.record().commit.as_ref()?;
        let missing = || self.restoring.missing.iter().copied().collect();
        (!self.restoring.is_over()).then(|| (CheckpointId::of(commit), missing()))
    }

    /// The device has taken over a shard from the checkpoint. Returns false for any other shard.
    pub(super) fn restored(&mut self, shard: Shard, version: Step, digest: u64) -> bool {
        if !self.restoring.lacks(shard) {
            return false;
        }
        let resume = Version::resumed(self.plan.record());
        assert_eq!(version, resume.step, "I12: every shard is of the checkpoint's step");
        self.replica.own_restored(shard, resume);
        self.all_gather.updated(shard, digest);
        for (to, shards) in self.restoring.arrived(shard) {
            self.device(Job::Share { to, shards });
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use everstep_kernels::reduce;
    use everstep_transport::protocol::generation::Member;
    use everstep_transport::protocol::{
        Cause, DataShard, Generation, NodeName, Ownership, Rank, Term, exemplars,
    };

    use super::{Record, Restoring, Shard, SizedRecord, WorkerId};

    const PARAMETERS: usize = 2_000;

    #[test]
    fn the_shards_of_a_checkpoint_that_are_still_to_come_are_unread() {
        let count = reduce::shard_count(PARAMETERS) as u32;
        let shards: Vec<Shard> = (0..count).map(Shard).collect();
        let commit = exemplars::listed_checkpoint().commit;
        let record = Record {
            number: Generation(9),
            predecessor: Generation(8),
            term: Term(1),
            cause: Cause::Rollback,
            members: vec![Member {
                worker: WorkerId(1),
                name: NodeName::parse("worker").expect("a valid name"),
                address: ([127, 0, 0, 1], 1).into(),
                data_shards: vec![DataShard(0)],
            }],
            owners: vec![Ownership { first: Shard(0), count, owners: vec![Rank(0)] }],
            resume: commit.step,
            commit: Some(commit),
            waiting: false,
        };
        let sized = SizedRecord::new(record.clone(), PARAMETERS, 1).expect("a valid record");
        let mut restoring = Restoring::new(&record, shards.iter().copied());
        assert_eq!(restoring.unread(&sized, 3), 3 * 4 * PARAMETERS as u64);
        restoring.arrived(shards[0]);
        let left = PARAMETERS - reduce::shard_range(PARAMETERS, 0).len();
        assert_eq!(restoring.unread(&sized, 3), 3 * 4 * left as u64);
        let goes_on = Record { cause: Cause::Lost, ..record };
        assert_eq!(Restoring::new(&goes_on, shards.into_iter()).unread(&sized, 3), 0);
    }
}

//! Which workers hold which parameter shards, as of one point of history.
//!
//! A holder has the shard at the resume version, or one version earlier together with the reduced
//! gradient of the resume commit. Versions of other generations have other bits.

use std::collections::BTreeSet;

use everstep_transport::protocol::step::Status;
use everstep_transport::protocol::{Commit, Shard, WorkerId};

use super::PlanInputs;
use super::resume_point::ResumePoint;

pub(super) enum ShardHolders {
    /// The initial state, which every worker has from the seed, or a checkpoint, which every worker
    /// can read.
    Everyone,
    /// The holders of each shard, ascending, by shard.
    Each(Vec<Vec<WorkerId>>),
}

impl ShardHolders {
    /// The holdings that the answers show. The initial state needs no holder, as long as a member
    /// of the generation that ends says that nothing was committed. If no such member is left,
    /// steps may be lost.
    pub(super) fn at(
        resume_point: &ResumePoint,
        inputs: &PlanInputs,
        answered: &BTreeSet<WorkerId>,
    ) -> Self {
        let mut holders = vec![Vec::new(); inputs.shards as usize];
        let witnessed = inputs.previous().any(|member| answered.contains(&member));
        if inputs.current.is_some() && !witnessed {
            return Self::Each(holders); // Joiners do not know how far the members had come.
        }
        let ResumePoint::Commit(commit) = resume_point else { return Self::Everyone };
        for worker in answered {
            for shard in held(&inputs.statuses[worker], commit) {
                if let Some(holders) = holders.get_mut(shard.0 as usize) {
                    holders.push(*worker);
                }
            }
        }
        Self::Each(holders)
    }

    pub(super) fn holds(&self, worker: WorkerId, shard: Shard) -> bool {
        match self {
            Self::Everyone => true,
            Self::Each(holders) => holders[shard.0 as usize].binary_search(&worker).is_ok(),
        }
    }

    /// The shards that none of the members holds, ascending.
    pub(super) fn missing(&self, members: &[WorkerId]) -> Vec<Shard> {
        let Self::Each(holders) = self else { return Vec::new() };
        let members: BTreeSet<&WorkerId> = members.iter().collect();
        let missing = |holders: &Vec<WorkerId>| !holders.iter().any(|id| members.contains(id));
        let shards = holders.iter().zip(0..).filter(|(holders, _)| missing(holders));
        shards.map(|(_, shard)| Shard(shard)).collect()
    }

    /// Whether a member can go without taking the last copy of a shard with it.
    pub(super) fn can_spare(&self, worker: WorkerId, members: &[WorkerId]) -> bool {
        let rest: Vec<_> = members.iter().copied().filter(|other| *other != worker).collect();
        let needs = |shard: &Shard| self.holds(worker, *shard);
        !rest.is_empty() && !self.missing(&rest).iter().any(needs)
    }
}

/// The shards that a worker holds at the commit's step, each once, ascending.
fn held(status: &Status, commit: &Commit) -> BTreeSet<Shard> {
    let prepared: BTreeSet<Shard> = status
        .prepared
        .iter()
        .filter(|(_, generation)| *generation == commit.generation)
        .map(|(shard, _)| *shard)
        .collect();
    let holds = status.versions.iter().filter(|(shard, version, generation)| {
        let there = *version == commit.step && *generation == commit.generation;
        there || (version.next() == commit.step && prepared.contains(shard))
    });
    holds.map(|(shard, ..)| *shard).collect()
}

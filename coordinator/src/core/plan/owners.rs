//! The owners of every parameter shard: the wanted owners that hold it, and stand-ins for the
//! others.

use std::collections::BTreeMap;

use everstep_transport::protocol::{Ownership, Rank, Shard, WorkerId};

use super::shard_holders::ShardHolders;
use super::{PlanInputs, Target};
#[cfg(feature = "planted")]
use crate::plant::CorePlant;

/// The owners of every parameter shard. Some member must hold each shard.
pub(super) fn owners(
    inputs: &PlanInputs,
    target: &Target,
    shard_holders: &ShardHolders,
    members: &[WorkerId],
) -> Vec<Ownership> {
    let ranks: BTreeMap<WorkerId, Rank> = members.iter().copied().zip((0..).map(Rank)).collect();
    let mut choice = Choice { inputs, shard_holders, ranks: &ranks, primaries: BTreeMap::new() };
    let mut runs: Vec<Ownership> = Vec::new();
    for (shard, wanted) in target.owners() {
        let owners = choice.owners(shard, wanted);
        let owners: Vec<Rank> = owners.into_iter().map(|worker| ranks[&worker]).collect();
        match runs.last_mut() {
            Some(last) if last.owners == owners => last.count += 1,
            _ => runs.push(Ownership { first: shard, count: 1, owners }),
        }
    }
    runs
}

struct Choice<'a> {
    inputs: &'a PlanInputs<'a>,
    shard_holders: &'a ShardHolders,
    ranks: &'a BTreeMap<WorkerId, Rank>,
    /// Of how many shards each worker is primary so far.
    primaries: BTreeMap<WorkerId, u32>,
}

impl Choice<'_> {
    /// The owners of a shard, primary first. Every worker holds the initial state: then all are as
    /// wanted.
    fn owners(&mut self, shard: Shard, wanted: &[WorkerId]) -> Vec<WorkerId> {
        #[cfg(feature = "planted")]
        if self.inputs.plant == Some(CorePlant::ListNonHolder) {
            return wanted.to_vec();
        }
        let ShardHolders::Each(holders) = self.shard_holders else { return wanted.to_vec() };
        let copies = self.ranks.len().min(self.inputs.run.copies as usize);
        let stand_ins = self.stand_ins(&holders[shard.0 as usize]);
        let primary = if stand_ins.contains(&wanted[0]) {
            wanted[0]
        } else {
            self.stand_in(shard, &stand_ins)
        };
        *self.primaries.entry(primary).or_default() += 1;
        let mut owners = vec![primary];
        #[cfg(feature = "planted")]
        if self.inputs.plant == Some(CorePlant::LoseTheBackup)
            && self.inputs.owners_before(shard).next() != Some(primary)
        {
            return owners;
        }
        let holding = wanted.iter().filter(|worker| stand_ins.contains(worker));
        for worker in holding.chain(&stand_ins) {
            if owners.len() < copies && !owners.contains(worker) {
                owners.push(*worker);
            }
        }
        owners
    }

    /// The members that hold a shard, by rank, but first those that stay.
    fn stand_ins(&self, holders: &[WorkerId]) -> Vec<WorkerId> {
        let members = holders.iter().copied().filter(|worker| self.ranks.contains_key(worker));
        let mut members: Vec<WorkerId> = members.collect();
        members.sort_by_key(|worker| (self.inputs.is_leaving(*worker), self.ranks[worker]));
        members
    }

    /// Chooses the primary among the holders: first those that stay, then the primary before, then
    /// the holder that is primary of the fewest shards.
    fn stand_in(&self, shard: Shard, holders: &[WorkerId]) -> WorkerId {
        let before = self.inputs.owners_before(shard).next();
        let load = |worker: &&WorkerId| {
            let primaries = self.primaries.get(worker).copied().unwrap_or(0);
            (self.inputs.is_leaving(**worker), before != Some(**worker), primaries)
        };
        *holders.iter().min_by_key(load).expect("some member holds every shard")
    }
}

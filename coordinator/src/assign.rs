//! Which workers compute which data shards, and which own which parameter shards: a pure function.
//!
//! Inputs: how much there is, the members in rank order, and the generation before. Output: each
//! member's data shards, and the owners of every parameter shard. The same inputs give the same
//! output. Shares differ by at most one shard, and a shard that need not move does not. Where
//! members compute at unlike speeds, their shares of the data shards follow from their speeds
//! ([`pace`]). The assignment does not know which workers really hold the bits of a shard: the
//! caller lists as owners only those that do.
//!
//! Intuition: a *share* is how many shards a member gets. Shares follow from the counts alone,
//! except which members get one more: that goes to those that hold most already. Every member keeps
//! what it holds up to its share, and the rest fills up the others. Data shards have no state
//! between two steps: a planned change lays them out anew, in as few [`blocks`] of the tree as can
//! be (I24).

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

mod blocks;
mod owners;
mod pace;
mod ring;
mod share;

use std::collections::BTreeMap;

use everstep_transport::protocol::{DataShard, Ownership, Record, WorkerId, Zone};

/// How much there is to assign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Data shards of every global batch.
    pub data_shards: u32,
    /// The number of parameter shards.
    pub shards: u32,
    /// Owners of each parameter shard, where there are so many members.
    pub copies: u32,
}

/// A future member, as far as assignment goes. Its index is its rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The candidate's worker id.
    pub worker: WorkerId,
    /// What the worker may fail together with. `None` if it did not say.
    pub zone: Option<Zone>,
    /// How long a data shard takes the worker's device, microseconds. `None` if it is not known.
    pub pace: Option<u64>,
}

/// Why an assignment is made: it decides how data shards move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    /// A member was lost. The others keep their data shards: the step that is done anew uses the
    /// sums of these again.
    Loss,
    /// No step is under way.
    Planned,
}

/// The work of each member in a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Each member's data shards, ascending, by rank. None for a spare.
    pub data_shards: Vec<Vec<DataShard>>,
    /// The owners of every parameter shard, in order, without gaps.
    pub owners: Vec<Ownership>,
}

/// Assigns everything to `members`, and moves as little from its place in `previous` as balance,
/// and the occasion, allow.
///
/// The backups follow from the primary and the ring of members alone, so that all shards of one
/// primary have the same backups.
///
/// # Panics
/// If there are no members: there is no worker to do anything.
pub fn assign(
    demand: Demand,
    members: &[Candidate],
    previous: Option<&Record>,
    occasion: Occasion,
) -> Assignment {
    assert!(!members.is_empty(), "an assignment needs members");
    Assignment {
        data_shards: data_shards(demand.data_shards, members, previous, occasion),
        owners: owners::assign(demand, members, previous),
    }
}

/// How many sums a member sends that computes these of `count` data shards, ascending.
pub fn sums(count: u32, data_shards: &[DataShard]) -> usize {
    let leaves: Vec<u32> = data_shards.iter().map(|shard| shard.0).collect();
    blocks::sums(count, &leaves)
}

/// How many sums the member with most of them sends, if members with these shares of the data
/// shards send as few as can be.
pub fn fewest_sums(shares: &[usize]) -> usize {
    let count = shares.iter().sum::<usize>() as u32;
    let each = blocks::shapes(shares).into_iter().map(|shape| blocks::sums(count, &shape));
    each.max().unwrap_or(0)
}

/// A member's share of the data shards, and its pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacedShare {
    /// How many data shards the member has.
    pub share: usize,
    /// How long one takes it, microseconds. `None` if it is not known.
    pub pace: Option<u64>,
}

/// Whether other shares would make the steps of these members so much shorter that a change pays.
pub fn pays_to_share_anew(members: &[PacedShare]) -> bool {
    let shares: Vec<usize> = members.iter().map(|member| member.share).collect();
    let paces: Vec<Option<u64>> = members.iter().map(|member| member.pace).collect();
    pace::are_worth_a_change(&shares, &paces)
}

fn data_shards(
    count: u32,
    members: &[Candidate],
    previous: Option<&Record>,
    occasion: Occasion,
) -> Vec<Vec<DataShard>> {
    let now = ranks(members);
    let mut holders = vec![None; count as usize];
    for member in previous.into_iter().flat_map(|record| &record.members) {
        for shard in &member.data_shards {
            holders[shard.0 as usize] = now.get(&member.worker).copied();
        }
    }
    let is_held = holders.iter().any(Option::is_some);
    let paces: Vec<Option<u64>> = members.iter().map(|member| member.pace).collect();
    let each = match occasion {
        Occasion::Loss if is_held => blocks::hand_on(&holders, &paces),
        Occasion::Loss | Occasion::Planned => {
            let by_pace = pace::shares(holders.len(), &paces);
            blocks::fresh(&holders, members.len(), by_pace.as_deref())
        }
    };
    each.into_iter().map(|share| share.into_iter().map(DataShard).collect()).collect()
}

fn ranks(members: &[Candidate]) -> BTreeMap<WorkerId, usize> {
    members.iter().enumerate().map(|(rank, member)| (member.worker, rank)).collect()
}

#[cfg(test)]
mod tests;

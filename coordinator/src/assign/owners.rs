//! The owners of parameter shards: primaries evened out, each with its backups on the ring.
//!
//! A shard that loses its primary, or that its primary gives up, goes rather to one of its backups:
//! that worker has the bits already.

use std::iter::repeat_n;

use everstep_transport::protocol::{Ownership, Rank, Record, Shard};

use super::ring::ring;
use super::{Candidate, Demand, ranks, share};

/// The owners of every parameter shard, one entry a run of neighbours with the same primary.
pub(super) fn assign(
    demand: Demand,
    members: &[Candidate],
    previous: Option<&Record>,
) -> Vec<Ownership> {
    let held = Held::before(demand.shards as usize, members, previous);
    let primaries = share::even_out(&held.primaries, members.len(), |shard| &held.survivors[shard]);
    let sets = owner_sets(demand.copies, members);
    let mut owners: Vec<Ownership> = Vec::new();
    for (shard, primary) in primaries.into_iter().enumerate() {
        match owners.last_mut() {
            Some(last) if last.owners == sets[primary] => last.count += 1,
            _ => owners.push(Ownership {
                first: Shard(shard as u32),
                count: 1,
                owners: sets[primary].clone(),
            }),
        }
    }
    owners
}

/// For every member as primary: itself, then its backups.
fn owner_sets(copies: u32, members: &[Candidate]) -> Vec<Vec<Rank>> {
    let ring = ring(members);
    let copies = ring.len().min(copies as usize);
    let mut sets = vec![Vec::new(); ring.len()];
    for (slot, &primary) in ring.iter().enumerate() {
        let slots = (slot..slot + copies).map(|slot| slot % ring.len());
        sets[primary] = slots.map(|slot| Rank(ring[slot] as u32)).collect();
    }
    sets
}

/// The ranks of the members that owned each shard before, by shard.
struct Held {
    primaries: Vec<Option<usize>>,
    /// In the order of the record before: primary first, then the backups.
    survivors: Vec<Vec<usize>>,
}

impl Held {
    fn before(shards: usize, members: &[Candidate], previous: Option<&Record>) -> Self {
        let Some(record) = previous else {
            return Self { primaries: vec![None; shards], survivors: vec![Vec::new(); shards] };
        };
        let now = ranks(members);
        let mut held = Self { primaries: Vec::new(), survivors: Vec::new() };
        for ownership in &record.owners {
            let rank_now = |&rank: &Rank| now.get(&record.member(rank).worker).copied();
            let owners: Vec<_> = ownership.owners.iter().map(rank_now).collect();
            let count = ownership.count as usize;
            held.primaries.extend(repeat_n(owners[0], count));
            held.survivors.extend(repeat_n(owners.into_iter().flatten().collect(), count));
        }
        held
    }
}

//! The ring of members: those that follow a primary keep its backups.

use std::collections::BTreeMap;

use super::Candidate;

/// The ranks in an order in which neighbours differ in zone, where that can be.
///
/// If the order of ranks serves, it is that order, which a loss or a join hardly changes. Else
/// members are placed zone after zone, the largest first, on every second slot and then on those
/// between. Two members of a zone are neighbours only if it has more than half of all members. A
/// member that stated no zone fits beside any other.
pub(super) fn ring(members: &[Candidate]) -> Vec<usize> {
    let ranks: Vec<usize> = (0..members.len()).collect();
    let next = |rank: usize| (rank + 1) % members.len();
    let clash = |&rank: &usize| {
        let (zone, other) = (&members[rank].zone, &members[next(rank)].zone);
        rank != next(rank) && zone.is_some() && zone == other
    };
    if !ranks.iter().any(clash) {
        return ranks;
    }
    let order = ranks.iter().step_by(2).chain(ranks.iter().skip(1).step_by(2));
    let mut slots = ranks.clone();
    for (&slot, rank) in order.zip(zones(members).into_iter().flatten()) {
        slots[slot] = rank;
    }
    slots
}

/// The ranks by zone, the largest zone first. Each member without a zone stands by itself.
fn zones(members: &[Candidate]) -> Vec<Vec<usize>> {
    let mut zones = BTreeMap::<_, Vec<usize>>::new();
    for (rank, member) in members.iter().enumerate() {
        let alone = member.zone.is_none().then_some(rank);
        zones.entry((&member.zone, alone)).or_default().push(rank);
    }
    let mut zones: Vec<_> = zones.into_values().collect();
    zones.sort_by_key(|ranks| (std::cmp::Reverse(ranks.len()), ranks[0]));
    zones
}

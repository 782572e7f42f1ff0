use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};

use everstep_transport::protocol::{
    Cause, Generation, Member, NodeName, Ownership, Rank, Record, Shard, Step, Term, WorkerId, Zone,
};
use proptest::prelude::*;

use super::*;

fn candidate(worker: u64, zone: Option<&str>) -> Candidate {
    Candidate { worker: WorkerId(worker), zone: zone.and_then(Zone::parse) }
}

fn unzoned(workers: impl IntoIterator<Item = u64>) -> Vec<Candidate> {
    workers.into_iter().map(|worker| candidate(worker, None)).collect()
}

fn record(members: &[Candidate], assignment: &Assignment) -> Record {
    let listed = members.iter().zip(&assignment.data_shards);
    let listed = listed.map(|(member, data_shards)| Member {
        worker: member.worker,
        name: NodeName::parse("worker").expect("a valid name"),
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
        data_shards: data_shards.clone(),
    });
    Record {
        number: Generation(1),
        predecessor: Generation(0),
        term: Term(1),
        cause: Cause::Start,
        members: listed.collect(),
        owners: assignment.owners.clone(),
        resume: Step(0),
        commit: None,
        waiting: false,
    }
}

/// Who computes each data shard, and who is primary of each parameter shard.
fn holders(record: &Record) -> (Vec<WorkerId>, Vec<WorkerId>) {
    let computes = |shard| {
        let computer = record.members.iter().find(|m| m.data_shards.contains(&DataShard(shard)));
        computer.expect("every data shard is assigned").worker
    };
    let count = record.members.iter().map(|m| m.data_shards.len() as u32).sum();
    let primary = |shard| record.member(record.owners_of(Shard(shard))[0]).worker;
    ((0..count).map(computes).collect(), (0..record.shards()).map(primary).collect())
}

fn spread(counts: impl Iterator<Item = usize> + Clone) -> usize {
    counts.clone().max().unwrap_or(0) - counts.min().unwrap_or(0)
}

fn primaries_each(record: &Record) -> impl Iterator<Item = usize> + Clone {
    let (_, primaries) = holders(record);
    let each = record.members.iter().map(|m| primaries.iter().filter(|w| **w == m.worker).count());
    each.collect::<Vec<_>>().into_iter()
}

#[test]
fn the_first_generation_is_contiguous_and_balanced() {
    let demand = Demand { data_shards: 8, shards: 10, copies: 2 };
    let assignment = assign(demand, &unzoned([3, 5, 6]), None);
    let ids = |range: std::ops::Range<u32>| range.map(DataShard).collect::<Vec<_>>();
    assert_eq!(assignment.data_shards, [ids(0..3), ids(3..6), ids(6..8)]);
    let owned = |first, count, owners: [u32; 2]| Ownership {
        first: Shard(first),
        count,
        owners: owners.map(Rank).to_vec(),
    };
    assert_eq!(assignment.owners, [owned(0, 4, [0, 1]), owned(4, 3, [1, 2]), owned(7, 3, [2, 0])]);
}

#[test]
fn workers_in_excess_of_the_data_shards_are_spares() {
    let demand = Demand { data_shards: 2, shards: 1, copies: 3 };
    let assignment = assign(demand, &unzoned(1..=4), None);
    let counts: Vec<_> = assignment.data_shards.iter().map(Vec::len).collect();
    assert_eq!(counts, [1, 1, 0, 0]);
    assert_eq!(assignment.owners[0].owners, [Rank(0), Rank(1), Rank(2)]);
}

#[test]
fn a_dead_primary_is_followed_by_its_backup_as_far_as_balance_allows() {
    let demand = Demand { data_shards: 4, shards: 12, copies: 2 };
    let four = unzoned(1..=4);
    let before = record(&four, &assign(demand, &four, None));
    let three = unzoned([1, 3, 4]);
    let after = record(&three, &assign(demand, &three, Some(&before)));
    let (_, primaries) = holders(&after);
    // Worker 2 had shards 3 to 5, backed up by worker 3, which has room for one more.
    assert_eq!(primaries[3..6].iter().map(|worker| worker.0).collect::<Vec<_>>(), [3, 1, 4]);
}

#[test]
fn neighbours_on_the_ring_differ_in_zone() {
    let zones = ["a", "a", "a", "b", "b", "c"];
    let members: Vec<_> = zones.iter().zip(1..).map(|(z, id)| candidate(id, Some(z))).collect();
    let demand = Demand { data_shards: 6, shards: 6, copies: 2 };
    for ownership in assign(demand, &members, None).owners {
        let zones: BTreeSet<_> =
            ownership.owners.iter().map(|rank| zones[rank.0 as usize]).collect();
        assert_eq!(zones.len(), 2, "primary and backup share a zone: {ownership:?}");
    }
}

#[test]
fn new_ranks_move_nothing() {
    let demand = Demand { data_shards: 5, shards: 7, copies: 1 };
    let before = record(&unzoned(1..=3), &assign(demand, &unzoned(1..=3), None));
    let reversed = unzoned((1..=3).rev());
    let after = record(&reversed, &assign(demand, &reversed, Some(&before)));
    assert_eq!(holders(&after), holders(&before));
}

prop_compose! {
    fn demands()(data_shards in 1..40u32, shards in 1..60u32, copies in 1..5u32) -> Demand {
        Demand { data_shards, shards, copies }
    }
}

/// Members before and after a change: up to 20 workers, each present before, after, or both.
fn changes() -> impl Strategy<Value = (Vec<Candidate>, Vec<Candidate>)> {
    let presence = prop::collection::vec((0..3u8, 0..3u8), 1..20);
    presence.prop_filter_map("nobody is there", |workers| {
        let present = |absent: u8| {
            let there = workers.iter().zip(1u64..).filter(move |((kind, _), _)| *kind != absent);
            there.map(|((_, zone), id)| {
                candidate(id, [None, Some("a"), Some("b")][usize::from(*zone)])
            })
        };
        let (before, after): (Vec<_>, Vec<_>) = (present(1).collect(), present(2).collect());
        (!before.is_empty() && !after.is_empty()).then_some((before, after))
    })
}

proptest! {
    #[test]
    fn every_assignment_is_valid_balanced_and_deterministic(
        (before, after) in changes(),
        demand in demands(),
    ) {
        let first = record(&before, &assign(demand, &before, None));
        let second = record(&after, &assign(demand, &after, Some(&first)));
        for record in [&first, &second] {
            prop_assert_eq!(record.validate(demand.data_shards, demand.shards), Ok(()));
            prop_assert!(spread(record.members.iter().map(|m| m.data_shards.len())) <= 1);
            prop_assert!(spread(primaries_each(record)) <= 1);
            let copies = record.members.len().min(demand.copies as usize);
            prop_assert!(record.owners.iter().all(|o| o.owners.len() == copies));
        }
        let again = record(&after, &assign(demand, &after, Some(&first)));
        prop_assert_eq!(second, again);
    }

    /// Or changes would never end.
    #[test]
    fn an_assignment_is_its_own_successor((before, after) in changes(), demand in demands()) {
        let first = record(&before, &assign(demand, &before, None));
        let second = assign(demand, &after, Some(&first));
        let third = assign(demand, &after, Some(&record(&after, &second)));
        prop_assert_eq!(second, third);
    }

    #[test]
    fn all_shards_of_a_primary_have_the_same_backups((_, after) in changes(), demand in demands()) {
        let assignment = assign(demand, &after, None);
        let sets: BTreeSet<_> = assignment.owners.iter().map(|o| o.owners.clone()).collect();
        let primaries: BTreeSet<_> = assignment.owners.iter().map(|o| o.owners[0]).collect();
        prop_assert_eq!(sets.len(), primaries.len());
    }

    #[test]
    fn a_loss_moves_only_orphans(
        count in 2..20u64,
        lost in prop::collection::btree_set(1..20u64, 1..5),
        demand in demands(),
    ) {
        let before = unzoned(1..=count);
        let after = unzoned((1..=count).filter(|worker| !lost.contains(worker)));
        prop_assume!(!after.is_empty());
        let first = record(&before, &assign(demand, &before, None));
        let second = record(&after, &assign(demand, &after, Some(&first)));
        let ((data, primaries), (new_data, new_primaries)) = (holders(&first), holders(&second));
        let pairs = data.iter().zip(&new_data).chain(primaries.iter().zip(&new_primaries));
        for (was, is) in pairs {
            prop_assert!(was == is || lost.contains(&was.0), "{was} still lives, but {is} has it");
        }
    }

    #[test]
    fn a_join_moves_only_what_the_newcomer_gets(count in 1..20u64, demand in demands()) {
        let (before, after) = (unzoned(1..=count), unzoned(1..=count + 1));
        let first = record(&before, &assign(demand, &before, None));
        let second = record(&after, &assign(demand, &after, Some(&first)));
        let ((data, primaries), (new_data, new_primaries)) = (holders(&first), holders(&second));
        let pairs = data.iter().zip(&new_data).chain(primaries.iter().zip(&new_primaries));
        for (was, is) in pairs {
            prop_assert!(was == is || is.0 == count + 1, "{was} lives, but {is} has its shard");
        }
    }

    #[test]
    fn the_ring_separates_zones_where_it_can(zones in prop::collection::vec(0..4u8, 1..24)) {
        let members: Vec<_> = zones.iter().zip(1..)
            .map(|(zone, id)| candidate(id, Some(["a", "b", "c", "d"][usize::from(*zone)])))
            .collect();
        let ring = ring::ring(&members);
        prop_assert_eq!(ring.iter().collect::<BTreeSet<_>>().len(), members.len());
        let largest = (0..4).map(|zone| zones.iter().filter(|z| **z == zone).count()).max();
        let largest = largest.expect("four zones");
        let neighbours = ring.iter().zip(ring.iter().cycle().skip(1));
        let clashes = neighbours.filter(|(a, b)| zones[**a] == zones[**b]).count();
        // Each member outside the largest zone can part two of its members.
        prop_assert_eq!(clashes, (2 * largest).saturating_sub(members.len()));
    }
}

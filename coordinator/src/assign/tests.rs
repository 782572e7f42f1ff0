use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};

use everstep_transport::protocol::{
    Cause, Generation, Member, NodeName, Ownership, Rank, Record, Shard, Step, Term, WorkerId, Zone,
};
use proptest::prelude::*;

use super::*;

fn candidate(worker: u64, zone: Option<&str>) -> Candidate {
    Candidate { worker: WorkerId(worker), zone: zone.and_then(Zone::parse), pace: None }
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

/// The worker that computes each data shard, and the primary of each parameter shard.
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

/// Assigns as a planned change does.
fn plan(demand: Demand, members: &[Candidate], previous: Option<&Record>) -> Assignment {
    assign(demand, members, previous, Occasion::Planned)
}

fn lose(demand: Demand, members: &[Candidate], previous: &Record) -> Assignment {
    assign(demand, members, Some(previous), Occasion::Loss)
}

fn most_sums(count: u32, assignment: &Assignment) -> usize {
    assignment.data_shards.iter().map(|mine| sums(count, mine)).max().expect("a member")
}

#[test]
fn the_first_generation_is_in_blocks_and_balanced() {
    let demand = Demand { data_shards: 8, shards: 10, copies: 2 };
    let assignment = plan(demand, &unzoned([3, 5, 6]), None);
    let ids = |shards: &[u32]| shards.iter().copied().map(DataShard).collect::<Vec<_>>();
    assert_eq!(assignment.data_shards, [ids(&[0, 1, 6]), ids(&[2, 3, 7]), ids(&[4, 5])]);
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
    let assignment = plan(demand, &unzoned(1..=4), None);
    let counts: Vec<_> = assignment.data_shards.iter().map(Vec::len).collect();
    assert_eq!(counts, [1, 1, 0, 0]);
    assert_eq!(assignment.owners[0].owners, [Rank(0), Rank(1), Rank(2)]);
}

#[test]
fn a_dead_primary_is_followed_by_its_backup_as_far_as_balance_allows() {
    let demand = Demand { data_shards: 4, shards: 12, copies: 2 };
    let four = unzoned(1..=4);
    let before = record(&four, &plan(demand, &four, None));
    let three = unzoned([1, 3, 4]);
    let after = record(&three, &lose(demand, &three, &before));
    let (_, primaries) = holders(&after);
    // Worker 2 had shards 3 to 5, backed up by worker 3, which has room for one more.
    assert_eq!(primaries[3..6].iter().map(|worker| worker.0).collect::<Vec<_>>(), [3, 1, 4]);
}

#[test]
fn neighbours_on_the_ring_differ_in_zone() {
    let zones = ["a", "a", "a", "b", "b", "c"];
    let members: Vec<_> = zones.iter().zip(1..).map(|(z, id)| candidate(id, Some(z))).collect();
    let demand = Demand { data_shards: 6, shards: 6, copies: 2 };
    for ownership in plan(demand, &members, None).owners {
        let zones: BTreeSet<_> =
            ownership.owners.iter().map(|rank| zones[rank.0 as usize]).collect();
        assert_eq!(zones.len(), 2, "primary and backup share a zone: {ownership:?}");
    }
}

/// A newcomer in place of a lost worker gets that worker's own block.
#[test]
fn i24_a_worker_that_is_replaced_moves_no_block_of_the_others() {
    let demand = Demand { data_shards: 64, shards: 256, copies: 2 };
    let before = unzoned(1..=8);
    let first = record(&before, &plan(demand, &before, None));
    let survivors = unzoned((1..=8).filter(|worker| *worker != 3));
    let second = record(&survivors, &lose(demand, &survivors, &first));
    let after = unzoned((1..=9).filter(|worker| *worker != 3));
    let third = record(&after, &plan(demand, &after, Some(&second)));
    let replaced = |worker: WorkerId| if worker.0 == 3 { WorkerId(9) } else { worker };
    assert_eq!(holders(&third).0, holders(&first).0.into_iter().map(replaced).collect::<Vec<_>>());
}

/// A hundred times a worker is lost, its copies are restored, and another worker joins.
#[test]
fn i24_churn_leaves_no_mark() {
    let demand = Demand { data_shards: 64, shards: 256, copies: 2 };
    let mut members = unzoned(1..=8);
    let mut now = record(&members, &plan(demand, &members, None));
    for cycle in 0..100 {
        members.remove(cycle * 5 % 8);
        let fresh = most_sums(64, &plan(demand, &members, None));
        let lost = lose(demand, &members, &now);
        assert!(most_sums(64, &lost) <= 2, "one block was orphaned: {:?}", lost.data_shards);
        now = record(&members, &lost);
        let repaired = plan(demand, &members, Some(&now));
        assert!(most_sums(64, &repaired) <= fresh, "cycle {cycle}: {:?}", repaired.data_shards);
        now = record(&members, &repaired);
        members.push(candidate(9 + cycle as u64, None));
        let joined = plan(demand, &members, Some(&now));
        assert_eq!(most_sums(64, &joined), 1, "cycle {cycle}: {:?}", joined.data_shards);
        now = record(&members, &joined);
    }
}

#[test]
fn new_ranks_move_nothing() {
    let demand = Demand { data_shards: 5, shards: 7, copies: 1 };
    let before = record(&unzoned(1..=3), &plan(demand, &unzoned(1..=3), None));
    let reversed = unzoned((1..=3).rev());
    let after = record(&reversed, &plan(demand, &reversed, Some(&before)));
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
        loss in any::<bool>(),
    ) {
        let occasion = if loss { Occasion::Loss } else { Occasion::Planned };
        let first = record(&before, &plan(demand, &before, None));
        let second = record(&after, &assign(demand, &after, Some(&first), occasion));
        for record in [&first, &second] {
            prop_assert_eq!(record.validate(demand.data_shards, demand.shards), Ok(()));
            // After a loss the survivors keep what they have, even if a worker joins at that time.
            let comes = after.iter().any(|member| !before.contains(member));
            let shares = record.members.iter().map(|m| m.data_shards.len());
            prop_assert!(loss && comes || spread(shares) <= 1);
            prop_assert!(spread(primaries_each(record)) <= 1);
            let copies = record.members.len().min(demand.copies as usize);
            prop_assert!(record.owners.iter().all(|o| o.owners.len() == copies));
        }
        let again = record(&after, &assign(demand, &after, Some(&first), occasion));
        prop_assert_eq!(second, again);
    }

    /// Otherwise changes would never end.
    #[test]
    fn an_assignment_is_its_own_successor((before, after) in changes(), demand in demands()) {
        let first = record(&before, &plan(demand, &before, None));
        let second = plan(demand, &after, Some(&first));
        let third = plan(demand, &after, Some(&record(&after, &second)));
        prop_assert_eq!(second, third);
    }

    #[test]
    fn all_shards_of_a_primary_have_the_same_backups((_, after) in changes(), demand in demands()) {
        let assignment = plan(demand, &after, None);
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
        let first = record(&before, &plan(demand, &before, None));
        let second = record(&after, &lose(demand, &after, &first));
        let ((data, primaries), (new_data, new_primaries)) = (holders(&first), holders(&second));
        let pairs = data.iter().zip(&new_data).chain(primaries.iter().zip(&new_primaries));
        for (was, is) in pairs {
            prop_assert!(was == is || lost.contains(&was.0), "{was} still lives, but {is} has it");
        }
    }

    #[test]
    fn a_join_moves_only_parameters_that_the_newcomer_gets(
        count in 1..20u64,
        demand in demands(),
    ) {
        let (before, after) = (unzoned(1..=count), unzoned(1..=count + 1));
        let first = record(&before, &plan(demand, &before, None));
        let second = record(&after, &plan(demand, &after, Some(&first)));
        for (was, is) in holders(&first).1.iter().zip(&holders(&second).1) {
            prop_assert!(was == is || is.0 == count + 1, "{was} lives, but {is} has its shard");
        }
    }

    /// A share takes as many blocks as it has binary ones, no matter which workers were there
    /// before.
    #[test]
    fn i24_a_planned_change_leaves_no_fragments(
        (before, after) in changes(),
        demand in demands(),
    ) {
        let first = record(&before, &plan(demand, &before, None));
        let lost = lose(demand, &after, &first);
        let second = plan(demand, &after, Some(&record(&after, &lost)));
        for share in &second.data_shards {
            let sums = sums(demand.data_shards, share);
            prop_assert!(sums <= share.len().count_ones() as usize, "{:?}", share);
        }
    }

    /// A survivor sends at most as many sums more as blocks were orphaned, and as its part of one
    /// block takes by itself.
    #[test]
    fn i24_a_loss_adds_no_more_than_the_orphaned_blocks(
        count in 2..20u64,
        lost in prop::collection::vec(prop::collection::btree_set(1..20u64, 1..4), 1..4),
        data_shards in 1..300u32,
    ) {
        let demand = Demand { data_shards, shards: 1, copies: 1 };
        let mut members = unzoned(1..=count);
        let mut now = record(&members, &plan(demand, &members, None));
        for lost in lost {
            let gone = |id: WorkerId| lost.contains(&id.0);
            members.retain(|member| !gone(member.worker));
            if members.is_empty() {
                break;
            }
            let lost = now.members.iter().filter(|member| gone(member.worker));
            let mut orphans: Vec<_> = lost.flat_map(|lost| lost.data_shards.clone()).collect();
            orphans.sort_unstable();
            let orphaned = sums(data_shards, &orphans);
            let next = record(&members, &lose(demand, &members, &now));
            for member in &next.members {
                let rank = now.rank(member.worker).expect("it was there");
                let before = &now.member(rank).data_shards;
                let more = member.data_shards.len() - before.len();
                let bound = sums(data_shards, before) + orphaned + more.max(1).ilog2() as usize;
                prop_assert!(
                    sums(data_shards, &member.data_shards) <= bound,
                    "{:?}, then {:?}", before, member.data_shards
                );
            }
            now = next;
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

use std::net::Ipv4Addr;
use std::net::SocketAddr;

use everstep_transport::protocol::{
    Cause, Member, NodeName, Ownership, Rank, Step, Term, exemplars,
};

use super::*;

/// One worker a rank, with ids from 1. Each of these runs of one shard has these owners.
fn record(members: u64, owners: &[&[u32]]) -> Record {
    let members = (1..=members).map(|id| Member {
        worker: WorkerId(id),
        name: NodeName::parse("worker").expect("a valid name"),
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
        data_shards: vec![],
    });
    let owners = owners.iter().zip(0..).map(|(owners, shard)| Ownership {
        first: Shard(shard),
        count: 1,
        owners: owners.iter().copied().map(Rank).collect(),
    });
    Record {
        number: Generation(3),
        predecessor: Generation(2),
        term: Term(1),
        cause: Cause::Start,
        members: members.collect(),
        owners: owners.collect(),
        resume: Step(0),
        commit: None,
        waiting: true,
    }
}

fn feed_targets(newcomers: &[u64], leaving: &[u64]) -> FeedTargets {
    let ids = |ids: &[u64]| ids.iter().copied().map(WorkerId).collect();
    FeedTargets { newcomers: ids(newcomers), leaving: ids(leaving) }
}

fn feeds(record: &Record, feed_targets: FeedTargets) -> Feeds {
    let (known, paces) = (BTreeMap::new(), Paces::default());
    Feeds::new(Time(0), &exemplars::run(), record, feed_targets, &known, &paces)
}

#[test]
fn everyone_learns_what_it_lacks_and_no_more() {
    let shards = |shards: &[u32]| shards.iter().copied().map(Shard).collect::<Vec<_>>();
    type Case<'a> = (&'a [&'a [u32]], &'a [u64], &'a [u64], &'a [(u64, &'a [u32])]);
    let table: [Case; 5] = [
        (&[&[0, 1], &[1, 0]], &[], &[], &[]),
        (&[&[0], &[1, 0]], &[], &[], &[(2, &[0])]),
        (&[&[0], &[0]], &[], &[], &[(2, &[0, 1])]),
        (&[&[0, 1], &[1, 0]], &[3], &[], &[(3, &[1])]), // 3 comes between 2 and 1 on the ring
        (&[&[0], &[0]], &[], &[1], &[(2, &[0, 1])]),
    ];
    for (owners, newcomers, leaving, expected) in table {
        let feeds = feeds(&record(2, owners), feed_targets(newcomers, leaving));
        let expected: BTreeMap<_, _> =
            expected.iter().map(|(id, list)| (WorkerId(*id), shards(list))).collect();
        assert_eq!(
            feeds.shard_syncs(),
            &expected,
            "{owners:?}, {newcomers:?} come, {leaving:?} go"
        );
    }
}

#[test]
fn a_worker_that_is_to_own_nothing_is_fed_all_the_same() {
    let feeds = feeds(&record(1, &[&[0]]), feed_targets(&[2, 3, 4], &[]));
    assert_eq!(feeds.shard_syncs().keys().map(|id| id.0).collect::<Vec<_>>(), [2, 3, 4]);
    assert!(feeds.shard_syncs()[&WorkerId(4)].is_empty());
}

#[test]
fn a_change_is_due_when_all_are_ready_or_some_have_waited_long() {
    let mut feeds = feeds(&record(1, &[&[0]]), feed_targets(&[2, 3], &[]));
    let late = Time(0) + JOINERS_AWAITED_FOR;
    assert!(!feeds.are_due(Time(0)) && !feeds.are_due(late));
    feeds.synced(Time(0), WorkerId(2), Generation(3));
    assert!(!feeds.are_due(Time(0)) && feeds.are_due(late));
    feeds.synced(Time(0), WorkerId(3), Generation(2));
    feeds.synced(Time(0), WorkerId(9), Generation(3));
    assert_eq!(feeds.ready().len(), 1, "of another generation, or not fed");
    feeds.synced(Time(0), WorkerId(3), Generation(3));
    assert!(feeds.are_due(Time(0)));
    feeds.on_lost_link(Time(0), WorkerId(3));
    assert!(!feeds.are_due(Time(0)));
}

#[test]
fn who_stays_cut_off_is_fed_again_each_second_and_is_ready_when_nobody_complains() {
    let mut feeds = feeds(&record(1, &[&[0]]), feed_targets(&[2, 3], &[]));
    let at = |tenths: u64| Time(0) + Duration::from_millis(100 * tenths);
    for tenths in 0..24 {
        feeds.on_lost_link(at(tenths), WorkerId(2));
        feeds.on_lost_link(at(tenths), WorkerId(9));
        let fed = feeds.repeat(at(tenths));
        let expected = [WorkerId(2)];
        assert_eq!(fed, expected[..usize::from([10, 20].contains(&tenths))], "{tenths}");
    }
    assert_eq!(feeds.repeat(at(30)), [WorkerId(2)], "it was told after the last time");
    assert_eq!(feeds.repeat(at(60)), []);
    feeds.synced(at(72), WorkerId(2), Generation(3));
    feeds.synced(at(72), WorkerId(3), Generation(3));
    assert_eq!(feeds.ready().iter().map(|id| id.0).collect::<Vec<_>>(), [3]);
    feeds.synced(at(73), WorkerId(2), Generation(3));
    assert!(feeds.ready().contains(&WorkerId(2)));
}

#[test]
fn feeds_go_on_as_they_are_unless_there_is_a_reason() {
    let record = record(2, &[&[0, 1], &[1, 0]]);
    let some = feeds(&record, feed_targets(&[3, 4], &[]));
    let idle = feeds(&record, feed_targets(&[], &[]));
    let late = Time(0) + JOINERS_AWAITED_FOR;
    let table = [
        (&some, Time(0), 3, feed_targets(&[3, 4], &[]), false),
        (&some, Time(0), 4, feed_targets(&[3, 4], &[]), true),
        (&some, Time(0), 3, feed_targets(&[3], &[]), true),
        (&some, Time(0), 3, feed_targets(&[3, 4], &[1]), true),
        (&some, Time(0), 3, feed_targets(&[3, 4, 5], &[]), false),
        (&some, late, 3, feed_targets(&[3, 4, 5], &[]), true),
        (&some, late, 3, feed_targets(&[3, 4], &[]), false),
        (&idle, Time(0), 3, feed_targets(&[5], &[]), true),
        (&idle, late, 3, feed_targets(&[], &[]), false),
    ];
    for (feeds, now, generation, feed_targets, expected) in table {
        let found = feeds.are_outdated(now, Generation(generation), &feed_targets);
        assert_eq!(found, expected, "{now:?}, generation {generation}, {feed_targets:?}");
    }
}

#[test]
fn who_has_learned_the_same_stays_ready() {
    let record = record(1, &[&[0]]);
    let mut feeds_so_far = feeds(&record, feed_targets(&[2, 3], &[]));
    let shard_syncs = feeds_so_far.shard_syncs().clone();
    feeds_so_far.synced(Time(0), WorkerId(2), Generation(3));
    feeds_so_far.synced(Time(0), WorkerId(3), Generation(3));
    let new = feeds_so_far.replace(feeds(&record, feed_targets(&[2, 3, 4], &[])));
    let same = |id: u64| feeds_so_far.shard_syncs()[&WorkerId(id)] == shard_syncs[&WorkerId(id)];
    assert!(new.contains(&WorkerId(4)));
    for id in [2, 3] {
        assert_eq!(feeds_so_far.ready().contains(&WorkerId(id)), same(id));
        assert_eq!(new.contains(&WorkerId(id)), !same(id));
    }
}

#[test]
fn a_member_is_free_when_it_is_the_only_owner_of_nothing() {
    let leaving = |ids: &[u64]| ids.iter().copied().map(WorkerId).collect();
    let table = [
        (record(2, &[&[0, 1], &[1, 0]]), leaving(&[1]), true),
        (record(2, &[&[0], &[1, 0]]), leaving(&[1]), false),
        (record(2, &[&[0], &[1, 0]]), leaving(&[2]), true),
        (record(2, &[&[0], &[1, 0]]), leaving(&[]), false),
        (record(1, &[&[0]]), leaving(&[1]), false),
    ];
    for (record, leaving, expected) in table {
        assert_eq!(frees_somebody(&record, &leaving), expected, "{leaving:?}");
    }
}

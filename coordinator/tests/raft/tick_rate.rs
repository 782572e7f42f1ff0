//! How fast a cluster finds and replaces a leader, by the round trip.

use std::time::Duration;

use everstep_coordinator::raft::ReplicaId;

use super::world::{Climate, World, ms};

/// Every message takes this long, a tenth more or less.
fn far(one_way: Duration) -> Climate {
    Climate { shortest_delay: one_way * 9 / 10, longest_delay: one_way * 11 / 10, ..Climate::FAIR }
}

/// The first leader, its successor after its death, and how long each took to appear.
fn leaders(seed: u64, voters: u64, one_way: Duration) -> ([ReplicaId; 2], [Duration; 2]) {
    let limit = ms(2_000) + one_way * 40;
    let mut world = World::new(seed, voters, far(one_way));
    let fail = |broken| panic!("seed {seed}, {voters} voters, {one_way:?} one way: {broken}");
    world.wait(limit, "a leader", |it| it.leader().is_some()).unwrap_or_else(fail);
    let first = (world.leader().expect("one leads"), Duration::from_nanos(world.now.0));
    world.run(ms(60_000)).unwrap_or_else(fail);
    assert_eq!(world.leader(), Some(first.0), "seed {seed}, {voters} voters, {one_way:?} one way");
    world.crash(first.0, None);
    let since = world.now;
    let is_other = |world: &mut World| world.leader().is_some_and(|id| id != first.0);
    world.wait(limit, "another leader", is_other).unwrap_or_else(fail);
    let second = (world.leader().expect("one leads"), world.now.since(since));
    ([first.0, second.0], [first.1, second.1])
}

#[test]
fn a_leader_is_found_kept_and_replaced_however_far_the_others_are() {
    for one_way in [1, 10, 40, 100, 250, 500].map(ms) {
        let mut spans: [Vec<Duration>; 2] = Default::default();
        for seed in 0..4 {
            for voters in [3, 5] {
                let (_, taken) = leaders(seed, voters, one_way);
                spans.iter_mut().zip(taken).for_each(|(spans, span)| spans.push(span));
            }
        }
        spans.iter_mut().for_each(|spans| spans.sort_unstable());
        let [found, replaced] = spans.map(|spans| (spans[4], spans[7]));
        println!("one way {one_way:?}: found {found:?}, replaced {replaced:?} (p50, max)");
    }
}

#[test]
fn a_round_trip_of_thirty_milliseconds_changes_no_time_out() {
    let near = leaders(7, 3, ms(1)).1[1];
    let farther = leaders(7, 3, ms(15)).1[1];
    assert!(farther < near + ms(3 * 30), "three round trips more: {near:?}, {farther:?}");
}

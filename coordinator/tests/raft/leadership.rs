//! Elections, and how leadership passes on.

use std::time::Duration;

use everstep_coordinator::raft::{Refused, ReplicaId};

use super::world::{Climate, World, ms};

fn world(seed: u64, voters: u64) -> (World, ReplicaId) {
    let mut world = World::new(seed, voters, Climate::FAIR);
    world.wait(ms(1000), "a leader", |world| world.leader().is_some()).expect("alive");
    let leader = world.leader().expect("one leads");
    (world, leader)
}

#[test]
fn a_single_replica_leads_at_once() {
    let mut world = World::new(1, 1, Climate::FAIR);
    world.run(ms(10)).expect("agreement");
    assert_eq!(world.leader(), Some(ReplicaId(1)));
}

#[test]
fn leadership_is_handed_over_within_some_round_trips() {
    for seed in 0..50 {
        let (mut world, leader) = world(seed, 3);
        let heir = ReplicaId(1 + leader.0 % 3);
        world.ask(leader, |replica| replica.transfer(heir)).expect("it leads");
        world
            .wait(ms(60), "the heir leads", |world| world.leader() == Some(heir))
            .unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
        world.calm_down().unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    }
}

#[test]
fn an_heir_that_does_not_answer_is_given_up_and_nothing_is_proposed_meanwhile() {
    let (mut world, leader) = world(1, 3);
    let heir = ReplicaId(1 + leader.0 % 3);
    world.crash(heir, None);
    world.ask(leader, |replica| replica.transfer(heir)).expect("it leads");
    let refused = world.ask(leader, |replica| replica.propose(vec![0; 8]));
    assert_eq!(refused, Err(Refused::HandingOver));
    world.run(ms(150)).expect("agreement");
    world.ask(leader, |replica| replica.propose(vec![0; 8])).expect("it leads on");
}

#[test]
fn nobody_else_can_be_handed_leadership() {
    let (mut world, leader) = world(1, 3);
    for heir in [leader, ReplicaId(9)] {
        let refused = world.ask(leader, |replica| replica.transfer(heir));
        assert!(matches!(refused, Err(Refused::Impossible(_))), "{refused:?}");
    }
    let follower = ReplicaId(1 + leader.0 % 3);
    let refused = world.ask(follower, |replica| replica.transfer(leader));
    assert_eq!(refused, Err(Refused::NotLeader));
}

/// How long 200 clusters take to have another leader after the first has died, in order.
fn spans(rests: bool) -> Vec<Duration> {
    let mut spans = Vec::new();
    for seed in 0..200 {
        let (mut world, leader) = world(seed, 3);
        rest(&mut world, rests);
        world.run(ms(2_000)).expect("agreement");
        assert_eq!(world.leader(), Some(leader), "seed {seed}: heartbeats come in time");
        world.crash(leader, None);
        let since = world.now;
        world
            .wait(ms(2_000), "another leader", |it| it.leader().is_some_and(|id| id != leader))
            .unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
        spans.push(world.now.since(since));
    }
    spans.sort_unstable();
    println!("another leader after {:?} in the middle, {:?} at most", spans[100], spans[199]);
    spans
}

#[test]
fn another_one_leads_soon_after_a_leader_has_died() {
    let spans = spans(false);
    assert!(spans[197] < ms(500), "{:?}", spans[197]);
}

/// Without a run nothing waits for a leader but an operator.
#[test]
fn at_rest_another_one_leads_in_a_second() {
    let resting = spans(true);
    assert!(resting[197] < ms(900), "{:?}", resting[197]);
}

#[test]
fn at_rest_a_leader_sends_a_sixth_of_the_heartbeats() {
    let (mut world, leader) = world(1, 3);
    let busy = world.replica(leader).quiet();
    for rests in [true, false] {
        rest(&mut world, rests);
        world.run(ms(400)).expect("agreement");
        let beats = beats(&mut world, leader);
        let expected = if rests { 3..=4 } else { 20..=20 };
        assert!(expected.contains(&beats), "{beats}");
    }
    assert!(busy <= ms(25));
}

fn rest(world: &mut World, rests: bool) {
    for id in world.ids() {
        let told = world.ask(id, |replica| {
            replica.rest(rests);
            Ok(())
        });
        told.expect("nothing refuses it");
    }
}

/// How many times a leader has something to do by itself within half a second.
fn beats(world: &mut World, leader: ReplicaId) -> usize {
    let mut count = 0;
    let mut at = world.now + world.replica(leader).quiet();
    let end = world.now + ms(500);
    while at <= end {
        world.run(at.since(world.now)).expect("agreement");
        count += 1;
        at = world.now + world.replica(leader).quiet();
    }
    count
}

#[test]
fn a_leader_without_a_majority_steps_down_and_answers_no_read() {
    let (mut world, leader) = world(1, 3);
    for id in world.ids().into_iter().filter(|id| *id != leader) {
        world.cut(id, leader, ms(5000));
        world.cut(leader, id, ms(5000));
    }
    world.wait(ms(400), "it steps down", |world| world.leader() != Some(leader)).expect("it does");
    world.run(ms(400)).expect("no read there is answered with what is old");
    let refused = world.ask(leader, |replica| replica.propose(vec![0; 8]));
    assert_eq!(refused, Err(Refused::NotLeader));
}

#[test]
fn a_replica_that_slept_hears_its_leader_before_it_gives_it_up() {
    for seed in 0..50 {
        let (mut world, leader) = world(seed, 3);
        let sleeper = ReplicaId(1 + leader.0 % 3);
        let until = world.now + ms(700);
        world.nodes.get_mut(&sleeper).expect("it is there").paused_until = until;
        world.run(ms(2000)).expect("agreement");
        assert_eq!(world.leader(), Some(leader), "seed {seed}");
    }
}

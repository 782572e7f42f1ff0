//! Members that come and go while the log goes on.

use everstep_coordinator::raft::{Members, Refused, ReplicaId};

use super::judge::Verdict;
use super::world::{Climate, World, endure, ms};

fn ids(numbers: impl IntoIterator<Item = u64>) -> Vec<ReplicaId> {
    numbers.into_iter().map(ReplicaId).collect()
}

/// A world that has a leader.
fn world(seed: u64, voters: u64, climate: Climate) -> World {
    let mut world = World::new(seed, voters, climate);
    world.wait(ms(1000), "a leader", |world| world.leader().is_some()).expect("alive");
    world
}

/// Asks the current leader for voters, again and again, until they are the members.
fn reach(world: &mut World, voters: &[ReplicaId]) -> Verdict {
    let wanted = Members { voters: voters.to_vec(), ..Members::default() };
    world.wait(ms(3000), "other members", |world| {
        let Some(leader) = world.leader() else { return false };
        let _ = world.ask(leader, |replica| replica.change(voters.to_vec()));
        *world.members(leader) == wanted && voters.contains(&leader)
    })
}

#[test]
fn a_founder_grows_to_five_and_back_to_one() {
    for seed in 0..50 {
        let mut world = world(seed, 1, Climate { compact_every: 10, ..Climate::FAIR });
        (2..=5).for_each(|id| world.join(ReplicaId(id)));
        for count in [3, 5, 4, 2, 1] {
            let voters = ids(1..=count);
            reach(&mut world, &voters).unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
        }
        world.calm_down().unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    }
}

#[test]
fn who_joins_a_cluster_that_takes_no_snapshots_is_sent_one_all_the_same() {
    let mut world = world(1, 1, Climate::FAIR);
    world.run(ms(500)).expect("agreement");
    (2..=3).for_each(|id| world.join(ReplicaId(id)));
    reach(&mut world, &ids(1..=3)).expect("three agree");
    world.calm_down().expect("alive");
}

#[test]
fn every_replica_can_be_replaced_one_by_one_and_the_old_ones_switched_off_at_once() {
    for seed in 0..50 {
        let mut world = world(seed, 3, Climate { compact_every: 50, ..Climate::FAIR });
        let mut voters = ids(1..=3);
        for old in ids(1..=3) {
            let new = ReplicaId(old.0 + 3);
            world.join(new);
            voters.retain(|id| *id != old);
            voters.push(new);
            reach(&mut world, &voters).unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
            world.crash(old, None);
        }
        world.calm_down().unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
        let all = |id: &ReplicaId| world.judge.holds_all(&world.machine(*id)).is_ok();
        assert!(voters.iter().all(all), "seed {seed}");
    }
}

#[test]
fn members_change_amid_all_other_faults() {
    let climate = Climate { changes: true, ..Climate::FOUL };
    for (voters, seeds) in [(1, 0..400), (3, 0..400), (5, 0..200)] {
        for seed in seeds {
            let (_, verdict) = endure(seed, voters, climate);
            verdict.unwrap_or_else(|broken| panic!("{voters} voters, seed {seed}: {broken}"));
        }
    }
}

#[test]
fn two_worlds_that_waited_for_ever_go_on() {
    let climate = Climate { changes: true, ..Climate::FOUL };
    // Only the removed replicas knew of their removal, and their logs were longer. The snapshot
    // that a voter needed was older than its membership.
    for seed in [2103, 3984] {
        let (_, verdict) = endure(seed, 1, climate);
        verdict.unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    }
}

#[test]
fn a_replica_that_was_removed_and_does_not_know_it_disturbs_nobody() {
    for seed in 0..50 {
        let mut world = world(seed, 4, Climate::FAIR);
        let removed = ids(1..=4).into_iter().find(|id| Some(*id) != world.leader());
        let removed = removed.expect("three follow");
        for id in ids(1..=4).into_iter().filter(|id| *id != removed) {
            world.cut(id, removed, ms(500));
        }
        let voters: Vec<_> = ids(1..=4).into_iter().filter(|id| *id != removed).collect();
        reach(&mut world, &voters).expect("three agree");
        world.run(ms(500)).expect("agreement");
        let (leader, before) = (world.leader(), world.judge.acknowledged());
        world.run(ms(2000)).expect("agreement");
        assert_eq!(world.leader(), leader, "seed {seed}");
        assert!(world.judge.acknowledged() > before + 50);
    }
}

#[test]
fn a_leader_that_is_removed_hands_over_and_follows() {
    for seed in 0..50 {
        let mut world = world(seed, 3, Climate::FAIR);
        let leader = world.leader().expect("one leads");
        let voters: Vec<_> = ids(1..=3).into_iter().filter(|id| *id != leader).collect();
        world.ask(leader, |replica| replica.change(voters.clone())).expect("it leads");
        let since = world.now;
        world
            .wait(ms(1000), "another leader", |it| it.leader().is_some_and(|id| id != leader))
            .expect("alive");
        let span = world.now.since(since);
        assert!(span < ms(150), "seed {seed}: {span:?}, as long as without being handed over");
        assert_eq!(world.ask(leader, |it| it.propose(vec![1])), Err(Refused::NotLeader));
        world.calm_down().unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    }
}

#[test]
fn who_is_left_alone_can_be_started_again_alone() {
    for seed in 0..50 {
        let mut world = world(seed, 2, Climate::FAIR);
        let survivor = world.leader().expect("one leads");
        reach(&mut world, &[survivor]).expect("two agree");
        let other = ReplicaId(3 - survivor.0);
        world.crash(other, None);
        world.crash(survivor, Some(ms(10)));
        world.run(ms(15)).expect("agreement");
        world.wait(ms(50), "it leads", |world| world.leader().is_some()).expect("alive");
    }
}

#[test]
fn a_learner_that_is_not_there_holds_nothing_up_and_another_wish_forgets_it() {
    let mut world = world(1, 3, Climate::FAIR);
    let leader = world.leader().expect("one leads");
    world.ask(leader, |replica| replica.change(ids([1, 2, 3, 9]))).expect("it leads");
    world.run(ms(1000)).expect("agreement");
    assert_eq!(world.members(leader).learners, ids([9]));
    assert_eq!(world.members(leader).voters, ids([1, 2, 3]));
    assert!(world.judge.acknowledged() > 30);
    reach(&mut world, &ids(1..=3)).expect("alive");
}

#[test]
fn members_that_cannot_be_are_refused() {
    let mut world = world(1, 3, Climate::FAIR);
    let leader = world.leader().expect("one leads");
    let follower = ReplicaId(1 + leader.0 % 3);
    for voters in [ids([]), ids([0]), ids([1, 1]), ids(1..=17)] {
        let refused = world.ask(leader, |replica| replica.change(voters));
        assert!(matches!(refused, Err(Refused::Impossible(_))), "{refused:?}");
    }
    let refused = world.ask(follower, |replica| replica.change(ids([1])));
    assert_eq!(refused, Err(Refused::NotLeader));
}

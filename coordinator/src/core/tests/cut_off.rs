//! Links that come and go, of joiners to members and of members to the coordinator, and what a
//! waiting run counts meanwhile.

use super::*;

/// A run of two workers that needs both. One is gone, and another catches up in its place.
fn waiting() -> (World, LinkId, LinkId) {
    let (mut world, links) = World::training_as(RunSpec { min_workers: 2, ..run_of(2) });
    world.commit(1..=3);
    world.actor(links[0]).under_way = Some(Step(4));
    world.kill(links[1]);
    let joiner = world.worker("worker-3");
    world.pass(50, &[links[0], joiner]);
    assert!(world.record().waiting && world.actor(joiner).shard_syncs.is_some());
    (world, links[0], joiner)
}

fn feeds(world: &mut World, link: LinkId) -> usize {
    world.words(link).iter().filter(|word| **word == "feed").count()
}

/// Invariant I11: either end's word is enough.
#[test]
fn i11_a_joiner_and_a_member_that_lost_each_other_are_told_of_each_other_again() {
    for member_tells in [false, true] {
        let (mut world, member, joiner) = waiting();
        let (from, to) = if member_tells { (member, joiner) } else { (joiner, member) };
        let other = world.id(to);
        let complain = |world: &mut World, tenths: u32| {
            for _ in 0..tenths {
                world.beat_with(from, |heartbeat| heartbeat.unreachable = vec![other]);
                world.pass(100, &[to]);
            }
        };
        feeds(&mut world, member);
        feeds(&mut world, joiner);
        complain(&mut world, 9);
        assert_eq!((feeds(&mut world, member), feeds(&mut world, joiner)), (0, 0));
        complain(&mut world, 20);
        assert_eq!((feeds(&mut world, member), feeds(&mut world, joiner)), (2, 2));
        world.sync_shards(joiner);
        world.pass(4_500, &[member, joiner]);
        assert!(world.record().waiting, "the next link may be lost as well");
        world.pass(1_000, &[member, joiner]);
        assert_eq!((world.record().waiting, world.members().len()), (false, 2));
    }
}

#[test]
fn a_joiner_that_speaks_of_an_older_generation_is_not_fed_again() {
    let (mut world, member, joiner) = waiting();
    let other = world.id(member);
    feeds(&mut world, joiner);
    for _ in 0..20 {
        world.beat_with(joiner, |heartbeat| {
            (heartbeat.generation, heartbeat.unreachable) = (Generation(1), vec![other]);
        });
        world.pass(100, &[member]);
    }
    assert_eq!(feeds(&mut world, joiner), 0);
}

#[test]
fn i20_a_worker_whose_link_comes_and_goes_delays_a_pause_once() {
    let (mut world, links) = World::training(4);
    world.commit(1..=2);
    world.actor(links[1]).mute = true;
    world.kill(links[3]);
    let mut flapping = links[1];
    for _ in 0..3 {
        world.pass(500, &[links[0], links[2], flapping]);
        world.cut(flapping);
        assert_eq!(world.generation(), Generation(1));
        world.pass(500, &[links[0], links[2]]);
        flapping = world.relink(flapping);
    }
    world.pass(50, &[links[0], links[2]]);
    assert_eq!(world.members(), [world.id(links[0]), world.id(links[2])]);
}

/// A worker still has its results of the step that was aborted before the run had to wait.
#[test]
fn a_step_is_done_again_once_however_often_the_run_that_waits_changes() {
    let (mut world, member, joiner) = waiting();
    for number in [3, 4] {
        world.beat_with(member, |heartbeat| heartbeat.promised = Generation(number));
        assert_eq!(world.generation(), Generation(number));
    }
    world.pass(50, &[member, joiner]);
    world.sync_shards(joiner);
    world.pass(50, &[member, joiner]);
    assert!(!world.record().waiting);
    let redone = world.events().into_iter().filter_map(|event| match event {
        EventKind::Generation { redone, .. } => Some(redone),
        _ => None,
    });
    assert_eq!(redone.collect::<Vec<_>>(), [false, true, false, false, false]);
}

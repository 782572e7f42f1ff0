//! Many workers fall silent together: the network of the coordinator is the likelier cause.

use super::*;

fn none_was_lost(world: &World) -> bool {
    world.comings_and_goings().is_empty()
}

/// A coordinator that hears no worker suspects none: they train on.
#[test]
fn i8_a_coordinator_that_is_cut_off_from_all_workers_changes_nothing() {
    for seconds in [3, 15, 60, 3_600] {
        let (mut world, links) = World::training(3);
        world.commit(1..=5);
        world.pass(seconds * 1_000, &[]);
        assert!(world.core.cluster_view(world.now).outage.is_some_and(|(silent, _)| silent == 3));
        world.pass(1_500, &links[..1]);
        world.pass(1_500, &links[..2]);
        world.pass(5_000, &links);
        assert_eq!((world.generation(), none_was_lost(&world)), (Generation(1), true));
        assert_eq!(world.core.cluster_view(world.now).outage, None);
    }
}

/// The links time out as well, and each worker has to dial again.
#[test]
fn i8_workers_that_dial_again_after_an_outage_are_all_taken_back() {
    let (mut world, links) = World::training(6);
    world.commit(1..=5);
    world.pass(3_000, &[]);
    links.iter().for_each(|link| world.cut(*link));
    world.pass(20_000, &[]);
    let mut back: Vec<LinkId> = Vec::new();
    for link in links {
        back.push(world.relink(link));
        world.pass(700, &back.clone());
    }
    world.pass(5_000, &back);
    assert_eq!((world.members().len(), none_was_lost(&world)), (6, true));
}

#[test]
fn i8_half_of_the_workers_may_stand_still_for_fifteen_seconds() {
    let (mut world, links) = World::training(4);
    world.commit(1..=5);
    let (living, still) = links.split_at(2);
    still.iter().for_each(|link| world.actor(*link).mute = true);
    world.pass(3_000, living);
    // Their links have timed out, and the others say that they cannot reach them.
    still.iter().for_each(|link| world.cut(*link));
    let other = world.id(still[0]);
    world.beat_with(living[0], |heartbeat| heartbeat.unreachable = vec![other]);
    world.pass(12_000, living);
    assert_eq!(world.generation(), Generation(1), "the change waits for them");
    let mut all = living.to_vec();
    for link in still {
        world.actor(*link).mute = false;
        all.push(world.relink(*link));
    }
    world.pass(1_000, &all);
    assert_eq!((world.members().len(), none_was_lost(&world)), (4, true));
    assert_eq!(world.record().resume, Step(5));
}

/// No leader misses the workers of a run that is over: such an outage would never end, and would
/// excuse no worker of the next run.
#[test]
fn i8_a_leader_that_begins_between_two_runs_expects_no_worker_of_the_first() {
    let mut world = World::empty();
    world.found(false);
    let begin = |world: &mut World, seed: u64, names: [&str; 4]| {
        world.request(2 * seed, OperatorCommand::Submit(RunSpec { seed, ..run_of(4) }.into()));
        let links = names.map(|name| world.worker(name));
        assert_eq!(world.generation(), Generation(seed), "it has begun");
        links
    };
    let links = begin(&mut world, 1, ["a", "b", "c", "d"]);
    world.cancel(3);
    links.iter().for_each(|link| drop(world.workers.remove(link)));
    world.restart();
    world.pass(30_000, &[]);
    let links = begin(&mut world, 2, ["e", "f", "g", "h"]);
    world.commit(1..=5);
    let outage = |world: &World| world.core.cluster_view(world.now).outage;
    world.pass(1_000, &links);
    assert_eq!(outage(&world), None);
    [links[1], links[3]].into_iter().for_each(|link| world.actor(link).mute = true);
    world.pass(7_000, &[links[0], links[2]]);
    let silent = outage(&world).map(|(silent, _)| silent);
    assert_eq!((world.generation(), silent), (Generation(2), Some(2)));
}

/// Workers that stay silent for ever, and hold last copies, do not keep others from being excused.
#[test]
fn i8_a_second_outage_is_waited_out_as_the_first() {
    let run = RunSpec { copies: 1, ..run_of(6) };
    let (mut world, links) = World::training_as(run);
    world.commit(1..=5);
    links[4..].iter().for_each(|link| world.actor(*link).mute = true);
    world.pass(40_000, &links[..4]);
    assert_eq!(world.members().len(), 6, "the run waits for them");
    links[2..4].iter().for_each(|link| world.actor(*link).mute = true);
    world.pass(7_000, &links[..2]);
    assert!(none_was_lost(&world));
    let awaited = |link: LinkId| world.core.health.detector.is_awaited(world.now, world.id(link));
    assert_eq!([links[2], links[3], links[4]].map(awaited), [true, true, false]);
}

/// One worker stands still, another misses the Pause, and then the coordinator hears no worker.
/// Of four workers on a ring, these two hold no last copy: the others could go on without them.
#[test]
fn i8_a_pause_is_not_unanswered_while_nobody_is_heard() {
    let (mut world, links) = World::training(4);
    world.commit(1..=5);
    [links[0], links[2]].into_iter().for_each(|link| world.actor(link).mute = true);
    let others = [links[1], links[3]];
    world.pass(2_400, &[links[0], links[1], links[3]]);
    assert!(world.core.change.is_pausing());
    for _ in 0..3 {
        world.pass(2_100, &[]);
        world.pass(300, &others);
        assert!(none_was_lost(&world));
    }
    world.actor(links[0]).mute = false;
    world.pass(1_500, &[links[0], links[1], links[3]]);
    assert!(none_was_lost(&world));
    world.pass(25_000, &[links[0], links[1], links[3]]);
    let unheard = world.id(links[0]);
    assert_eq!((world.members().len(), world.members().contains(&unheard)), (3, true));
}

/// Two workers fall silent together, and one of them turns out to be dead. Before the other one has
/// had its time, two more fall silent: they have as long as in any outage.
#[test]
fn i8_an_outage_that_ends_does_not_shorten_the_next_one() {
    let (mut world, links) = World::training(8);
    world.commit(1..=5);
    let beating = |silent: &[usize]| -> Vec<LinkId> {
        let loud = links.iter().enumerate().filter(|(place, _)| !silent.contains(place));
        loud.map(|(_, link)| *link).collect()
    };
    [0, 2, 4, 6].into_iter().for_each(|place| world.actor(links[place]).mute = true);
    world.pass(3_000, &beating(&[0, 2]));
    let (second, third) = (world.id(links[4]), world.id(links[6]));
    world.kill(links[2]);
    world.pass(2_000, &beating(&[0, 2]));
    world.pass(18_000, &beating(&[0, 2, 4, 6]));
    assert!([second, third].iter().all(|worker| world.members().contains(worker)));
    [4, 6].into_iter().for_each(|place| world.actor(links[place]).mute = false);
    world.pass(10_000, &beating(&[0, 2]));
    let members = world.members();
    assert!([second, third].iter().all(|worker| members.contains(worker)), "{members:?}");
    assert_eq!(members.len(), 6);
}

/// Two workers fall silent together, and one of them turns out to be dead. One more falls silent a
/// moment later: the two that may live have as long as in any outage.
#[test]
fn i8_an_outage_that_wanes_for_a_moment_lasts_as_long_as_any_other() {
    let (mut world, links) = World::training(6);
    world.commit(1..=5);
    let mute = |world: &mut World, place: usize| world.actor(links[place]).mute = true;
    [0, 4].into_iter().for_each(|place| mute(&mut world, place));
    world.pass(2_400, &[links[1], links[2], links[3], links[5]]);
    world.kill(links[4]);
    mute(&mut world, 2);
    world.pass(12_000, &[links[1], links[3], links[5]]);
    let members = world.members();
    let silent = [links[0], links[2]].map(|link| world.id(link));
    assert!(silent.iter().all(|worker| members.contains(worker)), "{members:?}");
    world.pass(14_000, &[links[1], links[3], links[5]]);
    assert_eq!(world.members().len(), 3, "no outage excuses a worker for ever");
}

/// Of four workers on a ring, two that are not neighbours hold no last copy.
#[test]
fn workers_that_stay_silent_together_are_left_out_if_the_others_can_go_on() {
    let (mut world, links) = World::training(4);
    world.commit(1..=5);
    [links[1], links[3]].into_iter().for_each(|link| world.actor(link).mute = true);
    world.pass(19_000, &[links[0], links[2]]);
    assert_eq!(world.generation(), Generation(1));
    world.pass(6_000, &[links[0], links[2]]);
    assert_eq!((world.members().len(), world.record().resume), (2, Step(5)));
}

/// A worker with an unstable link must not keep dead workers in the run.
#[test]
fn i20_a_flapping_worker_excuses_a_dead_one_once() {
    for silent in [2_600, 5_000, 8_000] {
        let (mut world, links) = World::training(6);
        world.commit(1..=5);
        let steady = [links[0], links[1], links[2], links[3]];
        let dead = world.id(links[5]);
        world.actor(links[5]).mute = true;
        let mut waited = 0;
        while world.members().contains(&dead) && waited < 90_000 {
            world.pass(silent, &steady);
            world.pass(200, &[&steady[..], &links[4..5]].concat());
            waited += silent + 200;
        }
        assert!(waited < 40_000, "{silent} ms: the dead worker was kept for {waited} ms");
    }
}

#[test]
fn refusals_of_many_at_once_are_waited_out_for_a_moment() {
    let (mut world, links) = World::training(3);
    world.commit(1..=5);
    let actors: Vec<Actor> = links.iter().map(|link| world.workers[link].clone()).collect();
    links.iter().for_each(|link| world.actor(*link).mute = true); // nothing reaches the workers
    links.iter().for_each(|link| world.refuse(*link));
    world.pass(150, &[]);
    let mut back = Vec::new();
    for (link, actor) in links.into_iter().zip(actors) {
        world.workers.insert(link, actor);
        back.push(world.relink(link));
        world.pass(100, &back.clone());
    }
    world.pass(1_000, &back);
    assert_eq!((world.members().len(), none_was_lost(&world)), (3, true));
}

/// A worker of another name, on this machine, states the address of worker 2. Worker 2 runs on
/// machine 7 and holds last copies. Returns whether the run goes back.
fn goes_back(machine: Option<u64>, linked: bool) -> bool {
    let (mut world, links) = replaced(machine, linked, true);
    world.pass(3_000, &links);
    world.comings_and_goings().iter().any(|it| it.starts_with("back"))
}

/// The same until the log has the other worker. Returns the links of worker 1, which may answer
/// the leader, and of the other worker.
fn replaced(machine: Option<u64>, linked: bool, answers: bool) -> (World, [LinkId; 2]) {
    let mut world = World::with_run(RunSpec { copies: 1, ..run_of(2) });
    let links = [Some(6), Some(7)].map(|machine| world.worker_on(machine));
    links.iter().for_each(|link| drop(world.hear(*link)));
    world.commit(1..=5);
    let before = world.id(links[1]);
    world.actor(links[0]).mute = !answers;
    if linked {
        world.pass(100, &links);
    } else {
        world.cut(links[1]);
        world.actor(links[1]).mute = true;
        world.pass(if answers { 5_000 } else { 500 }, &links[..1]);
    }
    let address = world.core.state().workers()[&before].registration.address;
    let link = world.greeted("another");
    world.workers.insert(link, Actor { node: "another".into(), ..Actor::default() });
    let machine = machine.map(MachineId);
    world.say(link, Message::Register(Registration { address, machine, ..registration(99) }));
    (world, [links[0], link])
}

/// A process has taken the place of a worker without a link if it listens at the worker's address
/// on the same machine.
#[test]
fn a_process_at_the_same_address_of_the_same_machine_proves_that_the_one_before_has_ended() {
    assert!(goes_back(Some(7), false));
    assert!(!goes_back(Some(7), true), "worker 2 has a link");
}

/// Found by a simulation: the leader that had seen it ended before the log had it, and the run
/// waited twenty seconds for the dead worker.
#[test]
fn the_next_leader_finds_that_a_process_has_taken_the_place_of_a_worker() {
    for (machine, is_proof) in [(Some(7), true), (Some(8), false)] {
        let (mut world, links) = replaced(machine, false, false);
        let has_gone_back =
            |world: &World| world.comings_and_goings().iter().any(|it| it.starts_with("back"));
        assert!(!has_gone_back(&world), "the leader has told nobody");
        world.actor(links[0]).mute = false;
        world.restart();
        let links = links.map(|link| world.relink(link));
        world.pass(1_000, &links);
        assert_eq!(has_gone_back(&world), is_proof, "{machine:?}");
    }
}

/// The address has passed to another machine while the first machine sleeps, or is a lie.
#[test]
fn i21_an_address_alone_proves_nothing() {
    for machine in [Some(6), Some(8), None] {
        assert!(!goes_back(machine, false), "{machine:?}");
    }
}

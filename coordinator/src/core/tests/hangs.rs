//! Devices that hang while the heartbeats of their workers go on.

use everstep_transport::protocol::message::ShardTime;

use super::*;

/// The worker says for how long its device has computed, and how long it takes as a rule.
fn computes(world: &mut World, link: LinkId, under_way_ms: u64, usual_ms: u64) {
    let computing = Some(ShardTime { under_way_ms, usual_ms });
    world.beat_with(link, |heartbeat| heartbeat.computing = computing);
}

fn lost(world: &World) -> Vec<(WorkerId, String)> {
    let lost = |event: &Event| match &event.kind {
        EventKind::Lost { worker, reason, .. } => Some((*worker, reason.to_string())),
        _ => None,
    };
    world.core.state().events().iter().filter_map(lost).collect()
}

#[test]
fn the_others_go_on_without_a_worker_whose_device_hangs_though_it_answers() {
    let (mut world, links) = World::training(3);
    world.commit(1..=3);
    let gone = world.id(links[1]);
    computes(&mut world, links[1], 31_000, 2_000);
    assert_eq!((world.generation(), world.members().len()), (Generation(2), 2));
    let reason = "its device has been at one data shard or update for 31.0s, which takes \
                  2.0s there as a rule";
    assert_eq!(lost(&world), [(gone, reason.to_string())]);
    assert!(world.words(links[1]).contains(&"evicted"), "it may begin again, and come back");
    world.commit(4..=5);
    assert_eq!(world.record().resume, Step(3));
}

#[test]
fn a_device_that_is_as_slow_as_ever_or_not_slow_for_long_does_not_hang() {
    for (under_way, usual) in [(29_000, 10_000), (9_999, 1), (600_000, 200_001)] {
        let (mut world, links) = World::training(3);
        computes(&mut world, links[1], under_way, usual);
        assert_eq!(world.generation(), Generation(1), "{under_way} {usual}");
    }
}

#[test]
fn a_run_says_how_long_a_device_may_take_at_least() {
    let (mut world, links) = World::training_as(RunSpec { hang_after_ms: 60_000, ..run_of(3) });
    computes(&mut world, links[1], 59_000, 100);
    assert_eq!(world.generation(), Generation(1));
    computes(&mut world, links[1], 60_000, 100);
    assert_eq!(world.generation(), Generation(2));
}

/// A device may compile in the first data shard after a build, which has no usual time.
#[test]
fn a_joiner_whose_first_data_shard_never_ends_is_left_out() {
    let (mut world, links) = World::training(3);
    world.commit(1..=3);
    for link in &links[..2] {
        computes(&mut world, *link, 100, 70_000);
    }
    computes(&mut world, links[2], 699_000, 0);
    assert_eq!(world.generation(), Generation(1), "others take 70 s as a rule");
    computes(&mut world, links[2], 700_000, 0);
    assert_eq!((world.generation(), world.members().len()), (Generation(2), 2));
    let reason = "its device has finished nothing for 700.0s";
    assert_eq!(lost(&world)[0].1, reason);
}

#[test]
fn a_run_says_that_no_device_ends_its_first_data_shard() {
    let (mut world, links) = World::training(2);
    links.iter().for_each(|link| computes(&mut world, *link, 599_000, 0));
    assert_eq!(standstills(&world), Vec::<String>::new(), "they may compile for 10 min");
    computes(&mut world, links[0], 600_000, 0);
    assert_eq!((world.generation(), standstills(&world).len()), (Generation(1), 1));
}

/// What the events say of devices that all stand still.
fn standstills(world: &World) -> Vec<String> {
    let told = |event: &Event| match &event.kind {
        EventKind::Standstill { reason } => Some(reason.to_string()),
        _ => None,
    };
    world.core.state().events().iter().filter_map(told).collect()
}

#[test]
fn a_run_says_once_that_the_device_of_its_only_worker_stands_still() {
    let (mut world, links) = World::training(1);
    computes(&mut world, links[0], 9_999, 1_000);
    assert_eq!(
        (world.core.cluster_view(world.now).standstill, standstills(&world)),
        (None, vec![])
    );
    for seconds in 31..40 {
        computes(&mut world, links[0], 1_000 * seconds, 2_000);
    }
    let worker = world.core.state().called(world.id(links[0]));
    let reason = format!(
        "{worker}: its device has been at one data shard or update for 31.0s, which takes \
         2.0s there as a rule"
    );
    assert_eq!(standstills(&world), std::slice::from_ref(&reason));
    let standstill = world.core.cluster_view(world.now).standstill.expect("the status says so");
    assert_eq!(standstill.reason, reason);
    assert_eq!(world.generation(), Generation(1));
    computes(&mut world, links[0], 100, 2_000);
    assert_eq!(world.core.cluster_view(world.now).standstill, None, "it has gone on");
}

#[test]
fn a_run_says_that_all_its_devices_stand_still_until_one_goes_on() {
    let (mut world, links) = World::training(3);
    links.iter().for_each(|link| computes(&mut world, *link, 9_000, 1_000));
    links.iter().for_each(|link| computes(&mut world, *link, 12_000, 1_000));
    assert_eq!((world.generation(), standstills(&world).len()), (Generation(1), 1));
    world.beat(links[1]);
    assert_eq!(world.core.cluster_view(world.now).standstill, None);
}

/// The devices share the cause: the storage of their data stands still, say.
#[test]
fn i8_nobody_is_suspected_when_all_devices_are_slow_at_once() {
    let (mut world, links) = World::training(3);
    computes(&mut world, links[0], 9_000, 1_000);
    computes(&mut world, links[1], 8_000, 1_000);
    computes(&mut world, links[2], 12_000, 1_000);
    assert_eq!(world.generation(), Generation(1));
    links.iter().for_each(|link| world.beat(*link));
    computes(&mut world, links[2], 12_500, 1_000);
    assert_eq!((world.generation(), world.members().len()), (Generation(2), 2));
}

#[test]
fn i21_a_run_that_says_so_gives_up_what_a_device_that_hangs_holds() {
    let run = RunSpec { copies: 1, give_up_after_ms: Some(10_000), ..run_of(3) };
    let (mut world, links) = World::training_as(run);
    world.commit(1..=3);
    let hang = |world: &mut World, from: u64, to: u64| {
        for seconds in from..to {
            computes(world, links[1], 1_000 * seconds, 2_000);
            world.pass(1_000, &[links[0], links[2]]);
        }
    };
    hang(&mut world, 31, 40);
    assert_eq!(world.generation(), Generation(1), "it hangs for 9 s beyond what it may take");
    hang(&mut world, 40, 46);
    assert_eq!((world.cause(), world.record().resume), (Cause::Rollback, Step(0)));
    assert_eq!(world.members().len(), 2);
}

/// Its links are closed by the revocation, which is no silence.
#[test]
fn a_run_says_that_the_owner_for_which_it_waits_is_revoked() {
    let (mut world, links) = World::training_as(RunSpec { copies: 1, ..run_of(3) });
    world.commit(1..=3);
    let name = NodeName::parse(&world.actor(links[1]).node).expect("a valid name");
    world.actor(links[1]).mute = true;
    world.request(1, OperatorCommand::Revoke(Identity { role: Role::Worker, name }));
    world.cut(links[1]);
    world.pass(5_000, &[links[0], links[2]]);
    let words = world.watch(0, 0).owners_awaited.expect("it waits").to_string();
    assert!(words.contains(" is revoked, and no other worker holds"), "{words}");
    assert!(!words.contains("silent"), "{words}");
}

#[test]
fn i21_the_run_waits_for_a_device_that_hangs_with_a_last_copy() {
    let (mut world, links) = World::training_as(RunSpec { copies: 1, ..run_of(3) });
    world.commit(1..=3);
    computes(&mut world, links[1], 31_000, 2_000);
    world.pass(2_500, &[links[0], links[2]]);
    for seconds in 34..60 {
        computes(&mut world, links[1], 1_000 * seconds, 2_000);
        world.pass(1_000, &[links[0], links[2]]);
    }
    assert_eq!((world.generation(), lost(&world)), (Generation(1), vec![]));
    let awaited = world.watch(0, 0).owners_awaited.expect("it says for whom it waits");
    let shards = awaited.shards;
    let words = format!(
        "{} hangs (its device has been at one data shard or update for 31.0s, which takes 2.0s \
         there as a rule), and no other worker holds {shards} parameter shards. `everstep run \
         rollback --step 0` gives up what it held",
        awaited.workers[0]
    );
    assert_eq!(awaited.to_string(), words);
    // The device was only slow.
    computes(&mut world, links[1], 0, 2_000);
    world.pass(1_000, &links);
    assert_eq!((world.generation(), world.members().len()), (Generation(2), 3));
    assert_eq!((world.record().resume, world.comings_and_goings()), (Step(3), vec![]));
}

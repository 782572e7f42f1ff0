use std::collections::BTreeSet;

use everstep_transport::protocol::RunId;

use super::*;

/// Two copies on four workers in a ring: two neighbours hold some shards alone.
fn neighbours_lost(fault: fn(&mut World, LinkId)) -> (World, Vec<LinkId>) {
    let (mut world, links) = World::training(4);
    world.commit(1..=5);
    world.report_lines(links[0], 1..=4);
    world.kill(links[1]);
    fault(&mut world, links[2]);
    (world, links)
}

#[test]
fn two_that_are_not_neighbours_are_lost_without_a_step() {
    let (mut world, links) = World::training(4);
    world.commit(1..=5);
    world.holds_back = true;
    world.kill(links[1]);
    world.kill(links[3]);
    world.catch_up();
    assert_eq!((world.record().resume, world.members().len()), (Step(5), 2));
    assert!(world.comings_and_goings().iter().all(|event| event.starts_with("lost")));
}

#[test]
fn when_all_owners_of_a_shard_are_dead_the_run_begins_anew_with_everyone_who_is_there() {
    let (mut world, links) = World::training(4);
    world.commit(1..=5);
    world.report_lines(links[0], 1..=4);
    let joiner = world.worker("worker-9");
    world.actor(links[0]).mute = true;
    world.kill(links[1]);
    world.kill(links[2]);
    world.actor(links[0]).mute = false;
    world.pass(500, &[links[0], links[3], joiner]);
    let record = world.record();
    assert_eq!((record.cause, record.resume, record.commit), (Cause::Rollback, Step(0), None));
    let members = [world.id(links[0]), world.id(links[3]), world.id(joiner)];
    assert_eq!(world.members(), members);
    let back = world.comings_and_goings().pop();
    assert_eq!(back.as_deref(), Some("back from 5 to 0"));
    let reason = world.events().into_iter().find_map(|event| match event {
        EventKind::Rollback { reason, .. } => Some(reason.to_string()),
        _ => None,
    });
    let owners = "worker 2 (id 4) and worker 3 (id 5)";
    let expected = format!("parameter shard 2, of {owners}, and 1 others were lost");
    assert_eq!(reason, Some(expected));
    assert_eq!((world.line_file.len(), world.watch(0, 0).lines.len()), (0, 0));
    world.report_lines(links[0], 1..=2);
    assert_eq!(world.line_file, lines(Generation(2), 1..=2));
}

/// Silence is not death: worker 3 was stopped, and goes on.
#[test]
fn a_silent_owner_of_the_last_copy_is_waited_for() {
    let (mut world, links) = neighbours_lost(|world, link| world.actor(link).mute = true);
    let living = [links[0], links[3]];
    world.pass(9_000, &living);
    assert_eq!((world.generation(), world.running()), (Generation(2), true));
    world.actor(links[2]).mute = false;
    world.beat(links[2]);
    world.pass(500, &living);
    assert_eq!((world.record().resume, world.members().len()), (Step(5), 3));
    assert_eq!(world.comings_and_goings().len(), 1, "only worker 2 was lost");
}

#[test]
fn an_owner_of_the_last_copy_that_answered_and_fell_silent_is_waited_for() {
    let (mut world, links) = World::training(4);
    world.commit(1..=5);
    world.actor(links[0]).mute = true;
    world.kill(links[1]);
    world.cut(links[2]); // the worker has answered before
    world.actor(links[0]).mute = false;
    world.pass(5_000, &[links[0], links[3]]);
    assert_eq!(world.generation(), Generation(1));
    world.relink(links[2]);
    assert_eq!((world.record().resume, world.members().len()), (Step(5), 3));
}

/// A firewall that refuses packets for a living worker, or a forged refusal, looks the same.
#[test]
fn a_refusal_is_no_proof_that_the_owner_of_the_last_copy_is_dead() {
    let (mut world, links) = World::training(4);
    world.commit(1..=5);
    world.kill(links[1]);
    let actor = world.workers[&links[2]].clone();
    world.refuse(links[2]);
    world.pass(5_000, &[links[0], links[3]]);
    assert!(!world.comings_and_goings().iter().any(|event| event.starts_with("back")));
    world.workers.insert(links[2], actor);
    world.relink(links[2]);
    world.pass(500, &[links[0], links[3]]);
    assert_eq!((world.record().resume, world.members().len()), (Step(5), 3));
}

#[test]
fn i21_a_silent_owner_is_waited_for_however_long_it_takes() {
    let (mut world, links) = neighbours_lost(|world, link| world.actor(link).mute = true);
    let living = [links[0], links[3]];
    world.pass(600_000, &living);
    assert_eq!(world.generation(), Generation(2));
    let awaited = world.watch(0, 0).owners_awaited.expect("it says for whom it waits");
    assert_eq!((awaited.shards, awaited.owners), (2, vec![world.id(links[2])]));
    world.actor(links[2]).mute = false;
    world.beat(links[2]);
    world.pass(500, &living);
    assert_eq!((world.record().resume, world.members().len()), (Step(5), 3));
}

#[test]
fn i21_a_run_that_says_so_gives_a_silent_owner_up() {
    let run = RunSpec { give_up_after_ms: Some(10_000), ..run_of(4) };
    let (mut world, links) = World::training_as(run);
    world.commit(1..=5);
    world.kill(links[1]);
    world.actor(links[2]).mute = true;
    let living = [links[0], links[3]];
    world.pass(9_900, &living);
    assert_eq!(world.generation(), Generation(2));
    world.pass(5_000, &living);
    assert_eq!(world.cause(), Cause::Rollback);
}

/// The time in which a coordinator was cut off itself does not count.
#[test]
fn i21_the_time_until_an_owner_is_given_up_begins_with_the_first_answer() {
    let run = RunSpec { give_up_after_ms: Some(10_000), ..run_of(3) };
    let (mut world, links) = World::training_as(run);
    world.commit(1..=5);
    links[1..].iter().for_each(|link| world.actor(*link).mute = true);
    world.pass(60_000, &[]);
    world.beat_with(links[0], |heartbeat| heartbeat.promised = Generation(2));
    world.pass(9_000, &[links[0]]);
    assert_eq!(world.generation(), Generation(1));
    links[1..].iter().for_each(|link| world.actor(*link).mute = false);
    world.pass(500, &links);
    assert_eq!((world.record().resume, world.members().len()), (Step(5), 3));
}

#[test]
fn i21_an_operator_gives_up_what_silent_owners_hold() {
    let (mut world, links) = neighbours_lost(|world, link| world.actor(link).mute = true);
    let living = [links[0], links[3]];
    world.pass(15_000, &living);
    let run = world.core.state().run_id();
    world.request(1, OperatorCommand::Rollback { run, step: Step(3), generation: Generation(0) });
    assert_eq!(world.hear(world.operator), [answer(1, Some(Rejection::NoCheckpoint(Step(3))))]);
    world.request(
        2,
        OperatorCommand::Rollback {
            run: RunId(run.0 + 1),
            step: Step(0),
            generation: Generation(0),
        },
    );
    assert_eq!(world.generation(), Generation(2), "that is another run");
    world.request(3, OperatorCommand::Rollback { run, step: Step(0), generation: Generation(0) });
    world.pass(100, &living);
    assert_eq!((world.cause(), world.record().resume), (Cause::Rollback, Step(0)));
    world.request(3, OperatorCommand::Rollback { run, step: Step(0), generation: Generation(0) });
    world.pass(5_000, &living);
    let backs = world.comings_and_goings().iter().filter(|it| it.starts_with("back")).count();
    assert_eq!(backs, 1, "asked again, it goes back once");
}

#[test]
fn an_operator_lets_a_healthy_run_go_back() {
    let (mut world, links) = World::training(3);
    world.commit(1..=5);
    let run = world.core.state().run_id();
    world.request(1, OperatorCommand::Rollback { run, step: Step(0), generation: Generation(0) });
    world.pass(100, &links);
    assert_eq!((world.cause(), world.members().len()), (Cause::Rollback, 3));
}

#[test]
fn an_exit_that_is_noticed_ends_the_waiting() {
    let (mut world, links) = neighbours_lost(|world, link| world.actor(link).mute = true);
    world.pass(4_000, &[links[0], links[3]]);
    let name = NodeName::parse("worker-3").expect("a valid name");
    world.say(world.operator, Message::Exited { name, how: ProcessExit::KILLED });
    assert_eq!(world.cause(), Cause::Rollback);
}

/// The next loss comes before any worker has entered a generation that begins from the seed. No
/// worker shows anything of the initial state, but every worker has it.
#[test]
fn a_beginning_that_nobody_has_entered_is_begun_again() {
    let (mut world, links) = World::training(3);
    world.kill(links[1]);
    for link in [links[0], links[2]] {
        let actor = world.actor(link);
        (actor.generation, actor.versions) = (Generation(1), BTreeMap::new());
    }
    world.kill(links[2]);
    let record = world.record();
    assert_eq!((record.number, record.cause, record.resume), (Generation(3), Cause::Lost, Step(0)));
    assert_eq!(world.members(), [world.id(links[0])]);
}

/// Steps may be committed that no worker is left to tell of: this is no start, and takes no haste.
#[test]
fn a_first_generation_that_is_lost_whole_is_rolled_back_not_begun_again_in_silence() {
    let (mut world, links) = World::training(2);
    world.commit(1..=5);
    let joiner = world.worker("worker-9");
    for link in &links {
        world.actor(*link).mute = true;
    }
    world.pass(90_000, &[joiner]);
    assert_eq!(world.generation(), Generation(1), "silence is not death");
    for place in 1..=2 {
        let name = NodeName::parse(&format!("worker-{place}")).expect("a valid name");
        world.say(world.operator, Message::Exited { name, how: ProcessExit::KILLED });
    }
    world.pass(2_500, &[joiner]);
    assert_eq!((world.cause(), world.record().resume), (Cause::Rollback, Step(0)));
    assert_eq!(world.members(), [world.id(joiner)]);
}

/// A joiner that is not ready is better than a rollback, if it alone has a shard.
#[test]
fn a_joiner_that_alone_holds_a_shard_is_taken_in() {
    let (mut world, links) = World::training_as(RunSpec { copies: 1, ..run_of(2) });
    world.commit(1..=5);
    let joiner = world.worker("worker-9");
    world.pass(50, &[links[0], links[1], joiner]);
    let record = world.record();
    let donor = world.actor(links[1]).clone();
    world.actor(joiner).versions = donor.versions.clone();
    world.kill(links[1]);
    assert_eq!((world.record().resume, world.members().len()), (record.resume.max(Step(5)), 2));
    assert_eq!(world.comings_and_goings()[1], format!("joined {}", world.id(joiner)));
}

/// The only worker is stopped for a while.
#[test]
fn a_run_that_no_worker_answers_says_for_whom_it_waits() {
    let (mut world, links) = World::training(1);
    world.commit(1..=5);
    let since = EPOCH_UNIX_MS + world.now.0 / 1_000_000;
    world.actor(links[0]).mute = true;
    world.pass(8_000, &[]);
    let update = world.watch(0, 0);
    let awaited = update.owners_awaited.expect("it says for whom it waits");
    assert_eq!((awaited.shards, &awaited.owners[..]), (SHARDS, &[world.id(links[0])][..]));
    assert!((since + 2_000..since + 4_000).contains(&awaited.since_unix_ms), "{awaited:?}");
    assert_eq!(update.waiting, None, "workers enough are there, and may live");
    world.actor(links[0]).mute = false;
    world.beat(links[0]);
    world.pass(500, &links);
    assert_eq!((world.record().resume, world.watch(0, 0).owners_awaited), (Step(5), None));
}

/// What the events say of waits for owners.
fn waits(world: &World) -> Vec<String> {
    let told = |kind: EventKind| match kind {
        EventKind::Waiting { awaited } => Some(awaited.to_string()),
        EventKind::WaitingOver { waited_ms, .. } => Some(format!("over after {waited_ms} ms")),
        _ => None,
    };
    world.events().into_iter().filter_map(told).collect()
}

#[test]
fn events_say_once_for_whom_a_run_waits_and_once_that_it_waits_no_more() {
    let (mut world, links) = World::training(1);
    world.commit(1..=5);
    world.actor(links[0]).mute = true;
    world.pass(20_000, &[]);
    world.restart();
    world.pass(20_000, &[]);
    let awaited = world.watch(0, 0).owners_awaited.expect("it waits");
    let expected = format!("{} is silent, and no other worker holds", awaited.workers[0]);
    let told = waits(&world);
    assert!(told.len() == 1 && told[0].starts_with(&expected), "{told:?}");
    world.actor(links[0]).mute = false;
    let link = world.relink(links[0]);
    world.pass(500, &[link]);
    let told = waits(&world);
    assert_eq!((told.len(), world.record().resume), (2, Step(5)));
    assert!(told[1].starts_with("over after 3"), "{told:?}");
}

/// The leader changes more often than the run would wait for.
#[test]
fn i21_the_wait_for_an_owner_goes_on_under_the_next_leader() {
    let run = RunSpec { give_up_after_ms: Some(30_000), ..run_of(4) };
    let (mut world, links) = World::training_as(run);
    world.commit(1..=5);
    world.kill(links[1]);
    world.actor(links[2]).mute = true;
    let silent = world.id(links[2]);
    let mut living = vec![links[0], links[3]];
    let mut since = BTreeSet::new();
    for _ in 0..3 {
        world.pass(12_000, &living);
        let awaited = world.watch(0, 0).owners_awaited.expect("it waits");
        assert_eq!(awaited.owners, [silent], "the other one is known to be dead");
        since.insert(awaited.since_unix_ms);
        world.restart();
        living = living.into_iter().map(|link| world.relink(link)).collect();
    }
    assert_eq!(since.len(), 1, "one wait has one beginning: {since:?}");
    world.pass(9_000, &living);
    assert_eq!(world.generation(), Generation(2), "the leader has hardly listened itself");
    world.pass(9_000, &living);
    assert_eq!((world.cause(), world.record().resume), (Cause::Rollback, Step(0)));
}

/// An owner that an earlier leader was waiting for is heard, and falls silent again.
#[test]
fn i21_an_owner_that_was_heard_is_waited_for_anew() {
    let run = RunSpec { give_up_after_ms: Some(30_000), ..run_of(4) };
    let (mut world, links) = World::training_as(run);
    world.commit(1..=5);
    world.kill(links[1]);
    world.actor(links[2]).mute = true;
    world.pass(25_000, &[links[0], links[3]]);
    world.restart();
    let living = [links[0], links[3]].map(|link| world.relink(link));
    let muted = world.relink(links[2]);
    world.cut(muted);
    world.pass(20_000, &living);
    assert_eq!(world.generation(), Generation(2), "it was heard 20 s ago");
}

/// A command that was on its way for long comes when the run has gone back already.
#[test]
fn a_rollback_that_is_said_again_late_does_nothing() {
    let (mut world, links) = World::training(3);
    world.commit(1..=5);
    let (run, generation) = (world.core.state().run_id(), world.generation());
    let command = OperatorCommand::Rollback { run, step: Step(0), generation };
    world.request(1, command.clone());
    world.pass(100, &links);
    assert_eq!((world.generation(), world.cause()), (Generation(2), Cause::Rollback));
    world.hear(world.operator);
    world.request(2, command); // the outcome is forgotten, so it looks like a new command
    let refusal = Rejection::GoneBack(Generation(2));
    assert_eq!(world.hear(world.operator), [answer(2, Some(refusal))]);
    world.request(3, OperatorCommand::Rollback { run, step: Step(0), generation: Generation(2) });
    world.pass(100, &links);
    assert_eq!(world.generation(), Generation(3), "who knows of that may ask for another one");
}

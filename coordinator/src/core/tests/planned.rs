use super::*;

fn feed_of(world: &mut World, link: LinkId) -> Vec<(WorkerId, Vec<Shard>)> {
    let heard = world.hear(link).into_iter();
    let feeds = heard.filter_map(|message| match message {
        Message::Feed { joiner, shards, .. } => Some((joiner, shards)),
        _ => None,
    });
    feeds.collect()
}

#[test]
fn a_worker_that_joins_is_fed_and_then_becomes_a_member_at_a_quiet_boundary() {
    let (mut world, links) = World::training(2);
    world.commit(1..=3);
    let joiner = world.worker("worker-3");
    let all = [links[0], links[1], joiner];
    assert_eq!(world.words(joiner), ["welcome", "registered"]);
    world.pass(50, &all);
    assert_eq!(world.words(joiner), ["heartbeat_answer", "announce", "feed"]);
    let fed = feed_of(&mut world, links[1]);
    assert!(fed.iter().any(|(fed, shards)| *fed == world.id(joiner) && !shards.is_empty()));
    world.commit(4..=4);
    for link in all {
        if world.actor(link).shard_syncs.is_some() {
            world.sync_shards(link);
        }
    }
    assert_eq!(world.generation(), Generation(1));
    world.pass(50, &all);
    assert!(world.words(links[0]).contains(&"hold"), "the step leader is asked");
    world.commit(5..=5);
    world.sync_shards(joiner);
    world.hold_all();
    let record = world.record();
    assert_eq!((record.number, record.cause), (Generation(2), Cause::Join));
    assert_eq!((record.resume, record.members.len()), (Step(5), 3));
    assert_eq!(world.comings_and_goings(), [format!("joined {}", world.id(joiner))]);
    assert!(record.members.iter().all(|member| !member.data_shards.is_empty()));
    let began = world.events().pop();
    assert!(matches!(began, Some(EventKind::Generation { redone: false, .. })), "{began:?}");
}

/// All workers sync what they are fed, and the leader makes every change, until there is none.
fn settle(world: &mut World, links: &[LinkId]) -> u64 {
    let before = world.generation();
    for _ in 0..8 {
        world.pass(50, links);
        let fed: Vec<LinkId> = links
            .iter()
            .copied()
            .filter(|link| world.workers[link].shard_syncs.is_some())
            .collect();
        fed.iter().for_each(|link| world.sync_shards(*link));
        world.pass(50, links);
        world.hold_all();
    }
    world.generation().0 - before.0
}

#[test]
fn joiners_of_one_moment_are_taken_in_together() {
    let (mut world, mut links) = World::training(2);
    world.commit(1..=3);
    links.extend([world.worker("worker-3"), world.worker("worker-4")]);
    let changes = settle(&mut world, &links);
    assert_eq!((changes, world.members().len()), (1, 4));
    assert_eq!(world.protection(), 2);
    assert_eq!(settle(&mut world, &links), 0, "nothing is left to be done");
}

#[test]
fn a_worker_that_comes_while_others_learn_waits_for_the_next_change() {
    let (mut world, links) = World::training(2);
    world.commit(1..=3);
    let first = world.worker("worker-3");
    world.pass(50, &[links[0], links[1], first]);
    let second = world.worker("worker-4");
    let all = [links[0], links[1], first, second];
    world.pass(1_000, &all);
    assert!(!world.words(second).contains(&"feed"));
    let changes = settle(&mut world, &all);
    assert_eq!((changes, world.members().len()), (2, 4));
}

#[test]
fn a_joiner_that_takes_long_keeps_nobody_else_waiting_for_ever() {
    let (mut world, links) = World::training(2);
    world.commit(1..=3);
    let slow = world.worker("worker-3");
    world.pass(50, &[links[0], links[1], slow]);
    let second = world.worker("worker-4");
    let all = [links[0], links[1], slow, second];
    world.pass(10_100, &all);
    assert!(world.words(second).contains(&"feed"));
    for link in [links[0], links[1], second] {
        if world.workers[&link].shard_syncs.is_some() {
            world.sync_shards(link);
        }
    }
    world.pass(9_000, &[links[0], links[1], slow]);
    assert_eq!(world.members().len(), 2);
}

/// After a loss the survivors train on with one copy, and the second is made meanwhile.
#[test]
fn new_backups_are_learned_in_the_background() {
    let (mut world, links) = World::training(3);
    world.commit(1..=3);
    world.kill(links[2]);
    assert_eq!((world.generation(), world.protection()), (Generation(2), 1));
    let rest = &links[..2];
    let changes = settle(&mut world, rest);
    assert_eq!((changes, world.protection()), (1, 2));
    assert_eq!(world.cause(), Cause::Rebalance);
    assert_eq!(world.comings_and_goings().len(), 1);
    assert_eq!(settle(&mut world, rest), 0);
}

#[test]
fn a_hold_that_is_not_kept_by_everyone_ends_in_a_pause_anyway() {
    let (mut world, links) = World::training(2);
    let joiner = world.worker("worker-3");
    let all = [links[0], links[1], joiner];
    world.commit(1..=3);
    world.pass(50, &all);
    for link in all {
        if world.workers[&link].shard_syncs.is_some() {
            world.sync_shards(link);
        }
    }
    world.give(CoreInput::Tick);
    assert!(world.words(links[0]).contains(&"hold"));
    world.beat_with(links[0], |heartbeat| heartbeat.held = true);
    world.pass(900, &[]);
    assert_eq!(world.generation(), Generation(1));
    world.pass(100, &[]);
    assert_eq!((world.generation(), world.members().len()), (Generation(2), 3));
}

/// A step may be longer than a hold: the leader waits for the next commit as long as steps take.
#[test]
fn the_next_commit_is_waited_for_as_long_as_steps_take() {
    let (mut world, links) = World::training(2);
    world.commit(1..=3);
    let mut slow = lines(Generation(1), 1..=3);
    slow.iter_mut().for_each(|line| line.seconds = 2.0);
    world.beat_with(links[0], |heartbeat| heartbeat.lines = slow);
    let joiner = world.worker("worker-3");
    let all = [links[0], links[1], joiner];
    world.pass(50, &all);
    for link in all {
        if world.workers[&link].shard_syncs.is_some() {
            world.sync_shards(link);
        }
    }
    for _ in 0..11 {
        world.pass(500, &links);
    }
    assert_eq!(world.generation(), Generation(1));
    let holds = world.words(links[0]).into_iter().filter(|word| *word == "hold").count();
    assert_eq!(holds, 6, "it is asked again");
    world.pass(600, &links);
    assert_eq!(world.generation(), Generation(2));
}

#[test]
fn a_suspicion_overtakes_a_planned_change() {
    let (mut world, links) = World::training(3);
    world.commit(1..=3);
    let joiner = world.worker("worker-4");
    let all = [links[0], links[1], links[2], joiner];
    world.pass(50, &all);
    for link in all {
        if world.workers[&link].shard_syncs.is_some() {
            world.sync_shards(link);
        }
    }
    world.give(CoreInput::Tick);
    assert!(world.words(links[0]).contains(&"hold"));
    world.kill(links[1]);
    assert_eq!((world.generation(), world.cause()), (Generation(2), Cause::Lost));
    assert!(world.members().contains(&world.id(joiner)), "who is ready is taken in as well");
}

#[test]
fn a_worker_that_drains_goes_when_nothing_depends_on_it() {
    let (mut world, links) = World::training(3);
    world.commit(1..=3);
    let id = world.id(links[1]);
    world.say(links[1], Message::Leave);
    world.say(links[1], Message::Leave); // the worker says so on every new link
    assert!(world.words(links[0]).contains(&"hold"), "its shards have backups: at once");
    assert_eq!(world.watch(0, 0).workers[1].state.to_owned(), WorkerState::Leaving);
    world.hold_all();
    assert_eq!((world.generation(), world.cause()), (Generation(2), Cause::Leave));
    assert_eq!(world.hear(links[1]).pop(), Some(Message::Drain { worker: id }));
    assert_eq!(world.comings_and_goings(), [format!("left {id}")]);
    world.kill(links[1]);
    world.pass(5_000, &[links[0], links[2]]);
    assert_eq!(world.comings_and_goings(), [format!("left {id}")], "its end is no loss");
}

#[test]
fn a_worker_of_a_machine_that_is_taken_back_leaves_and_an_event_says_why() {
    let (mut world, links) = World::training(3);
    world.commit(1..=3);
    let (worker, notice) = (world.id(links[1]), exemplars::notice());
    world.say(links[1], Message::Preempted(notice));
    world.say(links[1], Message::Preempted(notice)); // the worker says so on every new link
    let seen = world.watch(0, 0);
    assert_eq!(
        (seen.workers[1].state, seen.workers[1].preemption),
        (WorkerState::Leaving, Some(notice))
    );
    let told: Vec<_> = seen.events.into_iter().map(|event| event.kind).collect();
    let at = told.iter().position(|kind| *kind == EventKind::Preempted { worker, notice });
    let at = at.expect("an event");
    assert_eq!(told[at + 1], EventKind::Draining { worker });
    assert!(!told[at + 2..].iter().any(|kind| matches!(kind, EventKind::Preempted { .. })));
}

#[test]
fn the_status_counts_the_time_down_that_a_cloud_leaves_until_the_notice_is_withdrawn() {
    let (mut world, links) = World::training(1);
    world.say(links[0], Message::Preempted(exemplars::notice()));
    world.pass(3_000, &links);
    let preemption = world.seen()[0].preemption.expect("the last worker stays");
    assert!((110..117).contains(&preemption.seconds_left), "{preemption}");
    world.say(links[0], Message::Leave);
    assert_eq!(world.seen()[0].preemption, None);
}

/// With one copy no worker is free before others have synced its shards.
#[test]
fn a_worker_that_drains_is_copied_first() {
    let (mut world, links) = World::training_as(RunSpec { copies: 1, ..run_of(2) });
    world.commit(1..=3);
    let id = world.id(links[1]);
    world.request(1, OperatorCommand::Drain(id));
    assert_eq!(world.hear(world.operator), [answer(1, None)]);
    assert_eq!(world.generation(), Generation(1));
    let shard_syncs = world.actor(links[0]).shard_syncs.clone().expect("the other learns");
    assert_eq!(shard_syncs.len(), 4);
    assert_eq!(settle(&mut world, &links), 1);
    assert_eq!(world.members(), [world.id(links[0])]);
}

#[test]
fn the_last_worker_that_drains_stays_until_another_can_take_over() {
    let (mut world, links) = World::training(1);
    world.commit(1..=3);
    world.say(links[0], Message::Leave);
    world.pass(3_000, &links);
    assert_eq!(world.generation(), Generation(1));
    let other = world.worker("worker-2");
    settle(&mut world, &[links[0], other]);
    assert_eq!(world.members(), [world.id(other)]);
    assert_eq!(world.words(links[0]).pop(), Some("drain"));
}

#[test]
fn a_drain_is_refused_in_words_where_it_cannot_be() {
    let (mut world, links) = World::training(3);
    world.request(1, OperatorCommand::Drain(WorkerId(99)));
    assert_eq!(world.hear(world.operator), [answer(1, Some(Rejection::NoWorker(WorkerId(99))))]);
    let id = world.id(links[2]);
    world.kill(links[2]);
    world.request(2, OperatorCommand::Drain(id));
    let gone = everstep_transport::protocol::WorkerLabel { number: 3, worker: id, host: None };
    assert_eq!(world.hear(world.operator), [answer(2, Some(Rejection::Gone(gone)))]);
}

#[test]
fn a_worker_that_is_no_member_leaves_at_once() {
    let (mut world, _) = World::training(2);
    let joiner = world.worker("worker-3");
    world.hear(joiner);
    world.say(joiner, Message::Leave);
    assert_eq!(world.words(joiner), ["drain"]);
    assert_eq!(world.comings_and_goings(), [format!("left {}", world.id(joiner))]);
}

#[test]
fn a_worker_that_drains_and_dies_before_it_is_free_is_lost() {
    let (mut world, links) = World::training(3);
    world.commit(1..=3);
    let id = world.id(links[1]);
    world.say(links[1], Message::Leave);
    world.kill(links[1]);
    assert_eq!(world.comings_and_goings(), [format!("lost {id}")]);
}

#[test]
fn too_few_members_wait_and_go_on_when_another_has_come() {
    let (mut world, links) = World::training_as(RunSpec { min_workers: 2, ..run_of(2) });
    world.commit(1..=3);
    world.pass(1_000, &links);
    world.kill(links[1]);
    let record = world.record();
    assert!(record.waiting && record.members[0].data_shards.is_empty());
    let waiting = world.watch(0, 0).waiting.expect("it waits");
    assert_eq!((waiting.members, waiting.wanted), (1, 2));
    assert_eq!(waiting.since_unix_ms, EPOCH_UNIX_MS + 1_000);
    let joiner = world.worker("worker-3");
    world.pass(50, &[links[0], joiner]);
    world.sync_shards(joiner);
    world.give(CoreInput::Tick);
    let record = world.record();
    assert_eq!((record.waiting, record.resume, record.members.len()), (false, Step(3), 2));
    assert!(!world.words(links[0]).contains(&"hold"), "there is no step to hold");
    assert_eq!(world.watch(0, 0).waiting, None);
}

#[test]
fn a_joiner_that_is_lost_is_not_fed_any_more_and_who_waited_is() {
    let (mut world, links) = World::training(2);
    world.commit(1..=3);
    let first = world.worker("worker-3");
    world.pass(50, &[links[0], links[1], first]);
    let second = world.worker("worker-4");
    world.kill(first);
    let fed: Vec<WorkerId> =
        feed_of(&mut world, links[0]).into_iter().map(|(joiner, _)| joiner).collect();
    assert!(fed.contains(&world.id(second)), "{fed:?}");
}

#[test]
fn feeds_are_said_again_to_a_worker_with_a_new_link() {
    let (mut world, links) = World::training(2);
    world.commit(1..=3);
    let joiner = world.worker("worker-3");
    world.pass(50, &[links[0], links[1], joiner]);
    let again = world.relink(joiner);
    assert_eq!(world.words(again), ["registered", "announce", "feed"]);
    let member = world.relink(links[1]);
    let fed = feed_of(&mut world, member);
    assert!(fed.iter().any(|(joiner, _)| *joiner == world.id(again)), "{fed:?}");
    assert_eq!(world.generation(), Generation(1), "a link that is replaced makes no suspect");
}

#[test]
fn nothing_is_planned_while_a_member_has_no_link() {
    let (mut world, links) = World::training(3);
    world.commit(1..=3);
    world.restart();
    let first = world.relink(links[0]);
    world.say(first, Message::Leave);
    world.pass(1_000, &[first]);
    assert!(!world.words(first).contains(&"hold"));
}

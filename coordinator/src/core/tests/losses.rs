use everstep_transport::protocol::reason::LossReason;

use super::*;

fn lost(world: &World) -> Vec<(WorkerId, String, u64)> {
    let lost = world.events().into_iter().filter_map(|event| match event {
        EventKind::Lost { worker, reason, detect_ms, .. } => {
            Some((worker, reason.to_string(), detect_ms))
        }
        _ => None,
    });
    lost.collect()
}

/// How each sign of a death or silence ends a membership, how soon, and what is said of it.
#[test]
fn every_sign_of_a_loss_is_noticed_in_its_time() {
    type Fault = fn(&mut World, LinkId);
    let table: [(Fault, u64, &str); 6] = [
        (|w, link| w.kill(link), 0, "its link closed: the peer is gone: it said goodbye"),
        (
            |w, link| w.refuse(link),
            0,
            "its link closed: the peer cannot be reached: no process listens at its port",
        ),
        (
            |w, link| w.cut(link),
            2_250,
            "its link closed: the link was lost: nothing was heard from the peer",
        ),
        (
            |w, _| {
                let name = NodeName::parse("worker-3").expect("a valid name");
                let how = ProcessExit::KILLED;
                w.say(w.operator, Message::Exited { name, how });
            },
            0,
            "its process was killed (signal 9)",
        ),
        (
            |w, link| {
                let (at_fault, fatal, reason) = (None, false, "no disk".into());
                w.say(link, Message::Failed { at_fault, fatal, reason });
            },
            0,
            "it failed: no disk",
        ),
        (|w, link| w.actor(link).mute = true, 2_250, "no heartbeat for 2.2s"),
    ];
    for (fault, within, expected) in table {
        let (mut world, links) = World::training(3);
        let gone = world.id(links[2]);
        fault(&mut world, links[2]);
        world.pass(within, &links[..2]);
        assert_eq!(world.members(), [world.id(links[0]), world.id(links[1])], "{expected}");
        assert_eq!((world.generation(), world.cause()), (Generation(2), Cause::Lost));
        let [(worker, reason, detect_ms)] = &lost(&world)[..] else { panic!("not one lost") };
        assert_eq!((*worker, &reason[..]), (gone, expected));
        assert!(*detect_ms <= within, "{expected}: {detect_ms}");
    }
}

#[test]
fn a_loss_pauses_the_survivors_and_their_evidence_makes_the_next_generation() {
    let (mut world, links) = World::training(3);
    world.commit(1..=4);
    world.actor(links[0]).under_way = Some(Step(5));
    world.kill(links[2]);
    assert_eq!(world.words(links[0])[..2], ["pause", "announce"]);
    let record = world.record();
    assert_eq!((record.resume, record.cause), (Step(4), Cause::Lost));
    let commit = record.commit.expect("of step 4");
    assert_eq!((commit.step, commit.generation, commit.hold), (Step(4), Generation(1), false));
    let began = world.events().into_iter().rev().find_map(|event| match event {
        EventKind::Generation { redone, at_step, under_protected, .. } => {
            Some((redone, at_step, under_protected.is_empty()))
        }
        _ => None,
    });
    assert_eq!(began, Some((true, Step(4), false)));
}

/// A commit that only one member has heard of is part of history. The others hold what it needs.
#[test]
fn the_greatest_commit_of_the_generation_is_the_resume_step() {
    let (mut world, links) = World::training(3);
    world.commit(1..=4);
    let record = world.record();
    let shards = |rank| record.owned_by(rank).into_iter().map(|(shard, _)| shard);
    for (link, rank) in links.iter().zip(0..) {
        let prepared = shards(everstep_transport::protocol::Rank(rank));
        world.actor(*link).prepared = prepared.map(|shard| (shard, Generation(1))).collect();
    }
    world.actor(links[1]).commit(5);
    world.kill(links[2]);
    assert_eq!((world.record().resume, world.cause()), (Step(5), Cause::Lost));
    assert_eq!(world.comings_and_goings().len(), 1, "nobody but the dead was lost");
}

#[test]
fn a_commit_of_an_older_generation_counts_for_nothing() {
    let (mut world, links) = World::training(3);
    world.commit(1..=4);
    world.kill(links[2]);
    world.actor(links[1]).commit = Some(commit(Generation(1), Step(9)));
    let third = world.relink(links[0]);
    world.beat_with(third, |heartbeat| heartbeat.promised = Generation(3));
    assert_eq!((world.generation(), world.record().resume), (Generation(3), Step(4)));
}

#[test]
fn a_pause_is_said_again_to_who_has_not_answered_and_then_it_is_done_without() {
    let (mut world, links) = World::training(3);
    world.commit(1..=2);
    world.actor(links[1]).mute = true;
    world.kill(links[2]);
    world.pass(1_950, &links[..2]);
    assert_eq!(world.generation(), Generation(1));
    let count = |words: Vec<&str>| words.iter().filter(|word| **word == "pause").count();
    assert_eq!(count(world.words(links[1])), 4);
    assert_eq!(count(world.words(links[0])), 1);
    world.pass(50, &links[..2]);
    // All shards of workers 2 and 3 went with them: the rest cannot go on from step 2.
    assert_eq!(world.generation(), Generation(1), "worker 2 lives, and alone holds some shards");
    world.actor(links[1]).mute = false;
    world.pass(500, &links[..2]);
    assert_eq!(world.members(), [world.id(links[0]), world.id(links[1])]);
}

#[test]
fn who_does_not_answer_in_time_is_left_out_told_so_and_comes_back_as_another() {
    let (mut world, links) = World::training(4);
    world.commit(1..=2);
    let (mute, dead) = (world.id(links[1]), world.id(links[3]));
    world.actor(links[1]).mute = true;
    world.kill(links[3]);
    world.pass(2_050, &links[..3]);
    assert_eq!(world.members(), [world.id(links[0]), world.id(links[2])]);
    assert_eq!(world.comings_and_goings(), [format!("lost {mute}"), format!("lost {dead}")]);
    assert_eq!(world.hear(links[1]).pop(), Some(Message::Evicted { worker: mute }));
    world.beat(links[1]);
    assert_eq!(world.hear(links[1]), [], "nothing that it says counts any more");
    world.say(links[1], Message::Hello { worker: None });
    world.say(links[1], Message::Register(registration(99)));
    assert_eq!(world.words(links[1])[..2], ["welcome", "registered"]);
}

/// A measurement of detection from outside has to take this time off.
#[test]
fn a_loss_says_how_long_the_survivors_were_waited_for_after_it_was_noticed() {
    let (mut world, links) = World::training(4);
    world.commit(1..=2);
    world.actor(links[1]).mute = true;
    world.kill(links[3]);
    world.pass(2_050, &links[..3]);
    let paused = |kind| match kind {
        EventKind::Lost { reason: LossReason::LinkClosed(_), pause_ms, .. } => Some(pause_ms),
        _ => None,
    };
    let paused: Vec<_> = world.events().into_iter().filter_map(paused).collect();
    assert!(matches!(paused[..], [1_950..=2_050]), "{paused:?}");
}

#[test]
fn a_suspect_that_answers_before_the_proposal_is_taken_back() {
    let (mut world, links) = World::training(3);
    world.commit(1..=2);
    world.actor(links[0]).mute = true;
    world.cut(links[2]);
    let back = world.relink(links[2]);
    world.actor(links[0]).mute = false;
    world.pass(500, &[links[0], links[1], back]);
    assert_eq!((world.generation(), world.members().len()), (Generation(2), 3));
    assert_eq!(world.comings_and_goings(), [""; 0]);
    assert_eq!(world.cause(), Cause::Lost, "of a connection");
}

#[test]
fn a_loss_while_a_generation_is_proposed_makes_another() {
    let (mut world, links) = World::training(4);
    world.commit(1..=2);
    world.holds_back = true;
    world.kill(links[3]);
    assert_eq!(world.log.len(), 1);
    world.kill(links[1]);
    assert_eq!(world.log.len(), 1, "one change at a time");
    world.catch_up();
    assert_eq!((world.generation(), world.members().len()), (Generation(3), 2));
}

#[test]
fn a_worker_that_is_known_to_be_dead_is_not_waited_for() {
    let (mut world, links) = World::training(4);
    world.commit(1..=2);
    world.actor(links[1]).mute = true;
    world.kill(links[3]);
    assert_eq!(world.generation(), Generation(1));
    world.kill(links[1]);
    assert_eq!((world.generation(), world.members().len()), (Generation(2), 2));
}

#[test]
fn an_old_or_foreign_status_changes_nothing() {
    let (mut world, links) = World::training(3);
    world.actor(links[1]).mute = true;
    let status = |term, number| Message::Status(Actor::default().status(term, number));
    world.say(links[1], status(Term(1), Generation(2)));
    world.kill(links[2]);
    let before = world.core.ignored();
    world.say(links[1], status(Term(1), Generation(1)));
    world.say(links[1], status(Term(2), Generation(2)));
    world.say(links[1], status(Term(1), Generation(3)));
    assert_eq!((world.core.ignored(), world.generation()), (before + 3, Generation(1)));
    world.say(links[1], status(Term(1), Generation(2)));
    assert_eq!(world.generation(), Generation(2));
}

/// Invariant I8.
#[test]
fn a_coordinator_that_was_late_itself_blames_nobody() {
    let (mut world, links) = World::training(2);
    world.now = world.now + Duration::from_secs(60);
    world.give(CoreInput::Tick);
    world.pass(5_000, &links);
    assert_eq!((world.generation(), world.running()), (Generation(1), true));
}

#[test]
fn a_broken_history_ends_the_run_if_a_member_says_so() {
    let (mut world, links) = World::training(2);
    let joiner = world.worker("worker-9");
    let failed = || Message::Failed { at_fault: None, fatal: true, reason: "it diverged".into() };
    world.say(joiner, failed());
    assert!(world.running(), "it is no member");
    world.say(links[1], failed());
    let expected = "worker 2 (id 4) cannot go on, nor may any other worker: it diverged";
    assert_eq!(world.failure(), expected);
    assert_eq!(world.hear(links[0]).pop(), Some(Message::Dismiss));
}

/// The worker's peers may tell that it is gone before it tells why.
#[test]
fn a_broken_history_ends_the_run_though_who_says_so_is_a_member_no_more() {
    let (mut world, links) = World::training(3);
    world.commit(1..=2);
    let name = NodeName::parse("worker-2").expect("a valid name");
    world.say(world.operator, Message::Exited { name, how: ProcessExit::KILLED });
    assert_eq!((world.generation(), world.running()), (Generation(2), true));
    let reason = "it diverged".to_string();
    world.say(links[1], Message::Failed { at_fault: None, fatal: true, reason });
    assert!(world.failure().ends_with("cannot go on, nor may any other worker: it diverged"));
}

/// It was cut off while the others lost it, and says what it has found when it is back.
#[test]
fn a_broken_history_ends_the_run_though_who_says_so_was_cut_off() {
    let failed = || Message::Failed { at_fault: None, fatal: true, reason: "it diverged".into() };
    let (mut world, links) = World::training(3);
    world.commit(1..=2);
    let id = world.id(links[2]);
    world.cut(links[2]);
    world.pass(2_250, &links[..2]);
    assert_eq!((world.generation(), world.running()), (Generation(2), true));
    let stranger = world.connect(Role::Worker, "worker-9");
    world.say(stranger, Message::Hello { worker: Some(id) });
    assert_eq!(world.hear(stranger), [Message::Evicted { worker: id }]);
    world.say(stranger, failed());
    assert_eq!(world.hear(stranger), [Message::Dismiss], "it is not that worker");
    assert!(world.running());
    let back = world.relink(links[2]);
    assert_eq!(world.hear(back), [Message::Evicted { worker: id }]);
    world.say(back, failed());
    assert!(world.failure().ends_with("cannot go on, nor may any other worker: it diverged"));
    assert_eq!(world.hear(back), [Message::Dismiss], "it may end");
}

#[test]
fn the_last_worker_that_fails_ends_the_run_with_its_reason() {
    let (mut world, links) = World::training(2);
    let failed =
        |reason: &str| Message::Failed { at_fault: None, fatal: false, reason: reason.into() };
    world.say(links[0], failed("the disk is full"));
    assert!(world.running());
    world.say(links[1], failed("the other disk is full"));
    let expected = "worker 2 (id 4) was lost: it failed: the other disk is full";
    assert_eq!(world.failure(), expected);
}

#[test]
fn when_everyone_is_dead_the_run_waits_for_whoever_comes() {
    let (mut world, links) = World::training(2);
    world.commit(1..=3);
    let ids = [world.id(links[0]), world.id(links[1])];
    world.kill(links[0]);
    world.kill(links[1]);
    world.pass(60_000, &[]);
    assert!(world.running());
    assert_eq!(world.watch(0, 0).waiting.map(|waiting| waiting.members), Some(0));
    let new = world.worker("worker-9");
    assert_eq!((world.members(), world.cause()), (vec![world.id(new)], Cause::Rollback));
    let gone = [format!("lost {}", ids[0]), format!("lost {}", ids[1])];
    assert_eq!(world.comings_and_goings()[..2], gone);
}

/// No worker is left to make a generation of.
#[test]
fn i13_deaths_are_told_before_the_next_generation_and_once() {
    let (mut world, links) = World::training(2);
    world.commit(1..=5);
    let ids = [world.id(links[0]), world.id(links[1])];
    world.actor(links[1]).mute = true;
    links.iter().for_each(|link| world.kill(*link));
    world.pass(100, &[]);
    let lost = ids.map(|id| format!("lost {id}"));
    assert_eq!(world.comings_and_goings(), lost);
    let gone = |view: &WorkerView| view.state == WorkerState::Lost;
    assert!(world.seen().iter().all(gone));
    world.pass(5_000, &[]);
    world.restart();
    let joiner = world.worker("worker-9");
    world.pass(3_000, &[joiner]);
    let joined = [format!("joined {}", world.id(joiner)), "back from 0 to 0".into()];
    let expected: Vec<String> = lost.into_iter().chain(joined).collect();
    assert_eq!(world.comings_and_goings(), expected);
}

/// For example, its launcher told of the end of an earlier process under the same name.
#[test]
fn a_member_that_was_taken_for_dead_and_answers_is_a_member_anew() {
    let (mut world, links) = World::training(2);
    world.commit(1..=5);
    let ids = [world.id(links[0]), world.id(links[1])];
    links.iter().for_each(|link| world.actor(*link).mute = true);
    for link in &links {
        let name = NodeName::parse(&world.workers[link].node).expect("a valid name");
        world.say(world.operator, Message::Exited { name, how: ProcessExit::KILLED });
    }
    world.pass(200, &[]);
    world.actor(links[0]).mute = false;
    let back = world.relink(links[0]);
    world.pass(5_000, &[back]);
    assert_eq!((world.members(), world.record().resume), (vec![ids[0]], Step(5)));
    let [first, second] = ids;
    let expected = [format!("lost {first}"), format!("lost {second}"), format!("joined {first}")];
    assert_eq!(world.comings_and_goings(), expected);
    world.kill(back);
    world.pass(100, &[]);
    assert_eq!(world.comings_and_goings().pop(), Some(format!("lost {first}")), "now it is");
}

/// Invariant I21: the file of a directory proves an end that no link and no launcher tells of.
#[test]
fn i21_a_worker_that_has_the_locks_of_others_proves_their_ends() {
    let (mut world, links) = World::training_as(RunSpec { copies: 1, ..run_of(2) });
    world.commit(1..=5);
    world.cut(links[1]);
    world.pass(60_000, &links[..1]);
    let again = world.worker("worker-9");
    let (stranger, lost) = (99_999, registration(links[1].0).incarnation);
    world.say(again, Message::Predecessors { ended: vec![stranger] });
    world.pass(1_000, &[links[0], again]);
    assert_eq!(world.generation(), Generation(1), "silence is no death");
    world.say(again, Message::Predecessors { ended: vec![stranger, lost] });
    world.pass(1_000, &[links[0], again]);
    assert_eq!((world.record().cause, world.record().resume), (Cause::Rollback, Step(0)));
    assert_eq!(world.members(), [world.id(links[0]), world.id(again)]);
}

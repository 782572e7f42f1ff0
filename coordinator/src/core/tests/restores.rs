//! Runs that go back to a checkpoint.

use everstep_transport::protocol::CheckpointId;

use super::checkpoints::{complete, finish_all, id, listed, orders, save, saving, settle, write};
use super::joining::holds;
use super::*;

/// A run of so many workers, with one copy of each shard, that has listed these steps. The step
/// leader is the first.
pub(super) fn listing(workers: u32, steps: &[u64]) -> (World, Vec<LinkId>) {
    let (mut world, links) = World::training_as(RunSpec { copies: 1, ..saving(workers) });
    let mut before = 0;
    for step in steps {
        settle(&mut world, links[0], before + 1..=*step);
        complete(&mut world, &links, id(*step, 1));
        before = *step;
    }
    assert_eq!(listed(&world), steps);
    (world, links)
}

/// The record's cause, resume step, and the generation of its commit.
fn began(world: &World) -> (Cause, u64, Option<u64>) {
    let record = world.record();
    let made = record.commit.as_ref().map(|commit| commit.generation.0);
    (record.cause, record.resume.0, made)
}

pub(super) fn backs(world: &World) -> Vec<String> {
    let all = world.comings_and_goings().into_iter();
    all.filter(|event| event.starts_with("back")).collect()
}

fn damage(world: &mut World, link: LinkId, id: CheckpointId) {
    let reason = "step-000010/g0001-w3.safetensors, parameter shard 4: a bit flipped".into();
    world.say(link, Message::Damaged { id, reason });
}

/// The worker has read its shards.
fn restore(world: &mut World, link: LinkId) {
    let record = world.record();
    let made = record.commit.as_ref().expect("a checkpoint").generation;
    let rank = record.rank(world.id(link)).expect("a member");
    let owned = record.owned_by(rank).into_iter();
    let versions = owned.map(|(shard, _)| (shard, (record.resume, made))).collect();
    world.actor(link).versions = versions;
}

/// Each settled step has one line, before and after the rollback.
#[test]
fn i13_a_run_that_lost_a_shard_goes_back_to_its_newest_checkpoint() {
    let (mut world, links) = listing(3, &[5, 10]);
    settle(&mut world, links[0], 11..=13);
    let joiner = world.worker("worker-9");
    world.kill(links[1]);
    world.pass(500, &[links[0], links[2], joiner]);
    assert_eq!(began(&world), (Cause::Rollback, 10, Some(1)));
    assert_eq!(backs(&world), ["back from 13 to 10"]);
    let members = [world.id(links[0]), world.id(links[2]), world.id(joiner)];
    assert_eq!(world.members(), members, "every worker can read a checkpoint");
    assert_eq!(world.protection(), 1);
    assert_eq!((world.line_file.len(), listed(&world)), (10, vec![5, 10]));
    settle(&mut world, links[0], 11..=15);
    let expected = [lines(Generation(1), 1..=10), lines(Generation(2), 11..=15)].concat();
    assert_eq!(world.line_file, expected);
    complete(&mut world, &[links[0], links[2], joiner], id(15, 2));
    assert_eq!(listed(&world), [5, 10, 15]);
}

#[test]
fn members_tell_how_far_they_have_read_the_checkpoint_that_they_restore() {
    let (mut world, links) = listing(3, &[5]);
    settle(&mut world, links[0], 6..=7);
    links.iter().for_each(|link| world.actor(*link).restores_late = true);
    world.kill(links[1]);
    assert_eq!(began(&world), (Cause::Rollback, 5, Some(1)));
    let restores = |world: &World| world.core.cluster_view(world.now).restores;
    let start = restores(&world).expect("they restore");
    assert_eq!((start.step, start.read_bytes), (Step(5), 0), "they have told nothing");
    assert!(start.total_bytes > 0);
    let waits = |world: &mut World| -> Vec<String> {
        world.seen().into_iter().filter_map(|view| view.waits_for).collect()
    };
    let words = waits(&mut world);
    assert!(words.len() == 2 && words[0].contains("of the checkpoint of step 5"), "{words:?}");
    let member = world.id(links[0]);
    let total = world.core.restore_of(member).expect("it restores").total_bytes;
    for unread in [total / 2, 0] {
        world.actor(links[0]).unread = unread;
        world.beat(links[0]);
        assert_eq!(restores(&world).map(|it| it.read_bytes), Some(total - unread));
    }
    assert_eq!(waits(&mut world).len(), 1, "it has read all, and the other one has not");
    [links[0], links[2]].iter().for_each(|link| restore(&mut world, *link));
    settle(&mut world, links[0], 6..=6);
    assert_eq!((restores(&world), waits(&mut world)), (None, vec![]));
}

/// It is to own more shards, since another member leaves. No step is under way that could outrun
/// it.
#[test]
fn steps_are_not_held_back_for_a_member_that_reads_a_checkpoint() {
    let (mut world, links) = listing(3, &[5]);
    settle(&mut world, links[0], 6..=7);
    links.iter().for_each(|link| world.actor(*link).restores_late = true);
    world.kill(links[1]);
    world.say(links[2], Message::Leave);
    world.actor(links[0]).behind = 1_000_000_000;
    let members = [links[0], links[2]];
    world.pass(1_000, &members);
    assert!(world.workers[&links[0]].shard_syncs.is_some(), "it is fed");
    world.pass(9_000, &members);
    assert_eq!(holds(&mut world, links[0]), 0);
}

#[test]
fn a_run_goes_back_to_the_seed_if_it_has_no_checkpoint() {
    let (mut world, links) = listing(2, &[]);
    settle(&mut world, links[0], 1..=4);
    world.kill(links[1]);
    assert_eq!(began(&world), (Cause::Rollback, 0, None));
}

/// Invariant I21.
#[test]
fn i21_a_silent_owner_is_waited_for_though_there_is_a_checkpoint() {
    let (mut world, links) = listing(2, &[5]);
    settle(&mut world, links[0], 6..=7);
    world.actor(links[1]).mute = true;
    world.pass(60_000, &links[..1]);
    assert_eq!(world.generation(), Generation(1));
    world.actor(links[1]).mute = false;
    world.beat(links[1]);
    world.pass(500, &links);
    assert_eq!((world.record().resume, backs(&world)), (Step(7), vec![]));
}

#[test]
fn i21_a_silent_owner_is_given_up_for_a_checkpoint_if_the_run_says_so() {
    let run = RunSpec { copies: 1, give_up_after_ms: Some(10_000), ..saving(2) };
    let (mut world, links) = World::training_as(run);
    settle(&mut world, links[0], 1..=5);
    complete(&mut world, &links, id(5, 1));
    settle(&mut world, links[0], 6..=7);
    world.actor(links[1]).mute = true;
    world.pass(20_000, &links[..1]);
    assert_eq!(began(&world), (Cause::Rollback, 5, Some(1)));
}

#[test]
fn a_damaged_checkpoint_is_followed_by_an_older_one_and_at_last_by_an_operators_word() {
    let (mut world, links) = listing(3, &[5, 10]);
    settle(&mut world, links[0], 11..=12);
    links.iter().for_each(|link| world.actor(*link).restores_late = true);
    world.kill(links[1]);
    let living = [links[0], links[2]];
    assert_eq!(began(&world), (Cause::Rollback, 10, Some(1)));
    damage(&mut world, links[2], id(10, 1));
    world.pass(100, &living);
    assert_eq!(began(&world), (Cause::Rollback, 5, Some(1)));
    let told =
        |kind: &EventKind| matches!(kind, EventKind::CheckpointDamaged { step: Step(10), .. });
    assert_eq!(world.events().iter().filter(|kind| told(kind)).count(), 1);
    assert_eq!(listed(&world), [5], "step 10 is undone");
    let mut reasons = world.events().into_iter().filter_map(|kind| match kind {
        EventKind::Rollback { reason, .. } => Some(reason.to_string()),
        _ => None,
    });
    assert_eq!(reasons.next_back().expect("two"), "the checkpoint of step 10 is damaged");
    damage(&mut world, links[0], id(5, 1));
    world.pass(60_000, &living);
    assert_eq!(began(&world), (Cause::Rollback, 5, Some(1)), "nothing begins anew by itself");
    assert_eq!(listed(&world), [5], "it may be mended");
    let last = |kind: &EventKind| {
        matches!(kind, EventKind::CheckpointDamaged { step: Step(5), is_last: true, .. })
    };
    assert!(world.events().iter().any(last));
    let (state, words) = crate::run_status::run_status(&world.core.cluster_view(world.now));
    assert!(state == "waiting" && words.contains("rollback --step 0"), "{state}: {words}");
    let (run, generation) = (world.core.state().run_id(), Generation(0));
    world.request(1, OperatorCommand::Rollback { run, step: Step(0), generation });
    world.pass(100, &living);
    assert_eq!(began(&world), (Cause::Rollback, 0, None));
    assert_eq!(backs(&world), ["back from 12 to 10", "back from 10 to 5", "back from 5 to 0"]);
    assert!(world.line_file.is_empty());
}

/// Other members may have read what they need of a checkpoint that one finds damaged: the run goes
/// on only if all shards are there.
#[test]
fn damage_that_nobody_needs_to_read_costs_nothing() {
    let (mut world, links) = listing(2, &[5]);
    settle(&mut world, links[0], 6..=7);
    damage(&mut world, links[0], id(5, 1));
    world.pass(200, &links);
    assert_eq!(world.generation(), Generation(1), "no member restores it");
    assert_eq!(world.core.cluster_view(world.now).checkpoint, Step(0));
    let before = world.core.ignored();
    damage(&mut world, links[0], id(5, 2));
    assert_eq!(world.core.ignored(), before + 1);
}

#[test]
fn a_leader_that_dies_with_the_word_of_damage_leaves_it_to_the_next() {
    let (mut world, links) = listing(2, &[5, 10]);
    settle(&mut world, links[0], 11..=12);
    world.actor(links[0]).restores_late = true;
    world.kill(links[1]);
    assert_eq!(began(&world), (Cause::Rollback, 10, Some(1)));
    world.holds_back = true;
    damage(&mut world, links[0], id(10, 1));
    // The entry is agreed when no coordinator leads.
    let entry = world.log.pop_front().expect("it is proposed");
    world.give(CoreInput::SteppedDown);
    world.apply(entry);
    world.holds_back = false;
    world.restart();
    let link = world.relink(links[0]);
    world.pass(500, &[link]);
    assert_eq!(began(&world), (Cause::Rollback, 5, Some(1)));
}

/// Nothing is lost with a member that has not read its shards yet, nor with one that has.
#[test]
fn a_member_that_is_lost_while_it_restores_is_followed_by_the_same_checkpoint() {
    for dead in [true, false] {
        let (mut world, links) = listing(3, &[5]);
        settle(&mut world, links[0], 6..=7);
        links.iter().for_each(|link| world.actor(*link).restores_late = true);
        world.kill(links[1]);
        assert_eq!(began(&world), (Cause::Rollback, 5, Some(1)));
        restore(&mut world, links[0]);
        match dead {
            true => world.kill(links[2]),
            false => world.actor(links[2]).mute = true,
        }
        world.pass(6_000, &links[..1]);
        assert_eq!(began(&world), (Cause::Rollback, 5, Some(1)), "dead: {dead}");
        assert_eq!(world.members(), [world.id(links[0])]);
        assert_eq!(backs(&world), ["back from 7 to 5", "back from 5 to 5"]);
        assert_eq!(world.line_file.len(), 5);
    }
}

#[test]
fn a_member_that_is_lost_when_all_shards_are_read_costs_no_rollback() {
    let (mut world, links) = World::training_as(saving(4));
    settle(&mut world, links[0], 1..=5);
    complete(&mut world, &links, id(5, 1));
    world.kill(links[1]);
    world.kill(links[2]);
    world.pass(500, &[links[0], links[3]]);
    assert_eq!(began(&world), (Cause::Rollback, 5, Some(1)));
    world.kill(links[3]);
    world.pass(500, &links[..1]);
    assert_eq!(began(&world), (Cause::Lost, 5, Some(1)));
}

#[test]
fn an_operator_goes_back_to_a_step_of_her_choice() {
    let (mut world, links) = listing(2, &[5, 10]);
    settle(&mut world, links[0], 11..=12);
    let (run, generation) = (world.core.state().run_id(), Generation(0));
    let ask = |step| OperatorCommand::Rollback { run, step: Step(step), generation };
    world.hear(world.operator);
    world.request(1, ask(7));
    let none = Rejection::NoCheckpoint(Step(7));
    assert_eq!(world.hear(world.operator), [answer(1, Some(none))]);
    world.request(2, ask(5));
    world.pass(100, &links);
    assert_eq!(began(&world), (Cause::Rollback, 5, Some(1)));
    assert_eq!((backs(&world), listed(&world)), (vec!["back from 12 to 5".into()], vec![5]));
    let generation = world.generation();
    world.request(3, OperatorCommand::Rollback { run, step: Step(0), generation });
    world.pass(100, &links);
    assert_eq!((began(&world), listed(&world)), ((Cause::Rollback, 0, None), vec![]));
}

/// Found by a simulation: a worker that was no member had a link and was silent. One generation
/// after the other began, none of them a rollback.
#[test]
fn i10_an_operator_goes_back_whether_a_worker_beside_the_members_answers_or_not() {
    for silent_for in (0..=3_000).step_by(100) {
        let (mut world, links) = listing(2, &[5, 10]);
        let other = world.worker("worker-3");
        world.actor(other).mute = true;
        world.pass(silent_for, &links);
        let (run, before) = (world.core.state().run_id(), world.generation());
        let generation = Generation(0);
        world.request(1, OperatorCommand::Rollback { run, step: Step(5), generation });
        world.pass(3_000, &links);
        assert_eq!(backs(&world), ["back from 10 to 5"], "silent for {silent_for} ms");
        let generations = world.generation().0 - before.0;
        assert!(generations <= 3, "{generations} after {silent_for} ms");
    }
}

#[test]
fn an_operators_choice_that_is_damaged_is_followed_by_an_older_one() {
    let (mut world, links) = listing(2, &[5, 10]);
    settle(&mut world, links[0], 11..=12);
    let (run, generation) = (world.core.state().run_id(), Generation(0));
    world.holds_back = true;
    damage(&mut world, links[0], id(10, 1));
    world.request(1, OperatorCommand::Rollback { run, step: Step(10), generation });
    world.log.swap(0, 1);
    world.catch_up();
    world.pass(100, &links);
    assert_eq!(began(&world), (Cause::Rollback, 5, Some(1)));
}

/// Found by a simulation: the disk of the leader stalled before the last checkpoint was listed. The
/// run was complete without the lines of the steps that a rollback behind it had undone. Now the
/// log refuses that rollback, and the next one goes back to the checkpoint that was listed before.
#[test]
fn i13_a_rollback_on_its_way_into_the_log_keeps_a_run_from_its_end() {
    let (mut world, links) = listing(3, &[15]);
    settle(&mut world, links[0], 16..=20);
    links.iter().for_each(|link| save(&mut world, *link, id(20, 1)));
    finish_all(&mut world, &links);
    world.holds_back = true;
    write(&mut world, links[0], id(20, 1), vec![]);
    world.kill(links[2]);
    world.catch_up();
    world.pass(100, &links[..2]);
    assert_eq!((listed(&world), backs(&world)), (vec![15, 20], vec!["back from 20 to 20".into()]));
    assert_eq!(began(&world), (Cause::Rollback, 20, Some(1)));
    assert!(world.running());
}

/// The checkpoint of an undone step is in the way of the new one: it is to be deleted.
#[test]
fn a_step_that_is_done_again_is_saved_again() {
    let (mut world, links) = listing(2, &[5, 10]);
    let (run, generation) = (world.core.state().run_id(), Generation(0));
    world.request(1, OperatorCommand::Rollback { run, step: Step(5), generation });
    world.pass(100, &links);
    save(&mut world, links[0], id(10, 1));
    settle(&mut world, links[0], 6..=10);
    world.hear(links[0]);
    links.iter().for_each(|link| save(&mut world, *link, id(10, 2)));
    assert_eq!(orders(&mut world, links[0]), [(10, vec![id(10, 1)])]);
    write(&mut world, links[0], id(10, 2), vec![id(10, 1)]);
    assert_eq!(listed(&world), [5, 10]);
    assert_eq!(world.core.state().checkpoints().to_delete().count(), 0);
}

/// The log lists a checkpoint between the plan and its generation, and drops the one of the plan.
#[test]
fn a_checkpoint_that_is_dropped_meanwhile_is_not_gone_back_to() {
    let mut run = RunSpec { copies: 1, ..saving(2) };
    run.checkpoint.as_mut().expect("it saves").keep = 1;
    let (mut world, links) = World::training_as(run);
    settle(&mut world, links[0], 1..=5);
    complete(&mut world, &links, id(5, 1));
    settle(&mut world, links[0], 6..=10);
    links.iter().for_each(|link| save(&mut world, *link, id(10, 1)));
    world.holds_back = true;
    write(&mut world, links[0], id(10, 1), vec![]);
    world.kill(links[1]);
    world.catch_up();
    world.pass(100, &links[..1]);
    assert_eq!((began(&world), listed(&world)), ((Cause::Rollback, 10, Some(1)), vec![10]));
}

#[test]
fn a_store_that_is_away_holds_a_restore_up_and_the_status_says_so() {
    let (mut world, links) = listing(2, &[5]);
    settle(&mut world, links[0], 6..=7);
    world.actor(links[0]).restores_late = true;
    world.kill(links[1]);
    assert_eq!(began(&world), (Cause::Rollback, 5, Some(1)));
    world.beat_with(links[0], |it| it.store_error = Some("no route".into()));
    world.now = world.now + Duration::from_secs(12);
    let view = world.core.cluster_view(world.now);
    let words = "waiting for 12 s: worker 1 (id 3) cannot use the store of the checkpoints: no \
                 route";
    assert_eq!(crate::run_status::run_status(&view), ("waiting", words.into()));
    assert_eq!(view.waits()[2], ("store", Some(Duration::from_secs(12))));
}

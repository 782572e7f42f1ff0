//! Checkpoints that are not written: which of them fail and which are skipped, and what follows.

use everstep_transport::protocol::reason::UnsavedPart;
use everstep_transport::protocol::{CheckpointId, CheckpointSpec, OnFailure};

use super::checkpoints::{complete, failures, finish_all, id, listed, orders, save, saving};
use super::checkpoints::{settle, unsaved, write};
use super::*;
use crate::history::HistorySummary;
use crate::state::CheckpointStanding;

/// As [`saving`] with two workers, each step of which is due.
fn saving_each(on_failure: OnFailure) -> RunSpec {
    let run = saving(2);
    let spec = run.checkpoint.clone().expect("it saves");
    RunSpec { checkpoint: Some(CheckpointSpec { every: 1, on_failure, ..spec }), ..run }
}

fn skip(id: CheckpointId, earlier: u64) -> Message {
    Message::Unsaved { id, reason: UnsavedPart::Skipped { earlier: Step(earlier) } }
}

/// What the events tell of skipped checkpoints: the steps of single ones with the earlier step, and
/// of several the first, the last and the count.
fn skips(world: &World) -> Vec<Vec<u64>> {
    let told = |kind| match kind {
        EventKind::CheckpointSkipped { step, earlier } => Some(vec![step.0, earlier.0]),
        EventKind::CheckpointsSkipped { from, to, count } => Some(vec![from.0, to.0, count]),
        _ => None,
    };
    world.events().into_iter().filter_map(told).collect()
}

/// What the metrics count as failures.
fn counted(world: &World) -> u64 {
    let mut history = HistorySummary::default();
    for event in world.core.state().events() {
        history.event(event);
    }
    history.tally().failed_checkpoints
}

/// Step 1 is being written by the second worker while `last` steps go by, and is then listed.
fn skipped_up_to(last: u64, on_failure: OnFailure) -> (World, Vec<LinkId>) {
    let (mut world, links) = World::training_as(saving_each(on_failure));
    settle(&mut world, links[0], 1..=last);
    for step in 2..=last {
        save(&mut world, links[0], id(step, 1));
        world.say(links[1], skip(id(step, 1), 1));
        save(&mut world, links[0], id(step, 1));
    }
    complete(&mut world, &links, id(1, 1));
    (world, links)
}

#[test]
fn a_skipped_checkpoint_is_no_failure_and_pauses_no_run() {
    for on_failure in [OnFailure::Continue, OnFailure::Pause] {
        let (mut world, links) = skipped_up_to(7, on_failure);
        assert_eq!((skips(&world), failures(&world)), (vec![vec![2, 1]], vec![]));
        assert_eq!(world.watch(7, 0).paused, None);
        assert!(world.core.figures().trouble.is_none());
        settle(&mut world, links[0], 8..=8);
        complete(&mut world, &links, id(8, 1));
        assert_eq!((listed(&world), counted(&world)), (vec![1, 8], 0));
    }
}

/// Steps take less time than the manifest. It is written nevertheless, and then a newer one.
#[test]
fn parts_that_come_faster_than_manifests_are_skipped_and_the_manifest_under_way_is_listed() {
    for on_failure in [OnFailure::Continue, OnFailure::Pause] {
        let (mut world, links) = World::training_as(saving_each(on_failure));
        settle(&mut world, links[0], 1..=12);
        for step in 1..=12 {
            links.iter().for_each(|link| save(&mut world, *link, id(step, 1)));
        }
        assert_eq!(orders(&mut world, links[0]), [(1, vec![])], "one after the other");
        write(&mut world, links[0], id(1, 1), vec![]);
        assert_eq!((listed(&world), failures(&world)), (vec![1], vec![]));
        assert_eq!((skips(&world), counted(&world)), (vec![vec![2, 1]], 0));
        world.pass(50, &links);
        assert_eq!(orders(&mut world, links[0]), [(10, vec![])], "the newest ones are kept");
        write(&mut world, links[0], id(10, 1), vec![]);
        assert_eq!((listed(&world), world.watch(12, 0).paused), (vec![1, 10], None));
    }
}

/// Parts of one worker alone come: another one is about to lose its disk.
#[test]
fn the_oldest_checkpoint_that_lacks_parts_fails_when_too_many_do() {
    let (mut world, links) = World::training_as(saving_each(OnFailure::Continue));
    settle(&mut world, links[0], 1..=5);
    (1..=5).for_each(|step| save(&mut world, links[0], id(step, 1)));
    assert_eq!(failures(&world).iter().map(|it| it.0).collect::<Vec<_>>(), [1]);
    links.iter().for_each(|link| save(&mut world, *link, id(2, 1)));
    assert_eq!(orders(&mut world, links[0]), [(2, vec![])]);
}

/// The first member refuses to write a manifest, and the second one dies with the order.
#[test]
fn a_manifest_that_is_refused_by_all_that_are_left_has_failed() {
    let (mut world, links) = World::training_as(saving(2));
    settle(&mut world, links[0], 1..=5);
    links.iter().for_each(|link| save(&mut world, *link, id(5, 1)));
    world.say(links[0], unsaved(id(5, 1)));
    assert_eq!(orders(&mut world, links[1]).len(), 1);
    world.kill(links[1]);
    world.pass(1_000, &links[..1]);
    assert_eq!(world.members(), [world.id(links[0])]);
    assert_eq!(failures(&world), [(5, "worker 1 (id 3): no space left".into())]);
    settle(&mut world, links[0], 6..=10);
    complete(&mut world, &links[..1], id(10, 2));
    assert_eq!(listed(&world), [10]);
}

#[test]
fn checkpoints_that_are_skipped_one_after_the_other_are_told_of_once_and_when_none_is_any_more() {
    let (mut world, links) = skipped_up_to(4, OnFailure::Continue);
    settle(&mut world, links[0], 5..=5);
    complete(&mut world, &links, id(5, 1));
    settle(&mut world, links[0], 6..=9);
    for step in 6..=8 {
        world.say(links[0], skip(id(step, 1), 5));
    }
    complete(&mut world, &links, id(9, 1));
    assert_eq!(skips(&world), [[2, 1]], "it goes on");
    settle(&mut world, links[0], 10..=10);
    complete(&mut world, &links, id(10, 1));
    assert_eq!(skips(&world), [vec![2, 1], vec![2, 8, 6]]);
    settle(&mut world, links[0], 11..=12);
    world.say(links[0], skip(id(11, 1), 10));
    complete(&mut world, &links, id(12, 1));
    settle(&mut world, links[0], 13..=13);
    complete(&mut world, &links, id(13, 1));
    assert_eq!(skips(&world).split_off(2), [[11, 10]], "it was only one");
}

#[test]
fn the_last_checkpoint_tells_of_those_that_were_skipped_before() {
    let (mut world, links) = skipped_up_to(19, OnFailure::Continue);
    settle(&mut world, links[0], 20..=20);
    complete(&mut world, &links, id(20, 1));
    assert_eq!(skips(&world), [vec![2, 1], vec![2, 19, 18]]);
}

#[test]
fn failures_count_without_the_checkpoints_that_were_skipped_between_them() {
    let (mut world, links) = World::training_as(saving_each(OnFailure::Continue));
    settle(&mut world, links[0], 1..=7);
    for step in [1, 4, 5] {
        world.say(links[1], unsaved(id(step, 1)));
    }
    for step in [2, 3, 6] {
        world.say(links[0], skip(id(step, 1), 1));
        world.say(links[1], skip(id(step, 1), 1));
    }
    complete(&mut world, &links, id(7, 1));
    let resumed = EventKind::CheckpointsResumed { from: Step(1), to: Step(6), count: 3 };
    assert!(world.events().contains(&resumed), "{:?}", world.events());
    assert_eq!((failures(&world).len(), counted(&world)), (1, 3));
}

/// One worker still writes an earlier part, and the store fails the other one.
#[test]
fn a_checkpoint_that_is_skipped_and_fails_has_failed() {
    let (mut world, links) = World::training_as(saving_each(OnFailure::Pause));
    settle(&mut world, links[0], 1..=2);
    world.say(links[0], skip(id(2, 1), 1));
    world.say(links[1], unsaved(id(2, 1)));
    assert_eq!((skips(&world), failures(&world).len()), (vec![vec![2, 1]], 1));
    assert!(world.watch(2, 0).paused.is_some());
}

/// The word may be of an earlier try: it answers no request, and ends no run.
#[test]
fn neither_the_last_checkpoint_nor_one_that_was_asked_for_is_skipped() {
    let (mut world, links) = World::training_as(saving(2));
    settle(&mut world, links[0], 1..=5);
    world.request(1, OperatorCommand::Checkpoint(world.core.state().run_id()));
    world.hold_all();
    world.say(links[1], skip(id(5, 1), 1));
    let standing = |world: &World, id| world.core.state().checkpoint_standing(id);
    assert_eq!(standing(&world, id(5, 1)), CheckpointStanding::Requested);
    complete(&mut world, &links, id(5, 1));
    settle(&mut world, links[0], 6..=20);
    finish_all(&mut world, &links);
    world.say(links[1], skip(id(20, 2), 15));
    world.pass(60_000, &links);
    assert!(world.running() && skips(&world).is_empty());
    complete(&mut world, &links, id(20, 2));
    assert_eq!((listed(&world), world.running()), (vec![5, 20], false));
}

#[test]
fn a_run_that_an_operator_has_resumed_pauses_at_the_next_failure() {
    let (mut world, links) = World::training_as(saving_each(OnFailure::Pause));
    settle(&mut world, links[0], 1..=1);
    for (step, generation) in [(1, 1), (2, 3)] {
        world.say(links[1], unsaved(id(step, generation)));
        world.hold_all();
        assert!(world.record().waiting, "step {step}");
        world.request(step, OperatorCommand::Resume(world.core.state().run_id()));
        assert!(!world.record().waiting);
        settle(&mut world, links[0], step + 1..=step + 1);
    }
    assert_eq!(failures(&world).len(), 2);
    complete(&mut world, &links, id(3, 5));
    assert_eq!(counted(&world), 2, "each had its event");
}

/// All members have refused to write its manifest, and its parts are durable all the same.
#[test]
fn the_next_leader_does_not_list_what_has_failed() {
    let (mut world, links) = World::training_as(saving(2));
    settle(&mut world, links[0], 1..=5);
    links.iter().for_each(|link| save(&mut world, *link, id(5, 1)));
    links.iter().for_each(|link| world.say(*link, unsaved(id(5, 1))));
    assert_eq!(failures(&world).len(), 1);
    world.restart();
    let links: Vec<LinkId> = links.into_iter().map(|link| world.relink(link)).collect();
    links.iter().for_each(|link| save(&mut world, *link, id(5, 1)));
    world.pass(1_000, &links);
    assert!(orders(&mut world, links[0]).is_empty());
}

/// The next leader has no part of it, and a later checkpoint is complete.
#[test]
fn a_checkpoint_that_was_asked_for_fails_when_a_later_one_is_complete() {
    let (mut world, links) = World::training_as(saving(2));
    settle(&mut world, links[0], 1..=3);
    world.request(1, OperatorCommand::Checkpoint(world.core.state().run_id()));
    world.hold_all();
    settle(&mut world, links[0], 4..=5);
    complete(&mut world, &links, id(5, 2));
    assert_eq!(listed(&world), [5]);
    assert_eq!(failures(&world), [(3, "no worker saved a part of it".into())]);
    assert_eq!(world.core.state().asked_checkpoint(), None);
}

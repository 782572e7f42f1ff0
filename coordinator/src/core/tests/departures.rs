//! All workers of a run are to leave: they save a checkpoint, and leave together.

use super::checkpoints::{complete, failures, id, listed, save, saving, settle, unsaved};
use super::*;

/// A run of two workers that are both to leave after step 7.
fn closing() -> (World, Vec<LinkId>) {
    let (mut world, links) = World::training_as(saving(2));
    settle(&mut world, links[0], 1..=7);
    links.iter().for_each(|link| world.say(*link, Message::Leave));
    world.hold_all();
    let record = world.record();
    assert_eq!((record.cause, record.resume, record.waiting), (Cause::Checkpoint, Step(7), true));
    assert_eq!(record.members.len(), 2, "none goes before the others");
    links.iter().for_each(|link| drop(world.hear(*link)));
    (world, links)
}

#[test]
fn the_last_workers_leave_when_a_checkpoint_has_what_they_hold() {
    let (mut world, links) = closing();
    world.pass(1_000, &links);
    assert!(links.iter().all(|link| !world.words(*link).contains(&"drain")));
    complete(&mut world, &links, id(7, 1));
    world.pass(100, &links);
    assert_eq!(listed(&world), [7]);
    let ids: Vec<WorkerId> = links.iter().map(|link| world.id(*link)).collect();
    for link in &links {
        assert!(world.words(*link).contains(&"drain"));
        world.kill(*link);
    }
    let left: Vec<String> = ids.iter().map(|id| format!("left {id}")).collect();
    assert_eq!(world.comings_and_goings(), left, "none is lost");
    let views = world.seen();
    assert!(views.iter().all(|view| view.state == WorkerState::Left), "{views:?}");
}

/// I13: the leader's disk may be lost as soon as the members are gone.
#[test]
fn i13_workers_leave_together_once_most_coordinators_have_their_lines() {
    for is_told in [true, false] {
        let (mut world, links) = World::training_as(saving(2));
        super::lines::found_two(&mut world);
        let other = world.connect(Role::Coordinator, "coordinator-2");
        settle(&mut world, links[0], 1..=7);
        world.hear(other);
        links.iter().for_each(|link| world.say(*link, Message::Leave));
        world.hold_all();
        let lineage = world.lineage;
        let durable = |reach| Message::Lines { lineage, reach: Step(reach), lines: vec![] };
        assert!(world.hear(other).contains(&durable(7)), "the file here is complete");
        complete(&mut world, &links, id(7, 1));
        world.say(other, durable(6));
        world.pass(9_000, &links);
        let drained = |world: &mut World| world.words(links[0]).contains(&"drain");
        assert!(!drained(&mut world), "the lines are on one disk");
        if is_told {
            world.say(other, durable(7));
            world.pass(100, &links);
        } else {
            world.pass(1_200, &links);
        }
        assert!(drained(&mut world), "{is_told}");
    }
}

/// The follower's file is complete before the run rests.
#[test]
fn i13_a_follower_says_that_its_lines_are_durable_as_soon_as_the_run_rests() {
    let (mut world, _) = closing();
    let rests = |command: &Command| match command {
        Command::Generation(change) => change.record.waiting,
        _ => false,
    };
    let entries = world.applied.clone().into_iter().zip(1..);
    world.core = Core::new(world.now, EPOCH_UNIX_MS);
    let mut other = None;
    for ((term, entry), index) in entries {
        if rests(&entry.command) {
            let link = *other.insert(world.connect(Role::Coordinator, "coordinator-2"));
            let said = world.hear(link);
            assert!(!said.iter().any(|it| matches!(it, Message::Lines { .. })), "{said:?}");
        }
        world.give(CoreInput::Applied { index, term, entry });
    }
    let durable = Message::Lines { lineage: world.lineage, reach: Step(7), lines: vec![] };
    assert!(world.hear(other.expect("the run rests")).contains(&durable));
}

#[test]
fn the_next_worker_goes_on_from_the_step_of_the_last_ones() {
    for restarts in [false, true] {
        let (mut world, links) = closing();
        complete(&mut world, &links, id(7, 1));
        world.pass(100, &links);
        let before: Vec<WorkerId> = links.iter().map(|link| world.id(*link)).collect();
        links.iter().for_each(|link| world.kill(*link));
        if restarts {
            world.restart();
        }
        world.pass(5_000, &[]);
        let next = world.worker("worker-9");
        world.pass(1_000, &[next]);
        let record = world.record();
        assert_eq!((record.cause, record.resume), (Cause::Rollback, Step(7)));
        assert!(!record.waiting);
        assert_eq!(world.members(), [world.id(next)]);
        let told = world.comings_and_goings();
        assert_eq!(told.last().map(String::as_str), Some("back from 7 to 7"));
        assert!(!told.iter().any(|word| word.starts_with("lost")), "{told:?}");
        assert!(before.iter().all(|id| world.core.state().has_left(*id)), "{told:?}");
    }
}

/// Found by a simulation: the next leader took them back.
#[test]
fn workers_that_did_not_hear_that_they_have_left_hear_it_from_the_next_leader() {
    let (mut world, links) = closing();
    complete(&mut world, &links, id(7, 1));
    world.pass(100, &links);
    world.restart();
    for link in links {
        let link = world.relink(link);
        assert_eq!(world.words(link), ["drain"]);
    }
    world.pass(100, &[]);
    assert_eq!(world.generation(), Generation(2), "they are no members any more");
}

#[test]
fn the_last_workers_save_again_until_the_store_takes_it() {
    let (mut world, links) = closing();
    world.say(links[1], unsaved(id(7, 1)));
    assert_eq!(failures(&world).len(), 1);
    world.pass(1_000, &links);
    assert_eq!(world.generation(), Generation(2));
    world.pass(2_000, &links);
    assert_eq!((world.generation(), world.cause()), (Generation(3), Cause::Checkpoint));
    links.iter().for_each(|link| drop(world.hear(*link)));
    complete(&mut world, &links, id(7, 1));
    world.pass(100, &links);
    assert!(world.words(links[0]).contains(&"drain"));
}

#[test]
fn a_worker_that_comes_meanwhile_takes_over() {
    let (mut world, links) = closing();
    let other = world.worker("worker-9");
    world.pass(100, &[links[0], links[1], other]);
    assert!(!world.record().waiting, "the members train on while the new one learns");
    world.sync_shards(other);
    world.pass(100, &[links[0], links[1], other]);
    world.hold_all();
    world.pass(100, &[links[0], links[1], other]);
    assert_eq!(world.members(), [world.id(other)]);
}

#[test]
fn a_worker_that_has_left_still_tells_of_its_part() {
    let (mut world, links) = World::training_as(saving(3));
    settle(&mut world, links[0], 1..=5);
    save(&mut world, links[0], id(5, 1));
    save(&mut world, links[1], id(5, 1));
    let late = super::checkpoints::part(&world, links[2], id(5, 1));
    world.say(links[2], Message::Leave);
    world.hold_all();
    assert_eq!(world.members().len(), 2);
    assert!(world.words(links[2]).contains(&"drain"));
    world.hear(links[0]);
    world.say(links[2], Message::Saved(late));
    assert_eq!(super::checkpoints::orders(&mut world, links[0]), [(5, vec![])]);
}

/// Found by a simulation: the shards of the late part were taken from it, so the other one did not
/// count, and the checkpoint was never whole.
#[test]
fn the_late_part_of_a_worker_that_has_left_keeps_no_newer_part_out() {
    let (mut world, links) = World::training_as(saving(2));
    settle(&mut world, links[0], 1..=5);
    let late = super::checkpoints::part(&world, links[0], id(5, 1));
    world.say(links[0], Message::Leave);
    world.hold_all();
    assert_eq!(world.members(), [world.id(links[1])]);
    world.hear(links[1]);
    world.say(links[0], Message::Saved(late));
    assert_eq!(super::checkpoints::orders(&mut world, links[1]), []);
    save(&mut world, links[1], id(5, 1));
    assert_eq!(super::checkpoints::orders(&mut world, links[1]), [(5, vec![])]);
}

/// Invariant I20. Found by a simulation: NaN does not equal itself.
#[test]
fn a_checkpoint_of_a_skipped_step_is_gone_back_to() {
    let (mut world, links) = World::training_as(saving(2));
    settle(&mut world, links[0], 1..=5);
    for link in &links {
        let actor = world.actor(*link);
        actor.commit.iter_mut().for_each(|commit| commit.norm = f64::NAN);
        let mut part = super::checkpoints::part(&world, *link, id(5, 1));
        part.commit.norm = f64::NAN;
        world.say(*link, Message::Saved(part));
    }
    let ordered = super::checkpoints::orders(&mut world, links[0]);
    assert_eq!(ordered.len(), 1, "the parts agree");
    super::checkpoints::write(&mut world, links[0], id(5, 1), vec![]);
    links.iter().for_each(|link| world.kill(*link));
    let next = world.worker("worker-9");
    world.pass(1_000, &[next]);
    let record = world.record();
    assert_eq!((record.cause, record.resume), (Cause::Rollback, Step(5)));
}

//! Runs that go on from what a store has, in a new cluster.

use everstep_transport::protocol::{CheckpointId, ListedCheckpoint, RunOrigin};

use super::checkpoints::{complete, id, listed, orders, save, saving, settle, write};
use super::*;

/// A checkpoint of a cluster that is gone.
fn stored(step: u64, generation: u64) -> ListedCheckpoint {
    let commit = Commit { hold: false, ..commit(Generation(generation), Step(step)) };
    ListedCheckpoint { commit, bytes: 900, write_ms: 0, state_hash: [8; 32], damage: None }
}

/// A store with steps 5 and 10, of generations 2 and 4, and a part of step 15.
fn origin() -> RunOrigin {
    let checkpoints = vec![stored(5, 2), stored(10, 4)];
    let generation = Generation(6);
    RunOrigin { checkpoints, undone: vec![id(15, 6)], generation, falls_back: true }
}

/// A run of so many workers, one copy of each shard, goes on from there.
fn resumed(workers: u32, origin: RunOrigin) -> (World, Vec<LinkId>) {
    let mut world = continued(workers, origin);
    let names: Vec<_> = (1..=workers).map(|place| format!("worker-{place}")).collect();
    let links = names.iter().map(|name| world.worker(name)).collect();
    (world, links)
}

fn continued(workers: u32, origin: RunOrigin) -> World {
    let mut world = World::empty();
    let run = Box::new(RunSpec { copies: 1, ..saving(workers) });
    let origin = Box::new(origin);
    world.request(1, OperatorCommand::Continue { run, origin });
    world
}

/// A run of one worker, which has read nothing yet.
fn restoring(origin: RunOrigin) -> (World, LinkId) {
    let mut world = continued(1, origin);
    let link = world.greeted("worker-1");
    let late = Actor { node: "worker-1".into(), restores_late: true, ..Actor::default() };
    world.workers.insert(link, late);
    world.say(link, Message::Register(registration(link.0)));
    (world, link)
}

/// The record's cause, number, resume step, and the checkpoint that it restores.
fn began(world: &World) -> (Cause, u64, u64, Option<CheckpointId>) {
    let record = world.record();
    (record.cause, record.number.0, record.resume.0, record.restores())
}

fn told(world: &World, step: u64) -> bool {
    world.events().contains(&EventKind::Continued { step: Step(step) })
}

/// No number of a generation comes twice, and each settled step after the checkpoint has one line.
#[test]
fn i13_a_run_goes_on_from_the_newest_checkpoint_of_its_store() {
    let (mut world, links) = resumed(2, origin());
    assert_eq!(began(&world), (Cause::Start, 7, 10, Some(id(10, 4))));
    assert!(told(&world, 10), "the history says so");
    assert_eq!(listed(&world), [5, 10]);
    settle(&mut world, links[0], 11..=15);
    assert_eq!(world.line_file[10..], lines(Generation(7), 11..=15), "the others are elsewhere");
    assert!(!world.events().iter().any(|kind| matches!(kind, EventKind::LinesLost { .. })));
    world.hear(links[0]);
    links.iter().for_each(|link| save(&mut world, *link, id(15, 7)));
    assert_eq!(orders(&mut world, links[0]), [(15, vec![id(15, 6)])], "what is in the way goes");
    write(&mut world, links[0], id(15, 7), vec![id(15, 6)]);
    assert_eq!(listed(&world), [5, 10, 15]);
}

#[test]
fn a_loss_after_that_goes_back_to_the_newest_checkpoint_whichever_cluster_wrote_it() {
    let (mut world, links) = resumed(3, origin());
    settle(&mut world, links[0], 11..=13);
    world.kill(links[1]);
    world.pass(500, &[links[0], links[2]]);
    assert_eq!(began(&world), (Cause::Rollback, 8, 10, Some(id(10, 4))));
    settle(&mut world, links[0], 11..=15);
    complete(&mut world, &[links[0], links[2]], id(15, 8));
    world.kill(links[2]);
    world.pass(500, &links[..1]);
    assert_eq!(began(&world), (Cause::Rollback, 9, 15, Some(id(15, 8))));
}

/// Nothing is lost with a member that has not read its shards yet.
#[test]
fn a_member_that_is_lost_while_it_restores_is_followed_by_the_same_checkpoint() {
    let (mut world, link) = restoring(origin());
    assert_eq!(began(&world), (Cause::Start, 7, 10, Some(id(10, 4))));
    let other = world.worker("worker-2");
    world.kill(link);
    world.pass(6_000, &[other]);
    assert_eq!(began(&world), (Cause::Rollback, 8, 10, Some(id(10, 4))));
}

/// Invariant I12.
#[test]
fn i12_a_damaged_checkpoint_is_followed_by_an_older_one_of_the_store() {
    let (mut world, link) = restoring(origin());
    world.say(link, Message::Damaged { id: id(10, 4), reason: "a bit flipped".into() });
    world.pass(100, &[link]);
    assert_eq!(began(&world), (Cause::Rollback, 8, 5, Some(id(5, 2))));
    let damaged =
        |kind: &EventKind| matches!(kind, EventKind::CheckpointDamaged { step: Step(10), .. });
    assert!(world.events().iter().any(damaged));
}

#[test]
fn a_run_of_which_no_checkpoint_is_whole_fails_and_does_not_begin_from_scratch() {
    let (mut world, link) = restoring(origin());
    for (step, generation) in [(10, 4), (5, 2)] {
        let reason = format!("step {step}: a bit flipped");
        world.say(link, Message::Damaged { id: id(step, generation), reason });
        world.pass(100, &[link]);
    }
    let words = "no checkpoint of the run is whole, and that of step 5 is damaged: step 5: a bit";
    assert!(world.failure().starts_with(words), "{}", world.failure());
}

#[test]
fn a_step_that_was_asked_for_is_not_replaced_by_another_one() {
    let (mut world, links) = resumed(1, RunOrigin { falls_back: false, ..origin() });
    world.say(links[0], Message::Damaged { id: id(10, 4), reason: "a bit flipped".into() });
    world.pass(100, &links);
    let words = "the checkpoint of step 10, from which the run was to go on, is damaged";
    assert!(world.failure().starts_with(words), "{}", world.failure());
}

/// The leader that gets the word of damage dies with it.
#[test]
fn the_next_leader_does_not_begin_from_scratch_either() {
    let (mut world, links) = resumed(1, RunOrigin { falls_back: false, ..origin() });
    world.holds_back = true;
    world.say(links[0], Message::Damaged { id: id(10, 4), reason: "a bit flipped".into() });
    let entry = world.log.pop_front().expect("it is proposed");
    world.give(CoreInput::SteppedDown);
    world.apply(entry);
    world.holds_back = false;
    world.restart();
    let link = world.relink(links[0]);
    world.pass(500, &[link]);
    assert!(world.failure().contains("is damaged"), "{}", world.failure());
}

#[test]
fn a_step_that_is_damaged_after_it_was_restored_costs_nothing() {
    let (mut world, links) = resumed(1, RunOrigin { falls_back: false, ..origin() });
    settle(&mut world, links[0], 11..=12);
    world.pass(100, &links);
    world.say(links[0], Message::Damaged { id: id(10, 4), reason: "a bit flipped".into() });
    world.pass(100, &links);
    assert!(world.running());
    assert_eq!(began(&world).1, 7);
}

#[test]
fn a_run_goes_on_from_a_store_only_where_none_is_trained() {
    let (mut world, _) = resumed(1, origin());
    let (run, origin) = (Box::new(saving(1)), Box::new(origin()));
    world.hear(world.operator);
    world.request(2, OperatorCommand::Continue { run, origin });
    let other = Rejection::OtherRun(world.core.state().run().expect("a run").name.clone());
    assert_eq!(world.hear(world.operator), [answer(2, Some(other))]);
}

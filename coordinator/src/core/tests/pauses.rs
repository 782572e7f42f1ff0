//! What operators ask of a run under way: to pause, to go on, to save a checkpoint.

use everstep_transport::protocol::outcome::PausedBy;
use everstep_transport::protocol::{CheckpointSpec, OnFailure, RunId};

use super::checkpoints::{complete, failures, finish_all, id, listed, orders, save, saving};
use super::checkpoints::{settle, unsaved, write};
use super::*;

/// As [`saving`], for a run that pauses when a checkpoint is not written.
fn pausing(workers: u32) -> RunSpec {
    let mut run = saving(workers);
    let spec = run.checkpoint.take().expect("it saves");
    RunSpec { checkpoint: Some(CheckpointSpec { on_failure: OnFailure::Pause, ..spec }), ..run }
}

impl World {
    fn ask(
        &mut self,
        number: u64,
        command: impl Fn(RunId) -> OperatorCommand,
    ) -> Option<Rejection> {
        let run = self.core.state().run_id();
        self.hear(self.operator);
        self.request(number, command(run));
        match self.hear(self.operator).pop() {
            Some(Message::Answer { refusal, .. }) => refusal,
            other => panic!("no answer but {other:?}"),
        }
    }

    /// The cause of the newest record, its resume step, and whether it starts no step.
    fn stands(&self) -> (Cause, u64, bool) {
        let record = self.record();
        (record.cause, record.resume.0, record.waiting)
    }
}

/// A run of so many workers that is paused after step 7, whose checkpoint is listed.
fn paused(workers: u32) -> (World, Vec<LinkId>) {
    let (mut world, links) = World::training_as(saving(workers));
    settle(&mut world, links[0], 1..=7);
    assert_eq!(world.ask(1, OperatorCommand::Pause), None);
    world.hold_all();
    complete(&mut world, &links, id(7, 1));
    assert_eq!(listed(&world), [7]);
    (world, links)
}

/// Invariant I26.
#[test]
fn i26_a_pause_comes_after_the_step_under_way_and_saves_a_checkpoint() {
    let (mut world, links) = World::training_as(saving(2));
    settle(&mut world, links[0], 1..=7);
    world.hear(links[0]);
    assert_eq!(world.ask(1, OperatorCommand::Pause), None);
    assert_eq!(world.words(links[0]), ["hold"]);
    let told = world.watch(7, 0).paused.expect("it is to pause");
    assert_eq!((told.by, told.in_force), (PausedBy::Operator, false));
    world.hold_all();
    assert_eq!(world.stands(), (Cause::Checkpoint, 7, true));
    let update = world.watch(7, 0);
    assert!(update.paused.is_some_and(|paused| paused.in_force));
    assert_eq!(update.waiting, None, "it lacks no workers");
    complete(&mut world, &links, id(7, 1));
    let events = world.events();
    assert!(events.contains(&EventKind::CheckpointRequested { step: Step(7) }));
    assert_eq!(listed(&world), [7]);
    world.pass(60_000, &links);
    assert_eq!((world.generation(), world.stands().2), (Generation(2), true), "it rests");
    assert_eq!(world.ask(2, OperatorCommand::Resume), None);
    assert_eq!(world.stands(), (Cause::Resume, 7, false));
    assert!(!world.words(links[0]).contains(&"hold"), "there is no step to hold");
    let shares = world.record().members.iter().map(|member| member.data_shards.len()).sum();
    assert_eq!((shares, world.watch(7, 0).paused), (4_usize, None));
    assert_eq!(world.events().iter().filter(|kind| **kind == EventKind::Resumed).count(), 1);
}

/// The record after a pause takes its time, since a member does not answer.
#[test]
fn a_run_that_is_resumed_does_not_wait_for_workers() {
    let (mut world, links) = paused(2);
    world.pass(60_000, &links);
    world.actor(links[1]).mute = true;
    assert_eq!(world.ask(2, OperatorCommand::Resume), None);
    let update = world.watch(7, 0);
    assert_eq!((world.stands().2, update.paused, update.waiting), (true, None, None));
    world.actor(links[1]).mute = false;
    world.pass(1_000, &links);
    assert_eq!(world.stands(), (Cause::Resume, 7, false));
}

#[test]
fn a_pause_is_no_stall() {
    let (mut world, links) = paused(2);
    world.pass(60_000, &links);
    assert_eq!(world.ask(2, OperatorCommand::Resume), None);
    let generation = world.generation();
    let line = |step: u64, unix_ms: u64| MetricsLine { unix_ms, ..line(generation, step) };
    let lines = vec![line(8, 600_000), line(9, 600_100)];
    world.beat_with(links[0], |heartbeat| heartbeat.lines = lines);
    assert_eq!(world.core.newest_step(), Step(9));
    assert_eq!(world.core.lines.sums().longest_stall_ms, 0.0);
}

#[test]
fn a_run_without_checkpoints_pauses_all_the_same() {
    let (mut world, links) = World::training(2);
    world.commit(1..=3);
    assert_eq!(world.ask(1, OperatorCommand::Pause), None);
    world.hold_all();
    assert_eq!(world.stands(), (Cause::Pause, 3, true));
    world.pass(1_000, &links);
    assert_eq!(world.ask(2, OperatorCommand::Checkpoint), Some(Rejection::NoCheckpoints));
    assert_eq!(world.ask(3, OperatorCommand::Resume), None);
    assert_eq!(world.stands(), (Cause::Resume, 3, false));
}

#[test]
fn a_pause_outlives_its_leader_and_its_workers() {
    let (mut world, links) = paused(3);
    world.restart();
    let links: Vec<LinkId> = links.iter().map(|link| world.relink(*link)).collect();
    world.pass(1_000, &links);
    assert_eq!((world.generation(), world.stands().2), (Generation(2), true));
    world.kill(links[2]);
    world.pass(1_000, &links[..2]);
    assert_eq!(world.stands(), (Cause::Lost, 7, true));
    for link in &links[..2] {
        if world.actor(*link).shard_syncs.is_some() {
            world.sync_shards(*link);
        }
    }
    world.pass(100, &links[..2]);
    assert_eq!((world.stands().2, world.protection()), (true, 2), "copies are repaired");
    let joiner = world.worker("worker-9");
    world.pass(50, &[links[0], links[1], joiner]);
    world.sync_shards(joiner);
    world.pass(100, &[links[0], links[1], joiner]);
    assert_eq!(world.stands(), (Cause::Join, 7, true), "and workers join");
    assert_eq!(world.members().len(), 3);
    world.operator = world.connect(Role::Operator, "operator");
    assert_eq!(world.ask(2, OperatorCommand::Resume), None);
    world.pass(100, &[links[0], links[1], joiner]);
    assert!(!world.record().waiting);
}

#[test]
fn what_is_so_already_is_refused_in_words() {
    let (mut world, links) = World::training_as(saving(2));
    assert_eq!(world.ask(1, OperatorCommand::Resume), Some(Rejection::NotPaused));
    settle(&mut world, links[0], 1..=2);
    assert_eq!(world.ask(2, OperatorCommand::Pause), None);
    let again = world.ask(3, OperatorCommand::Pause).expect("it is paused");
    assert!(matches!(again, Rejection::Paused(_)), "{again}");
    assert!(again.to_string().contains("`everstep run resume`"), "{again}");
    let other = |run: RunId| OperatorCommand::Pause(RunId(run.0 + 1));
    assert!(matches!(world.ask(4, other), Some(Rejection::NotTheRun(_))));
    world.cancel(5);
    assert_eq!(world.failure(), "it was cancelled");
    assert_eq!(world.core.state().pause(), None);
    assert_eq!(world.ask(6, OperatorCommand::Resume), Some(Rejection::RunIsOver));
}

#[test]
fn a_pause_that_is_taken_back_in_time_changes_nothing_for_long() {
    let (mut world, links) = World::training_as(saving(2));
    settle(&mut world, links[0], 1..=2);
    world.ask(1, OperatorCommand::Pause);
    world.ask(2, OperatorCommand::Resume);
    world.hold_all();
    world.pass(1_000, &links);
    assert!(!world.record().waiting && world.generation() <= Generation(2));
}

#[test]
fn a_paused_run_goes_back_and_stays_paused() {
    let (mut world, links) = paused(2);
    let run = world.core.state().run_id();
    let generation = Generation(0);
    world.request(2, OperatorCommand::Rollback { run, step: Step(0), generation });
    world.pass(200, &links);
    assert_eq!(world.stands(), (Cause::Rollback, 0, true));
    assert!(world.watch(0, 0).paused.is_some_and(|paused| paused.in_force));
    let refusal = world.ask(3, OperatorCommand::Checkpoint);
    assert_eq!(refusal, Some(Rejection::NothingToSave));
    world.ask(4, OperatorCommand::Resume);
    assert_eq!(world.stands(), (Cause::Resume, 0, false));
}

/// Found by a simulation: each change made the members begin to restore anew.
#[test]
fn a_checkpoint_is_there_already_where_a_paused_run_has_gone_back_to_it() {
    let (mut world, links) = paused(2);
    assert_eq!(world.ask(2, OperatorCommand::Checkpoint), None);
    let asked = EventKind::CheckpointRequested { step: Step(7) };
    let count = |world: &World| world.events().iter().filter(|kind| **kind == asked).count();
    assert_eq!((world.generation(), count(&world)), (Generation(2), 2));
    links.iter().for_each(|link| world.actor(*link).restores_late = true);
    let run = world.core.state().run_id();
    let generation = Generation(0);
    world.request(3, OperatorCommand::Rollback { run, step: Step(7), generation });
    world.pass(200, &links);
    assert_eq!(world.stands(), (Cause::Rollback, 7, true));
    let number = world.generation();
    assert_eq!(world.ask(4, OperatorCommand::Checkpoint), None);
    world.pass(1_000, &links);
    assert_eq!((world.generation(), count(&world)), (number, 3), "no change interrupts them");
}

#[test]
fn a_checkpoint_that_is_asked_for_is_saved_by_a_generation_of_its_own() {
    let (mut world, links) = World::training_as(saving(2));
    settle(&mut world, links[0], 1..=3);
    world.hear(links[0]);
    assert_eq!(world.ask(1, OperatorCommand::Checkpoint), None);
    assert_eq!(world.words(links[0]), ["hold"]);
    world.hold_all();
    assert_eq!(world.stands(), (Cause::Checkpoint, 3, false));
    settle(&mut world, links[0], 4..=4);
    complete(&mut world, &links, id(3, 1));
    assert_eq!(listed(&world), [3]);
    world.pass(1_000, &links);
    assert_eq!(world.generation(), Generation(2), "one checkpoint is enough");
}

/// The members write the checkpoint of the pause when an operator asks for one.
#[test]
fn a_checkpoint_that_is_asked_for_in_a_pause_is_the_one_that_is_being_written() {
    let (mut world, links) = World::training_as(saving(2));
    settle(&mut world, links[0], 1..=7);
    assert_eq!(world.ask(1, OperatorCommand::Pause), None);
    world.hold_all();
    assert_eq!(world.ask(2, OperatorCommand::Checkpoint), None);
    let asked = EventKind::CheckpointRequested { step: Step(7) };
    let count = |world: &World| world.events().iter().filter(|kind| **kind == asked).count();
    assert_eq!(count(&world), 1, "the pause has asked for it");
    complete(&mut world, &links, id(7, 1));
    world.pass(1_000, &links);
    assert_eq!((listed(&world), count(&world)), (vec![7], 2), "the operator has an answer");
    assert_eq!(world.core.state().asked_checkpoint(), None);
    assert_eq!(world.generation(), Generation(2), "one checkpoint is enough");
}

#[test]
fn a_checkpoint_that_is_asked_for_waits_for_the_one_before() {
    let (mut world, links) = World::training_as(saving(2));
    settle(&mut world, links[0], 1..=3);
    world.ask(1, OperatorCommand::Checkpoint);
    world.hold_all();
    settle(&mut world, links[0], 4..=4);
    world.ask(2, OperatorCommand::Checkpoint);
    world.pass(1_000, &links);
    assert_eq!(world.generation(), Generation(2));
    complete(&mut world, &links, id(3, 1));
    world.pass(100, &links);
    world.hold_all();
    assert_eq!(world.stands(), (Cause::Checkpoint, 4, false));
    complete(&mut world, &links, id(4, 2));
    assert_eq!(listed(&world), [3, 4]);
}

#[test]
fn a_checkpoint_whose_writer_is_lost_fails_if_steps_go_on() {
    let (mut world, links) = World::training_as(saving(3));
    settle(&mut world, links[0], 1..=3);
    world.ask(1, OperatorCommand::Checkpoint);
    world.hold_all();
    settle(&mut world, links[0], 4..=4);
    save(&mut world, links[0], id(3, 1));
    world.kill(links[2]);
    world.pass(29_000, &links[..2]);
    assert_eq!(failures(&world), []);
    world.pass(5_000, &links[..2]);
    assert_eq!(failures(&world)[0].0, 3);
    assert_eq!(world.core.state().asked_checkpoint(), None);
}

/// Else the run would wait for it at its end.
#[test]
fn a_checkpoint_that_is_asked_for_and_fails_after_another_one_is_told_of() {
    let (mut world, links) = World::training_as(saving(2));
    settle(&mut world, links[0], 1..=3);
    world.ask(1, OperatorCommand::Checkpoint);
    world.hold_all();
    settle(&mut world, links[0], 4..=5);
    world.say(links[1], unsaved(id(5, 2)));
    world.say(links[1], unsaved(id(3, 1)));
    assert_eq!(failures(&world).len(), 2);
    assert_eq!(world.core.state().asked_checkpoint(), None);
}

#[test]
fn a_paused_run_saves_anew_after_a_loss_and_after_a_failure() {
    let (mut world, links) = World::training_as(saving(3));
    settle(&mut world, links[0], 1..=7);
    world.ask(1, OperatorCommand::Pause);
    world.hold_all();
    save(&mut world, links[0], id(7, 1));
    world.kill(links[2]);
    world.pass(1_000, &links[..2]);
    assert_eq!(world.stands(), (Cause::Checkpoint, 7, true), "the others save what it had");
    let asked = EventKind::CheckpointRequested { step: Step(7) };
    assert_eq!(world.events().iter().filter(|kind| **kind == asked).count(), 1);
    world.say(links[1], unsaved(id(7, 1)));
    assert_eq!(failures(&world).len(), 1);
    world.pass(60_000, &links[..2]);
    assert!(listed(&world).is_empty());
    world.ask(2, OperatorCommand::Checkpoint);
    world.pass(100, &links[..2]);
    world.hear(links[0]);
    complete(&mut world, &links[..2], id(7, 1));
    assert_eq!((listed(&world), failures(&world).len()), (vec![7], 1));
}

#[test]
fn a_failed_checkpoint_pauses_a_run_that_asks_for_it() {
    let (mut world, links) = World::training_as(pausing(2));
    settle(&mut world, links[0], 1..=5);
    world.say(links[1], unsaved(id(5, 1)));
    let paused = world.watch(5, 0).paused.expect("it pauses");
    assert_eq!(paused.by, PausedBy::FailedCheckpoint);
    let words = paused.reason.to_string();
    assert!(words.contains("step 5") && words.contains("no space left"), "{words}");
    world.hold_all();
    assert_eq!(world.stands(), (Cause::Pause, 5, true));
    assert_eq!(world.ask(1, OperatorCommand::Resume), None);
    assert_eq!(world.stands(), (Cause::Resume, 5, false));
}

#[test]
fn a_run_that_pauses_for_its_last_checkpoint_ends_when_an_operator_says_so() {
    let (mut world, links) = World::training_as(pausing(2));
    settle(&mut world, links[0], 1..=20);
    finish_all(&mut world, &links);
    world.say(links[1], unsaved(id(20, 1)));
    world.pass(1_000, &links);
    assert!(world.running() && world.watch(20, 0).paused.is_some_and(|paused| paused.in_force));
    assert_eq!(world.ask(1, OperatorCommand::Resume), None);
    assert!(!world.running(), "it ends without");
}

#[test]
fn a_run_that_pauses_for_its_last_checkpoint_saves_it_when_it_is_asked_for() {
    let (mut world, links) = World::training_as(pausing(2));
    settle(&mut world, links[0], 1..=20);
    finish_all(&mut world, &links);
    world.say(links[1], unsaved(id(20, 1)));
    world.pass(100, &links);
    assert_eq!(world.ask(1, OperatorCommand::Checkpoint), None);
    world.pass(100, &links);
    assert_eq!(world.stands(), (Cause::Checkpoint, 20, false));
    links.iter().for_each(|link| drop(world.hear(*link)));
    links.iter().for_each(|link| save(&mut world, *link, id(20, 1)));
    assert_eq!(orders(&mut world, links[0]).len(), 1);
    write(&mut world, links[0], id(20, 1), vec![]);
    finish_all(&mut world, &links);
    assert_eq!(listed(&world), [20]);
    assert!(world.running(), "an operator has to resume it");
    assert_eq!(world.ask(2, OperatorCommand::Resume), None);
    assert!(!world.running());
}

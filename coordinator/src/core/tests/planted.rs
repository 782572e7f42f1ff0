//! Planted bugs: each is found by a promise that holds without it.

use everstep_transport::protocol::OperatorCommand;
use everstep_transport::protocol::reason::FailReason;

use super::checkpoints::{complete, id, listed, save, saving, settle, write};
use super::*;
use crate::plant::CorePlant;

/// The promise holds, and with the bug it is broken.
#[track_caller]
fn find(plant: CorePlant, promise: fn(Option<CorePlant>) -> bool) {
    assert!(promise(None), "it is broken without a bug");
    assert!(!promise(Some(plant)), "the bug is not found");
}

fn training(plant: Option<CorePlant>) -> (World, Vec<LinkId>) {
    let (mut world, links) = World::training(3);
    plant.into_iter().for_each(|plant| world.core.plant(plant));
    (world, links)
}

/// I8: a leader that stood still does not know of workers that came since.
#[test]
fn a_stalled_leader_that_evicts_is_found() {
    find(CorePlant::EvictUnconfirmed, |plant| {
        let (mut world, _) = training(plant);
        world.cut_off = true;
        let link = world.connect(Role::Worker, "worker-9");
        world.say(link, Message::Hello { worker: Some(WorkerId(99)) });
        world.give(CoreInput::SteppedDown);
        !world.words(link).contains(&"evicted")
    });
}

#[test]
fn an_id_that_is_given_again_is_found() {
    find(CorePlant::ReuseId, |plant| {
        let mut world = World::with_run(run_of(4));
        plant.into_iter().for_each(|plant| world.core.plant(plant));
        let first = world.worker("worker-1");
        let gone = world.id(first);
        world.kill(first);
        let second = world.worker("worker-2");
        world.id(second) != gone
    });
}

/// I13.
#[test]
fn lines_that_a_rollback_has_undone_and_that_stay_are_found() {
    find(CorePlant::KeepUndoneLines, |plant| {
        let (mut world, links) = training(plant);
        world.commit(1..=3);
        world.report_lines(links[0], 1..=3);
        links.iter().for_each(|link| world.kill(*link));
        world.worker("worker-9");
        assert_eq!(world.cause(), Cause::Rollback);
        world.watch(0, 0).lines.is_empty()
    });
}

/// I13: the line may be lost with the leader, and members drop it in the end.
#[test]
fn a_line_that_is_called_written_and_is_on_no_disk_is_found() {
    find(CorePlant::AcknowledgeEarly, |plant| {
        let (mut world, links) = training(plant);
        world.disk_stalls = true;
        world.report_lines(links[0], 1..=3);
        world.beat(links[0]);
        let early = |message: &Message| match message {
            Message::HeartbeatAnswer { written, .. } => *written > Step(0),
            _ => false,
        };
        !world.hear(links[0]).iter().any(early)
    });
}

/// I13: the line may be lost with the leader's disk, and the members are gone.
#[test]
fn a_run_that_ends_with_its_lines_on_one_disk_is_found() {
    find(CorePlant::LinesOnOneDisk, |plant| {
        let (mut world, links) = super::lines::training_under_two();
        plant.into_iter().for_each(|plant| world.core.plant(plant));
        world.report_lines(links[0], 1..=20);
        links.iter().for_each(|link| super::results::finish(&mut world, *link, [1; 32]));
        world.running()
    });
}

/// I1: the plan of a leader comes into the log after another coordinator has led.
#[test]
fn a_generation_of_a_deposed_leader_that_counts_is_found() {
    find(CorePlant::IgnoreTerm, |plant| {
        let (mut world, links) = training(plant);
        world.holds_back = true;
        world.kill(links[0]);
        assert!(world.log.iter().any(|it| matches!(it.command, Command::Generation(_))));
        world.term = Term(2);
        world.catch_up();
        world.core.state().record().map(|record| record.number) == Some(Generation(1))
    });
}

/// I13: the first run is over when its submission comes into the log again.
#[test]
fn a_request_that_is_done_twice_is_found() {
    find(CorePlant::ApplyTwice, |plant| {
        let mut world = World::empty();
        plant.into_iter().for_each(|plant| world.core.plant(plant));
        world.found(false);
        world.request(1, OperatorCommand::Submit(run_of(2).into()));
        let outcome = Outcome::Failed { name: None, reason: FailReason::Cancelled };
        let other = Command::End {
            run: world.core.state().run_id(),
            outcome,
            figures: exemplars::figures(),
            steps: Step(0),
        };
        world.log.push_back(CommandEntry { unix_ms: 1, command: other });
        world.drain();
        world.request(1, OperatorCommand::Submit(run_of(2).into()));
        !world.running()
    });
}

/// A leader with the bug, or without one, and two workers that save checkpoints.
fn saving_pair(plant: Option<CorePlant>) -> (World, Vec<LinkId>) {
    let (mut world, links) = World::training_as(saving(2));
    plant.into_iter().for_each(|plant| world.core.plant(plant));
    (world, links)
}

/// I12.
#[test]
fn a_checkpoint_of_a_step_that_is_not_settled_is_found() {
    find(CorePlant::ListUnsettled, |plant| {
        let (mut world, links) = saving_pair(plant);
        world.commit(1..=5);
        world.report_lines(links[0], 1..=4);
        complete(&mut world, &links, id(5, 1));
        listed(&world).is_empty()
    });
}

/// I12.
#[test]
fn a_checkpoint_without_one_of_its_parts_is_found() {
    find(CorePlant::ListWithoutPart, |plant| {
        let (mut world, links) = saving_pair(plant);
        settle(&mut world, links[0], 1..=5);
        save(&mut world, links[0], id(5, 1));
        write(&mut world, links[0], id(5, 1), vec![]);
        listed(&world).is_empty()
    });
}

//! The death of the coordinator costs training nothing.

use crate::world::{Signal, World, until};

#[test]
fn a_killed_coordinator_is_started_again_and_evicts_nobody() {
    let world = World::new().with("run.steps", 400);
    let run = world.launch(&["--workers", "3"]);
    let before = run.until_step(3);
    before.coordinator().signal(Signal::KILL);
    let pid =
        || Some(run.cluster()?.coordinator().pid).filter(|pid| *pid != before.coordinator().pid);
    until("another coordinator", pid);
    run.until_another_step();
    let after = run.until_whole(3);
    assert_eq!(after.coordinator().address, before.coordinator().address);
    let run = run.complete();
    run.assert_survived(400);
    assert_eq!(run.hash(), world.undisturbed());
    assert_eq!(run.report["coordinator_restarts"], 1);
    assert_eq!(run.report["generations"].as_array().unwrap().len(), 1, "nobody was lost");
}

#[test]
fn a_coordinator_and_a_worker_that_die_together_are_survived() {
    let world = World::new().with("run.steps", 400);
    let run = world.launch(&["--workers", "3", "--respawn"]);
    let cluster = run.until_step(3);
    cluster.coordinator().signal(Signal::KILL);
    cluster.workers[0].signal(Signal::KILL);
    until("the loss", || (run.count("lost") == 1).then_some(()));
    run.until_whole(3);
    let run = run.complete();
    run.assert_survived(400);
    assert_eq!(run.hash(), world.undisturbed());
    assert_eq!(run.generations("lost").len(), 1);
}

#[test]
fn a_coordinator_that_does_not_answer_is_started_again() {
    let world = World::new().with("run.steps", 400);
    let run = world.launch(&["--workers", "2"]);
    let cluster = run.until_step(3);
    cluster.coordinator().signal(Signal::STOP);
    let run = run.complete();
    run.assert_survived(400);
    assert_eq!(run.report["coordinator_restarts"], 1);
}

#[test]
fn a_coordinator_killed_before_the_run_begins_still_begins_it() {
    let world = World::new().with("run.start_workers", 3);
    let run = world.launch(&["--workers", "2"]);
    let cluster = run.until_workers(2, "waiting");
    cluster.coordinator().signal(Signal::KILL);
    let third = world.join(&run);
    let run = run.complete();
    assert_eq!(third.end().code, Some(0));
    run.assert_survived(12);
    assert_eq!(run.report["workers"].as_array().unwrap().len(), 3);
}

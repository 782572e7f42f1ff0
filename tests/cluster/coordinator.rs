//! The death of the coordinator costs training nothing.

use std::time::{Duration, Instant};

use crate::world::{Cluster, Launched, Run, Signal, World, longest_gap};

/// How long a leader stands still.
const LEADER_STALL: Duration = Duration::from_secs(20);

#[test]
fn a_killed_coordinator_is_started_again_and_evicts_nobody() {
    let world = World::lasting(200);
    let run = world.launch(&["--workers", "3"]);
    let before = run.until_step(3);
    before.leader().signal(Signal::KILL);
    let pid = || run.cluster()?.leader().pid.filter(|pid| Some(*pid) != before.leader().pid);
    run.until("another coordinator", pid);
    run.until_another_step();
    let after = run.until_whole(3);
    assert_eq!(after.leader().address, before.leader().address);
    let run = run.complete();
    run.assert_survived(200);
    assert_eq!(run.hash(), world.undisturbed());
    assert_eq!(run.report["coordinator_restarts"], 1);
    assert_eq!(run.generations("lost").len(), 0, "no worker was lost");
}

#[test]
fn a_coordinator_and_a_worker_that_die_together_are_survived() {
    let world = World::lasting(200);
    both_die(&world, world.launch(&["--workers", "3", "--respawn"]));
}

/// The leader and a worker die.
fn both_die(world: &World, run: Launched) {
    let cluster = run.until_step(3);
    cluster.leader().signal(Signal::KILL);
    cluster.workers[0].signal(Signal::KILL);
    run.until("the loss", || (run.count("lost") >= 1).then_some(()));
    run.until_whole(3);
    let run = run.complete();
    run.assert_survived(200);
    assert_eq!(run.hash(), world.undisturbed());
    assert_eq!(run.generations("lost").len(), 1);
}

#[test]
fn a_coordinator_that_does_not_answer_is_started_again() {
    let world = World::lasting(200);
    let run = world.launch(&["--workers", "2"]);
    let cluster = run.until_step(3);
    cluster.leader().signal(Signal::STOP);
    let run = run.complete();
    run.assert_survived(200);
    assert_eq!(run.report["coordinator_restarts"], 1);
}

#[test]
fn a_coordinator_killed_before_the_run_begins_still_begins_it() {
    let world = World::new().with("run.start_workers", 3);
    let run = world.launch(&["--workers", "2"]);
    let cluster = run.until_workers(2, "waiting");
    cluster.leader().signal(Signal::KILL);
    let third = world.join(&run);
    let run = run.complete();
    assert_eq!(third.end().code, Some(0));
    run.assert_survived(12);
    assert_eq!(run.report["workers"].as_array().unwrap().len(), 3);
}

/// Three coordinators. The cluster goes on without any one of them.
fn three(world: &World, flags: &[&str]) -> Launched {
    world.launch(&[&["--coordinators", "3", "--workers", "3"], flags].concat())
}

/// Waits until another coordinator leads than the leader in `before`.
fn until_another_leads(run: &Launched, before: &Cluster) -> Cluster {
    run.until("another leader", || {
        let now = run.cluster()?;
        let led = before.leader().id;
        let another = now.coordinators.iter().any(|c| c.leader && c.id != led && c.pid.is_some());
        another.then_some(now)
    })
}

/// The events are those of one history: numbered without a gap, and one for each election.
fn assert_told(run: &Run, elections: usize) {
    let events = run.lines("events.jsonl");
    let numbers: Vec<_> = events.iter().map(|event| event["number"].as_u64()).collect();
    assert_eq!(numbers, (1..=events.len() as u64).map(Some).collect::<Vec<_>>());
    let led: Vec<_> = events.iter().filter(|event| event["event"] == "leading").collect();
    assert!(led.len() >= elections, "{led:?}");
}

#[test]
fn three_coordinators_go_on_without_the_leader_and_nobody_notices() {
    let world = World::lasting(200);
    let run = three(&world, &[]);
    let before = run.until_step(3);
    assert_eq!(before.coordinators.len(), 3);
    before.leader().signal(Signal::KILL);
    until_another_leads(&run, &before);
    run.until_another_step();
    let run = run.complete();
    run.assert_survived(200);
    assert_told(&run, 2);
    assert_eq!(run.hash(), world.undisturbed());
    assert_eq!(run.report["steps_redone"], 0);
    assert_eq!(run.report["coordinator_restarts"], 1);
    assert_eq!(run.generations("lost").len(), 0, "no worker was lost");
}

/// A slow worker keeps the run going. It leaves in good order.
#[test]
fn three_coordinators_go_on_while_the_leader_stands_still() {
    let world = World::new().with("run.steps", 1_200).with("run.start_workers", 3);
    let run = world.launch(&["--coordinators", "3", "--workers", "2"]);
    run.until_workers(2, "waiting");
    let slow = world.join_slowly(&run);
    let before = run.until_step(3);
    before.leader().signal(Signal::STOP);
    let stopped = Instant::now();
    until_another_leads(&run, &before);
    let back = stopped.elapsed();
    assert!(back < LEADER_STALL, "another one led after {back:?}");
    run.until("some seconds", || {
        run.until_another_step();
        (stopped.elapsed() > LEADER_STALL).then_some(())
    });
    before.leader().signal(Signal::CONT);
    (0..3).for_each(|_| run.until_another_step());
    slow.signal(Signal::TERM);
    assert_eq!(slow.end().code, Some(143));
    let run = run.complete();
    run.assert_survived(1_200);
    assert_told(&run, 2);
    assert_eq!(run.hash(), world.undisturbed());
    assert_eq!(run.report["steps_redone"], 0);
    assert_eq!(run.report["coordinator_restarts"], 0, "it lives");
    assert_eq!(run.generations("lost").len(), 0, "no worker was lost");
    let gap = longest_gap(&run.lines("metrics.jsonl"));
    assert!(gap < LEADER_STALL, "{gap:?} between two steps; another one led after {back:?}");
}

#[test]
fn the_leader_of_three_and_a_worker_that_die_together_are_survived() {
    let world = World::lasting(200);
    both_die(&world, three(&world, &["--respawn"]));
}

#[test]
fn three_coordinators_that_die_together_are_started_again() {
    let world = World::lasting(200);
    let run = three(&world, &[]);
    let cluster = run.until_step(3);
    cluster.coordinators.iter().for_each(|coordinator| coordinator.signal(Signal::KILL));
    run.until("the others", || {
        let now = run.cluster()?;
        let mut pairs = now.coordinators.iter().zip(&cluster.coordinators);
        pairs.all(|(now, then)| now.pid.is_some() && now.pid != then.pid).then_some(())
    });
    run.until_another_step();
    let run = run.complete();
    run.assert_survived(200);
    assert_told(&run, 2);
    assert_eq!(run.hash(), world.undisturbed());
    assert_eq!(run.report["coordinator_restarts"], 3);
    assert_eq!(run.generations("lost").len(), 0, "no worker was lost");
}

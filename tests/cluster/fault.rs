//! Faults end a run, soon, with one block that names who is at fault; and nothing is left behind.

use std::time::Instant;

use crate::world::{Node, SOON, Signal, World};

/// A run that nobody waits the end of.
fn endless() -> World {
    World::new().with("run.steps", 1_000_000)
}

/// The block names the process, says why, and where its log is.
fn assert_names(block: &str, node: &Node, why: &str) {
    assert!(block.starts_with("error: the run failed\n  where: "), "{block}");
    let pid = node.pid.expect("the launcher started it");
    for words in [format!("pid {pid})"), why.into(), "read its log, /".into()] {
        assert!(block.contains(&words), "no \"{words}\" in:\n{block}");
    }
    assert!(!block.contains(" INFO "), "a line of the log is no reason:\n{block}");
}

#[test]
fn a_worker_killed_in_the_middle_of_a_step_is_named() {
    for victim in [0, 1, 2] {
        let world = endless();
        let run = world.launch(&["--workers", "3"]);
        let cluster = run.until_step(3);
        cluster.workers[victim].signal(Signal::KILL);
        let block = run.fails(&cluster);
        assert_names(&block, &cluster.workers[victim], "was killed (signal 9)");
    }
}

#[test]
fn a_worker_killed_before_the_run_starts_is_named() {
    let world = endless().with("run.start_workers", 3);
    let run = world.launch(&["--workers", "2"]);
    let cluster = run.until_workers(2, "waiting");
    cluster.workers[1].signal(Signal::KILL);
    assert_names(&run.fails(&cluster), &cluster.workers[1], "was killed (signal 9)");
}

#[test]
fn a_worker_killed_after_the_last_step_is_named() {
    // The members evaluate for seconds after the last step.
    let world = World::new().with_text(1 << 20).with("data.validation", 0.5);
    let world = world.with("model.width", 64).with("model.layers", 6);
    let run = world.launch(&["--workers", "2"]);
    let cluster = run.until_step(12);
    cluster.workers[1].signal(Signal::KILL);
    assert_names(&run.fails(&cluster), &cluster.workers[1], "was killed (signal 9)");
}

#[test]
fn a_stopped_worker_is_named() {
    let world = endless();
    let run = world.launch(&["--workers", "3"]);
    let cluster = run.until_step(3);
    cluster.workers[1].signal(Signal::STOP);
    assert_names(&run.fails(&cluster), &cluster.workers[1], "no heartbeat");
}

#[test]
fn a_killed_coordinator_is_named() {
    let world = endless();
    let run = world.launch(&["--workers", "3"]);
    let cluster = run.until_step(3);
    cluster.coordinator().signal(Signal::KILL);
    assert_names(&run.fails(&cluster), cluster.coordinator(), "was killed (signal 9)");
}

#[test]
fn a_stopped_coordinator_is_named() {
    let world = endless();
    let run = world.launch(&["--workers", "2"]);
    let cluster = run.until_step(3);
    cluster.coordinator().signal(Signal::STOP);
    assert_names(&run.fails(&cluster), cluster.coordinator(), "the coordinator");
}

#[test]
fn an_interrupted_launcher_takes_its_cluster_along() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let world = endless();
        let run = world.launch(&["--workers", "2"]);
        let cluster = run.until_step(3);
        run.program.signal(signal);
        let began = Instant::now();
        let ended = run.program.end();
        cluster.until_gone();
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert_eq!(ended.block().lines().count(), 1, "{ended:?}");
    }
}

#[test]
fn a_killed_launcher_takes_its_cluster_along_even_a_stopped_worker() {
    let world = endless();
    let run = world.launch(&["--workers", "3"]);
    let cluster = run.until_step(3);
    cluster.workers[0].signal(Signal::STOP);
    run.program.signal(Signal::KILL);
    let began = Instant::now();
    assert_eq!(run.program.end().code, None);
    cluster.until_gone();
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

#[test]
fn a_complete_run_leaves_no_process() {
    let world = World::new();
    let run = world.launch(&["--workers", "3"]);
    let cluster = run.until_step(1);
    run.complete();
    cluster.until_gone();
}

//! A fatal fault ends the run soon, with one block that names the process at fault, and leaves
//! nothing behind.

use std::fs;
use std::time::Instant;

use crate::world::{Node, Program, RUN_ENDS_WITHIN, Signal, World, assert_failed, show, until};

/// A run that lasts longer than any test.
fn endless() -> World {
    World::endless()
}

/// The block names the process, the reason, and the place of its log.
fn assert_names(block: &str, node: &Node, why: &str) {
    assert!(block.starts_with("error: the run failed\n  where: "), "{block}");
    let pid = node.pid.expect("the launcher started it");
    for words in [format!("pid {pid})"), why.into(), "read its log, /".into()] {
        assert!(block.contains(&words), "no \"{words}\" in:\n{block}");
    }
    assert!(!block.contains(" INFO "), "a line of the log is no reason:\n{block}");
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
fn an_interrupted_launcher_takes_its_cluster_along() {
    for (signal, code, word) in
        [(Signal::INT, 130, "interrupted"), (Signal::TERM, 143, "terminated")]
    {
        let world = endless();
        let run = world.launch(&["--workers", "2"]);
        let cluster = run.until_step(3);
        run.program.signal(signal);
        let began = Instant::now();
        let ended = run.program.end();
        cluster.until_gone();
        assert!(began.elapsed() < RUN_ENDS_WITHIN, "{:?}", began.elapsed());
        assert_eq!(ended.code, Some(code), "{ended:?}");
        let block = ended.farewell();
        assert!(block.starts_with(&format!("{word}\n")), "{ended:?}");
        let report = fs::read_to_string(run.dir.join("report.json")).unwrap();
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        assert!(report["step"].as_u64() >= Some(3), "{report}");
        let words = format!("after step {} of 1000000, and its files are kept", report["step"]);
        assert!(block.contains(&words), "{ended:?}");
    }
}

#[test]
fn a_coordinator_that_cannot_go_on_ends_the_run_with_its_own_words() {
    let world = endless();
    let run = world.launch(&["--workers", "2"]);
    let cluster = run.until_step(3);
    fs::remove_dir_all(run.dir.join("coordinator-1/authority")).unwrap();
    cluster.leader().signal(Signal::KILL);
    let dir = run.dir.clone();
    let block = run.fails(&cluster);
    for words in ["coordinator-1", "ended with exit code 1", "authority.pem"] {
        assert!(block.contains(words), "no \"{words}\" in:\n{block}");
    }
    assert_failed(&dir, "ended with exit code 1");
}

/// A coordinator dies of the request with the run, and its successors lack a file.
#[test]
fn a_run_that_no_coordinator_takes_has_failed_and_was_not_interrupted() {
    let world = World::new();
    let (config, dir) = (world.config(), world.path("run"));
    let mut command = world.command(&["train", "--config", show(&config), "--dir", show(&dir)]);
    command.env("FAILPOINTS", "coordinator:request.receive=return(kill)");
    let program = Program::start(command);
    until("a death", || {
        let log = fs::read_to_string(dir.join("logs/coordinator-1.log")).unwrap_or_default();
        log.contains("request.receive").then_some(())
    });
    fs::remove_dir_all(dir.join("coordinator-1/authority")).unwrap();
    let ended = program.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.block().contains("coordinator-1"), "{ended:?}");
    assert_failed(&dir, "coordinator-1");
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
    assert!(began.elapsed() < RUN_ENDS_WITHIN, "{:?}", began.elapsed());
}

#[test]
fn a_complete_run_leaves_no_process() {
    let world = World::new();
    let run = world.launch(&["--workers", "3"]);
    let cluster = run.until_step(1);
    run.complete();
    cluster.until_gone();
}

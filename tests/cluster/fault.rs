//! A fatal fault ends the run soon, with one block that names the process at fault, and leaves
//! nothing behind.

use std::time::Instant;

use crate::world::{Node, RUN_ENDS_WITHIN, Signal, World};

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
        let report = std::fs::read_to_string(run.dir.join("report.json")).unwrap();
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
    std::fs::remove_dir_all(run.dir.join("coordinator-1/authority")).unwrap();
    cluster.leader().signal(Signal::KILL);
    let block = run.fails(&cluster);
    for words in ["coordinator-1", "ended with exit code 1", "authority.pem"] {
        assert!(block.contains(words), "no \"{words}\" in:\n{block}");
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

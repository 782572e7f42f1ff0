//! Processes that were started by hand: no launcher tells the coordinator when one ends.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::world::{Launched, Program, Signal, World, show, until};

fn loss(run: &Launched) -> Value {
    run.until("a loss", || {
        run.lines("events.jsonl").into_iter().find(|event| event["event"] == "lost")
    })
}

/// Before a run begins a worker sends only heartbeats, and it has no peers.
#[test]
fn a_worker_killed_on_a_quiet_link_is_noticed_by_the_coordinator_itself() {
    let world = World::new().with("run.start_workers", 3);
    let run = world.launch(&["--workers", "1"]);
    run.until_workers(1, "waiting");
    for words in ["everstep worker --coordinators 127.0.0.1:", "HTTP API: http://127.0.0.1:"] {
        run.until(words, || run.program.said().contains(words).then_some(()));
    }
    let guest = world.join(&run);
    run.until_workers(2, "waiting");
    guest.signal(Signal::KILL);
    let lost = loss(&run);
    let reason = lost["reason"].as_str().expect("words");
    assert!(!reason.contains("its process"), "no launcher has said so: {reason}");
}

#[test]
fn a_benchmark_tells_nobody_of_what_it_started_by_hand_and_takes_it_along() {
    let world = World::new();
    let (scratch, config) = (world.path("scratch"), world.config());
    fs::create_dir(&scratch).expect("a folder");
    let flags = ["bench", "kills", "--by-hand", "--workers", "2", "--config", show(&config)];
    let mut command = world.command(&flags);
    command.env("TMPDIR", &scratch);
    let program = Program::start(command);
    let dir = until("the run's directory", || {
        let folder = fs::read_dir(&scratch).ok()?.next()?.ok()?.path();
        let mut inside = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
        inside.find(|path| path.join("cluster.json").is_file())
    });
    let run = Launched { program, dir, report: PathBuf::new() };
    let cluster = run.until_step(3);
    for node in cluster.workers.iter().chain(&cluster.coordinators) {
        let line = fs::read_to_string(format!("/proc/{}/cmdline", node.pid.expect("its own")));
        let line = line.unwrap_or_default();
        assert!(!line.contains("supervised") && !line.contains("leash"), "{line}");
    }
    let reason = loss(&run)["reason"].to_string();
    assert!(!reason.contains("its process"), "{reason}");
    let cluster = run.cluster().expect("a cluster");
    run.program.signal(Signal::KILL);
    assert_eq!(run.program.end().code, None);
    cluster.until_gone();
}

//! The results of a run that stay: its model, its report, and how it ended, in every case.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::world::{Ended, Program, Signal, World, show, until};

fn json(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    serde_json::from_str(&text).expect("JSON")
}

fn ask(world: &World, verb: &[&str], dir: &Path) -> Ended {
    world.start(&[verb, &["--dir", show(dir)]].concat()).end()
}

#[test]
fn a_worker_whose_directory_cannot_be_is_refused_before_it_joins() {
    let world = World::new();
    let dir = world.write("file", "").join("model");
    let flags = ["worker", "--coordinators", "127.0.0.1:9", "--join", "none", "--dir", show(&dir)];
    let ended = world.start(&flags).end();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.block().contains("the worker's directory cannot be used"), "{ended:?}");
}

#[test]
fn a_run_that_is_complete_tells_how_it_ended_from_its_directory() {
    let world = World::new();
    let run = world.train(&["--workers", "2"]);
    let told = json(&run.dir.join("report.json"));
    assert_eq!((&told["state"], &told["state_hash"]), (&"complete".into(), &run.hash().into()));
    assert_eq!(told["model"], show(&run.dir.join("model.safetensors")));
    assert_eq!(told["loss"], run.report["loss"], "the bigram model's too");
    let cluster = json(&run.dir.join("cluster.json"));
    assert_eq!(cluster["state"], "complete");
    assert_eq!(cluster["coordinators"][0]["leader"], false);
    assert_eq!(cluster["workers"][0]["state"], "ended");
    let status = ask(&world, &["run", "status"], &run.dir);
    assert!(status.code == Some(0) && status.stdout.contains(run.hash()), "{status:?}");
    let listed = ask(&world, &["run", "ls", "--json"], &run.dir);
    let listed: Value = serde_json::from_str(&listed.stdout).expect("JSON");
    assert_eq!((&listed[0]["state"], &listed[0]["steps"]), (&"complete".into(), &12.into()));
    let watched = ask(&world, &["run", "watch"], &run.dir);
    assert_eq!(watched.code, Some(0), "{watched:?}");
}

/// Whether this process and its children end when the terminal does. They do not under `nohup`.
fn ends_with_its_terminal() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & 1 == 0)
}

#[test]
fn a_run_that_is_interrupted_says_what_is_kept() {
    let mut ends = vec![(Signal::INT, 130), (Signal::TERM, 143)];
    ends.extend(ends_with_its_terminal().then_some((Signal::HUP, 143)));
    for (signal, code) in ends {
        let world = World::endless();
        let run = world.launch(&["--workers", "2"]);
        run.until_step(3);
        run.program.signal(signal);
        let (dir, ended) = (run.dir, run.program.end());
        assert_eq!(ended.code, Some(code), "{ended:?}");
        let words = ["the run stopped after step ", "`everstep resume ", show(&dir)];
        for words in words {
            assert!(ended.farewell().contains(words), "no \"{words}\" in {ended:?}");
        }
        let told = json(&dir.join("report.json"));
        assert_eq!((&told["state"], &told["state_hash"]), (&"interrupted".into(), &Value::Null));
        assert_eq!(json(&dir.join("cluster.json"))["state"], "interrupted");
        let events = fs::read_to_string(dir.join("events.jsonl")).expect("events");
        let last: Value = serde_json::from_str(events.lines().last().expect("one")).expect("JSON");
        assert_eq!((&last["event"], &last["by"]), (&"interrupted".into(), &"launcher".into()));
        let status = ask(&world, &["run", "status"], &dir);
        assert!(status.stdout.contains("interrupted: after step "), "{status:?}");
    }
}

/// A daemon that listens.
fn listening(mut program: Program) -> Program {
    program.line().expect("it says where it listens");
    program
}

#[test]
fn each_run_of_a_cluster_has_a_model_and_a_status_of_its_own() {
    let world = World::new().with("run.start_workers", 1);
    let _coordinator = listening(world.start(&["coordinator", "--dir", "one", "--bootstrap"]));
    let home = world.path("one");
    let added = ask(&world, &["worker", "add"], &home);
    assert_eq!(added.code, Some(0), "as soon as it listens: {added:?}");
    let said = added.stdout.replace("HOST:PORT", "127.0.0.1:0").replace("DIR", "of/a/worker");
    let (file, worker) = said.split_once('\n').expect("two lines");
    let token = file.split_whitespace().nth(3).expect("a token");
    world.write("worker.token", token);
    let words: Vec<&str> = worker.split_whitespace().skip(1).collect();
    assert!(!words.contains(&token), "{worker}");
    let _worker = listening(world.start(&words));
    until("a worker that waits", || {
        let listed = ask(&world, &["worker", "ls"], &home);
        let [said, row] = ["1 worker waits for a run\n", "worker-"];
        (listed.stdout.starts_with(said) && listed.stdout.contains(row)).then_some(())
    });
    let config = fs::read_to_string(world.config()).expect("a configuration");
    let mut models = Vec::new();
    for (seed, name) in [(1, "model.safetensors"), (2, "model-2.safetensors")] {
        let file = world.write("run.toml", &format!("run.seed = {seed}\n{config}"));
        let submitted = ask(&world, &["run", "submit", show(&file)], &home);
        assert!(!submitted.stdout.contains("with 0 workers"), "its own status: {submitted:?}");
        let watched = ask(&world, &["run", "watch"], &home);
        assert_eq!(watched.code, Some(0), "{watched:?}");
        models.push(fs::read(world.path("of/a/worker").join(name)).expect(name));
    }
    assert!(models[0] != models[1], "the two runs differ in their seeds");
    let first = fs::read(world.path("of/a/worker/model.safetensors")).expect("still there");
    assert!(first == models[0], "the second run has left it as it was");
    let runs = ask(&world, &["run", "ls", "--json"], &home).stdout;
    let runs: Value = serde_json::from_str(&runs).expect("JSON");
    for run in runs.as_array().expect("a list") {
        assert!(run["hash"].is_string() && run["validation_loss"].is_number(), "{run}");
        assert_eq!((&run["steps"], &run["loss"].is_number()), (&12.into(), &true), "{run}");
    }
}

#[test]
fn a_worker_leaves_by_the_label_of_its_log() {
    let world = World::endless();
    let run = world.launch(&["--workers", "3"]);
    run.until_whole(3);
    let ended = ask(&world, &["worker", "drain", "worker-2"], &run.dir);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let cluster = json(&run.dir.join("cluster.json"));
    let workers = cluster["workers"].as_array().expect("a list");
    let left = workers.iter().filter(|worker| worker["state"] == "left");
    let labels: Vec<_> = left.map(|worker| worker["label"].as_str()).collect();
    assert!(labels.is_empty() || labels == [Some("worker-2")], "{cluster}");
    let ended = ask(&world, &["worker", "drain", "worker-9"], &run.dir);
    assert_eq!(ended.code, Some(2), "{ended:?}");
}

//! Runs of which nothing is left but the store of their checkpoints.

use std::fs;
use std::path::{Path, PathBuf};

use everstep_checkpoint::manifest::Manifest;
use serde_json::Value;

use crate::world::{
    CoordinatorGroup, Ended, Launched, Program, Run, Signal, World, complete_checkpoints,
    flip_a_bit, show, step_of, until,
};

const STEPS: i64 = 500;

/// The small run, with a checkpoint every ten steps.
fn saved_run() -> World {
    World::lasting(STEPS).with("checkpoint.every", 10)
}

/// Kills a run once a step at or after this one is listed. Its store is all that stays, elsewhere.
fn orphaned_store(world: &World, run: Launched, step: u64) -> PathBuf {
    let is_listed = || {
        let events = run.lines("events.jsonl");
        let listed = events.iter().rfind(|event| event["event"] == "checkpoint");
        listed.is_some_and(|event| event["step"].as_u64() >= Some(step)).then_some(())
    };
    run.until("the checkpoint", is_listed);
    run.program.signal(Signal::KILL);
    run.program.end();
    let store = world.path(&format!("store-of-{step}"));
    fs::rename(run.dir.join("checkpoints"), &store).expect("moved");
    fs::remove_dir_all(&run.dir).expect("removed");
    store
}

fn resume(world: &World, store: &Path, flags: &[&str]) -> (Ended, Option<Run>) {
    let (dir, report) = (store.with_extension("run"), store.with_extension("json"));
    let ours = ["resume", show(store), "--dir", show(&dir), "--report", show(&report)];
    let ended = world.start(&[&ours[..], flags].concat()).end();
    let run = (ended.code == Some(0)).then(|| Run::read(dir, &report, ended.stdout.clone()));
    (ended, run)
}

/// The steps of a run's events of this kind.
fn steps(run: &Run, kind: &str) -> Vec<u64> {
    let events = run.lines("events.jsonl");
    let of_kind = events.iter().filter(|event| event["event"] == kind);
    of_kind.map(|event| event["step"].as_u64().expect("a step")).collect()
}

#[test]
fn i12_a_run_goes_on_from_its_store_alone_with_any_number_of_workers() {
    let world = saved_run();
    let wanted = world.undisturbed();
    for (step, workers) in [(10, "1"), (30, "2"), (20, "3"), (50, "5")] {
        let store = orphaned_store(&world, world.launch(&["--workers", "2"]), step);
        let (ended, run) = resume(&world, &store, &["--workers", workers]);
        let run = run.unwrap_or_else(|| panic!("{ended:?}"));
        assert_eq!(run.hash(), wanted, "{workers} workers");
        run.assert_survived(STEPS as u64);
        let resumed = steps(&run, "continued");
        assert!(resumed.len() == 1 && resumed[0] >= step, "not from scratch: {resumed:?}");
        let saved = steps(&run, "checkpoint");
        assert!(saved.last() > resumed.last(), "it goes on writing there: {saved:?}");
    }
}

/// The run's directory names the store. A new cluster writes its files elsewhere.
#[test]
fn i13_a_run_that_lost_its_coordinators_goes_on_twice_and_has_each_step_once() {
    let world = saved_run();
    let run = world.launch(&["--workers", "2", "--coordinators", "3"]);
    let dir = run.dir.clone();
    let is_there = || !complete_checkpoints(&dir.join("checkpoints")).is_empty();
    run.until("a checkpoint", || is_there().then_some(()));
    run.program.signal(Signal::KILL);
    run.program.end();
    for number in 1..=3 {
        fs::remove_dir_all(dir.join(format!("coordinator-{number}"))).expect("removed");
    }
    let second = world.path("second");
    let flags = ["resume", show(&dir), "--dir", show(&second), "--workers", "2"];
    let resumed = Launched {
        program: Program::start(world.pace(world.command(&flags))),
        dir: second.clone(),
        report: second.with_extension("json"),
    };
    let listed = || {
        let events = resumed.lines("events.jsonl");
        events.iter().any(|event| event["event"] == "checkpoint").then_some(())
    };
    resumed.until("another checkpoint", listed);
    resumed.program.signal(Signal::KILL);
    resumed.program.end();
    let (ended, run) = resume(&world, &dir.join("checkpoints"), &["--workers", "3"]);
    let run = run.unwrap_or_else(|| panic!("{ended:?}"));
    assert_eq!(run.hash(), world.undisturbed());
    run.assert_survived(STEPS as u64);
}

#[test]
fn i12_a_damaged_checkpoint_of_a_store_is_told_of_and_an_older_one_is_taken() {
    let world = saved_run();
    let store = orphaned_store(&world, world.launch(&["--workers", "2"]), 30);
    let folders = complete_checkpoints(&store);
    let part = flip_a_bit(folders.last().expect("one"));
    let newest = step_of(folders.last().expect("one"));

    let step = newest.to_string();
    let (ended, _) = resume(&world, &store, &["--workers", "2", "--step", &step]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let words = format!("error: the checkpoint of step {newest} is damaged");
    assert!(ended.block().starts_with(&words), "{ended:?}");
    for words in [&part, "parameter shard"] {
        assert!(ended.block().contains(words), "no {words} in {ended:?}");
    }
    assert!(!store.with_extension("run").exists(), "nothing was begun");

    let (ended, run) = resume(&world, &store, &["--workers", "2"]);
    let run = run.unwrap_or_else(|| panic!("{ended:?}"));
    assert_eq!(run.hash(), world.undisturbed());
    run.assert_one_history(STEPS as u64);
    assert_eq!(steps(&run, "checkpoint_damaged"), [newest]);
}

#[test]
fn what_a_run_cannot_go_on_from_is_refused_in_one_block_with_what_to_do() {
    let world = saved_run();
    let refused = |from: &str, flags: &[&str]| {
        let ended = world.start(&[&["resume", from], flags].concat()).end();
        assert_eq!(ended.code, Some(2), "{ended:?}");
        ended.block().to_string()
    };
    let empty = world.path("empty");
    fs::create_dir(&empty).expect("a folder");
    let told = refused(show(&empty), &[]);
    assert!(told.contains("there is no checkpoint that the run could go on from"), "{told}");
    assert!(told.contains("the store is empty") && told.contains("next: "), "{told}");
    let told = refused("ftp://host/run", &[]);
    assert!(told.contains("there are no stores of this scheme"), "{told}");
    let told = refused(show(&world.path("nowhere")), &[]);
    assert!(told.contains("there is no such directory"), "{told}");

    let store = orphaned_store(&world, world.launch(&["--workers", "2"]), 10);
    let told = refused(show(&store), &["--step", "7"]);
    assert!(told.contains("there is no checkpoint of step 7: the newest are those"), "{told}");
    let told = refused(show(&store), &["--step", "0"]);
    assert!(told.contains("`everstep train` begins at the first step"), "{told}");
    let other = world.write("other.txt", &"another text\n".repeat(4_096));
    let told = refused(show(&store), &["--data", show(&other)]);
    assert!(told.contains("the run's data are not here"), "{told}");
    assert!(told.contains("was trained on") && told.contains("--data"), "{told}");
}

/// Writes the manifest of a checkpoint anew, with its seal.
fn rewrite(checkpoint: &Path, change: impl FnOnce(&mut Manifest)) {
    let path = checkpoint.join("manifest.json");
    let mut manifest = Manifest::parse(&fs::read(&path).expect("read")).expect("a manifest");
    change(&mut manifest);
    fs::write(&path, manifest.to_bytes()).expect("written");
}

#[test]
fn a_manifest_that_this_program_cannot_use_is_refused_with_what_to_do() {
    let world = saved_run();
    let store = orphaned_store(&world, world.launch(&["--workers", "2"]), 20);
    let newest = complete_checkpoints(&store).pop().expect("one");
    let told = || {
        let (ended, run) = resume(&world, &store, &["--workers", "2"]);
        assert!(run.is_none() && !store.with_extension("run").exists(), "{ended:?}");
        ended.block().to_string()
    };
    rewrite(&newest, |manifest| manifest.tensors[0].name = "another".into());
    let block = told();
    for words in ["of another model", "another", "resume it with the program that began it"] {
        assert!(block.contains(words), "no \"{words}\" in {block}");
    }
    rewrite(&newest, |manifest| manifest.format = 99);
    let block = told();
    let words = ["its format is 99", "Use a program of the version that wrote it", "with --step"];
    for words in words {
        assert!(block.contains(words), "no \"{words}\" in {block}");
    }
}

/// The operator's program claims the store before it reads where the run goes on, when no worker is
/// there yet. A cluster that has another run claims nothing.
#[test]
fn a_store_is_claimed_for_daemons_that_may_take_its_run_before_it_is_read() {
    let world = saved_run();
    let store = orphaned_store(&world, world.launch(&["--workers", "2"]), 10);
    let claims = || fs::read_dir(store.join("claims")).expect("a folder").count();
    let group = CoordinatorGroup::found(&world.path("coordinators"), 1, &[]);
    let dir = group.members[0].dir.clone();
    let ask = |verb: &[&str]| world.start(&[verb, &["--dir", show(&dir)]].concat()).end();
    let config = fs::read_to_string(world.config()).expect("a configuration");
    let other = format!("{config}checkpoint.path = \"{}\"\n", show(&world.path("other")));
    let submitted = ask(&["run", "submit", show(&world.write("other.toml", &other))]);
    assert_eq!(submitted.code, Some(0), "{submitted:?}");
    let refused = ask(&["run", "submit", "--from", show(&store)]);
    assert_eq!((refused.code, claims()), (Some(1), 1), "{refused:?}");
    assert!(refused.stderr.contains("another run. Cancel it or wait"), "{refused:?}");
    let cancelled = ask(&["run", "cancel"]);
    assert_eq!(cancelled.code, Some(0), "{cancelled:?}");
    let submitted = ask(&["run", "submit", "--from", show(&store)]);
    assert_eq!((submitted.code, claims()), (Some(0), 2), "{submitted:?}");
}

/// The store's service is never asked: the machine has no role of a cloud either.
#[test]
fn a_url_without_credentials_says_which_variables_are_missing() {
    let world = World::new();
    for (url, variable) in [
        ("s3://bucket/run", "AWS_ACCESS_KEY_ID"),
        ("gs://bucket/run", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://bucket/run", "AZURE_STORAGE_ACCOUNT_NAME"),
    ] {
        let mut command = world.command(&["resume", url]);
        command.env("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9");
        command.env("HOME", world.path("home"));
        let ended = Program::start(command).end();
        assert!(matches!(ended.code, Some(1 | 2)), "{ended:?}");
        let block = ended.block();
        assert!(block.contains(url) && block.contains(variable), "{block}");
        assert!(block.contains("next: "), "{block}");
    }
}

/// Each worker sees a folder of its own behind the same absolute path.
#[test]
fn a_directory_that_not_all_workers_see_is_told_by_event_and_status_with_what_to_do() {
    let world = World::new().with("run.steps", 1_000_000).with("checkpoint.every", 2);
    let world = world.with("checkpoint.path", "/proc/self/cwd/store");
    let world = world.with("checkpoint.on_failure", "pause").with("run.start_workers", 2);
    let group = CoordinatorGroup::found(&world.path("coordinators"), 1, &[]);
    let (founder, addresses) = (&group.members[0], group.addresses());
    let token = format!("@{}", show(&founder.dir.join("join.token")));
    let join = ["worker", "--coordinators", &addresses, "--join", &token, "--dir", "models"];
    let _workers = ["here", "there"].map(|name| {
        let folder = world.path(name);
        fs::create_dir(&folder).expect("a folder");
        let mut command = world.command(&join);
        command.current_dir(folder);
        Program::start(command)
    });
    let ask = |verb: &[&str]| {
        let ended = world.start(&[verb, &["--dir", show(&founder.dir), "--json"]].concat()).end();
        serde_json::from_str::<Value>(&ended.stdout).unwrap_or_else(|_| panic!("{ended:?}"))
    };
    ask(&["run", "submit", show(&world.config())]);
    let paused =
        until("a pause", || Some(ask(&["run", "status"])).filter(|run| run["state"] == "paused"));
    let words = "state a directory that all workers see";
    let status = paused["status"].as_str().expect("words");
    assert!(status.contains("/proc/self/cwd/store") && status.contains(words), "{status}");
    let [events, _] = founder.history().expect("a history");
    let failed = events.iter().find(|event| event["event"] == "checkpoint_failed");
    let reason = failed.expect("an event")["reason"].as_str().expect("words");
    assert!(reason.contains(words), "{reason}");
    assert!(!events.iter().any(|event| event["event"] == "checkpoint"), "none is listed");
}

//! Stores with damage of every kind, and runs that go on from them: on daemons, in the run's own
//! directory, and on a new local cluster. All of them take the newest checkpoint that is whole.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::world::{
    CoordinatorGroup, Program, Signal, World, complete_checkpoints, flip_a_bit, part_of, show,
    step_of, until,
};

const STEPS: i64 = 600;
/// How many checkpoints a run keeps.
const KEPT: usize = 6;

/// A run that keeps more checkpoints than there are kinds of damage.
fn saved_run() -> World {
    let world = World::lasting(STEPS).with("checkpoint.every", 10);
    world.with("checkpoint.keep", KEPT as i64)
}

/// Damages the newest five checkpoints of a store, each in another way. Returns the step of the
/// newest whole one.
fn damage(store: &Path) -> u64 {
    let folders = complete_checkpoints(store);
    let [.., whole, bare, foreign, cut, flipped, gone] = &folders[..] else {
        panic!("too few checkpoints: {folders:?}")
    };
    fs::remove_file(part_of(gone)).expect("removed");
    let bytes = fs::read(part_of(cut)).expect("read");
    fs::write(part_of(cut), &bytes[..bytes.len() - 4]).expect("written");
    fs::remove_file(bare.join("manifest.json")).expect("removed");
    fs::copy(part_of(whole), part_of(foreign)).expect("copied");
    flip_a_bit(flipped);
    step_of(whole)
}

/// Kills a run that has as many checkpoints as it keeps. Returns its directory.
fn killed_run(world: &World) -> PathBuf {
    let run = world.launch(&["--workers", "2"]);
    let store = run.dir.join("checkpoints");
    run.until("enough checkpoints", || {
        (store.is_dir() && complete_checkpoints(&store).len() >= KEPT).then_some(())
    });
    run.program.signal(Signal::KILL);
    run.program.end();
    run.dir
}

/// A copy of a run's directory or of a store.
pub fn copied(from: &Path, to: &Path) {
    fs::create_dir(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder").map(|entry| entry.expect("one").path()) {
        let name = to.join(entry.file_name().expect("a name"));
        if entry.is_dir() {
            copied(&entry, &name);
        } else {
            fs::copy(&entry, &name).expect("copied");
        }
    }
}

/// Goes on with the run of a store on a local cluster. Returns the hash, and the step after which
/// it went on for good.
fn on_a_local_cluster(world: &World, from: &Path, dir: &Path) -> (String, u64) {
    let report = dir.with_extension("json");
    let flags = ["--workers", "2", "--dir", show(dir), "--report", show(&report)];
    let ended = world.start(&[&["resume", show(from)], &flags[..]].concat()).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report = fs::read_to_string(&report).expect("a report");
    let report: Value = serde_json::from_str(&report).expect("JSON");
    let events = fs::read_to_string(dir.join("events.jsonl")).expect("events");
    let events: Vec<Value> =
        events.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    (report["state_hash"].as_str().expect("a hash").into(), last_restored(&events))
}

/// The step to which the last rollback or the beginning went.
fn last_restored(events: &[Value]) -> u64 {
    let step = |event: &Value| match event["event"].as_str() {
        Some("continued") => event["step"].as_u64(),
        Some("rollback") => event["to"].as_u64(),
        _ => None,
    };
    events.iter().rev().find_map(step).expect("it was restored")
}

#[test]
fn i12_damage_of_every_kind_is_passed_over_by_daemons_directories_and_new_clusters() {
    let world = saved_run();
    let wanted = World::lasting(STEPS).with("checkpoint.every", 10).undisturbed();
    let dir = killed_run(&world);
    let store = world.path("store");
    fs::rename(dir.join("checkpoints"), &store).expect("moved");
    let whole = damage(&store);
    let (local, daemons) = (world.path("local"), world.path("daemons"));
    copied(&store, &local);
    copied(&store, &daemons);

    assert_eq!(on_a_local_cluster(&world, &local, &world.path("new")), (wanted.clone(), whole));
    fs::rename(&store, dir.join("checkpoints")).expect("moved back");
    assert_eq!(on_a_local_cluster(&world, &dir, &dir), (wanted.clone(), whole));
    on_daemons(&world, &daemons, (&wanted, whole));
}

/// Daemons that have never heard of a run go on with it. Before, they have one whose store cannot
/// be used, and say so before its first checkpoint is due.
fn on_daemons(world: &World, store: &Path, (wanted, whole): (&str, u64)) {
    let group = CoordinatorGroup::found(&world.path("coordinators"), 1, &[]);
    let dir = group.members[0].dir.clone();
    let (addresses, token) = (group.addresses(), format!("@{}", show(&dir.join("join.token"))));
    let join = ["worker", "--coordinators", &addresses, "--join", &token];
    let ask = |verb: &[&str]| world.start(&[verb, &["--dir", show(&dir), "--json"]].concat()).end();
    let status =
        || -> Value { serde_json::from_str(&ask(&["run", "status"]).stdout).unwrap_or_default() };
    let config = fs::read_to_string(world.config()).expect("a configuration");
    let config = config.replace("checkpoint.every = 10", "checkpoint.every = 1000000");
    let config = config.replace(&format!("run.steps = {STEPS}"), "run.steps = 1000000");
    let place = world.path("nowhere");
    let nowhere = format!("{config}checkpoint.path = \"{}\"\n", place.display());
    let submitted = ask(&["run", "submit", show(&world.write("nowhere.toml", &nowhere))]);
    assert_eq!(submitted.code, Some(0), "{submitted:?}");
    fs::write(&place, "a file, and no folder").expect("written");
    let workers: Vec<Program> = (0..2).map(|_| world.start(&join)).collect();
    let words = "cannot use the store of the checkpoints";
    let says = || status()["status"].as_str().is_some_and(|it| it.contains(words)).then_some(());
    until("the status tells of the store", says);
    let cancelled = ask(&["run", "cancel"]);
    assert_eq!(cancelled.code, Some(0), "{cancelled:?}");

    let refused = ask(&["run", "submit", "--from", show(store), "--step", "7"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    let damaged = step_of(complete_checkpoints(store).last().expect("a checkpoint")).to_string();
    let before = names(store);
    let refused = ask(&["run", "submit", "--from", show(store), "--step", &damaged]);
    let block = refused.block();
    assert!(block.contains(&format!("the checkpoint of step {damaged} is damaged")), "{block}");
    assert_eq!((refused.code, names(store)), (Some(1), before), "the store is not claimed");
    let submitted = ask(&["run", "submit", "--from", show(store)]);
    assert_eq!(submitted.code, Some(0), "{submitted:?}");
    let told = &submitted.stderr;
    assert!(told.contains("is passed over") && told.contains("goes on from the"), "{told}");
    let over = until("the end", || Some(status()).filter(|run| run["state"] == "complete"));
    assert_eq!(over["hash"], wanted);
    let [events, _] = group.members[0].history().expect("a history");
    assert_eq!(last_restored(&events), whole);
    let model = store.join("model.safetensors");
    assert!(model.is_file(), "the model is in the store");
    drop(workers);

    fs::rename(store, world.path("elsewhere")).expect("moved");
    let flags = ["--dir", show(&dir)];
    let folder = world.path("exported");
    for verb in [&["export", show(&folder)][..], &["rm", "--step", "1"]] {
        let refused = world.start(&[&["checkpoint"], verb, &flags].concat()).end();
        let block = refused.block();
        assert!(block.contains(show(store)) && block.contains("the workers' machines"), "{block}");
        assert_eq!(refused.code, Some(2), "{block}");
    }
}

/// The names of what lies in a folder.
fn names(folder: &Path) -> Vec<OsString> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("one"));
    let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
    names.sort();
    names
}

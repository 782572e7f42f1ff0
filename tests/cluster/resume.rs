//! Checkpoints of real processes: what is written, and how a run goes on when all have died.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::damaged::copied;
use crate::world::{
    Ended, Launched, Run, Signal, World, complete_checkpoints, flip_a_bit, show, step_of,
};

/// The small run with so many steps, and a checkpoint every ten of them.
fn saved_run(steps: i64) -> World {
    World::lasting(steps).with("checkpoint.every", 10)
}

/// The steps of the checkpoints that the run has told of so far.
fn listed(run: &Launched) -> Vec<u64> {
    let events = run.lines("events.jsonl");
    let listed = events.iter().filter(|event| event["event"] == "checkpoint");
    listed.map(|event| event["step"].as_u64().expect("a step")).collect()
}

/// Kills the launcher, and all other processes with it, once a step at or after this one is listed.
fn kill_after(run: Launched, step: u64) -> PathBuf {
    let is_there = || listed(&run).last().is_some_and(|newest| *newest >= step).then_some(());
    run.until("the checkpoint", is_there);
    run.program.signal(Signal::KILL);
    run.program.end();
    run.dir
}

fn resume(world: &World, dir: &Path, flags: &[&str]) -> (Ended, Option<Run>) {
    let report = dir.with_extension("resumed.json");
    let ours = ["resume", show(dir), "--report", show(&report)];
    let ended = world.start(&[&ours[..], flags].concat()).end();
    let run = (ended.code == Some(0)).then(|| Run::read(dir.into(), &report, ended.stdout.clone()));
    (ended, run)
}

/// The step that each rollback went back to.
fn rollbacks(run: &Run) -> Vec<u64> {
    let events = run.lines("events.jsonl");
    let rollbacks = events.iter().filter(|event| event["event"] == "rollback");
    rollbacks.map(|event| event["to"].as_u64().expect("a step")).collect()
}

#[test]
fn i12_a_run_whose_processes_all_died_goes_on_with_any_number_of_workers() {
    const STEPS: i64 = 200;
    let world = saved_run(STEPS);
    let wanted = world.undisturbed();
    for (step, workers) in [(10, "1"), (30, "2"), (20, "3"), (50, "5")] {
        let dir = kill_after(world.launch(&["--workers", "2"]), step);
        let (ended, run) = resume(&world, &dir, &["--workers", workers]);
        let run = run.unwrap_or_else(|| panic!("{ended:?}"));
        assert_eq!(run.hash(), wanted, "{workers} workers");
        run.assert_one_history(STEPS as u64);
        let to = rollbacks(&run);
        assert!(to.len() == 1 && to[0] >= step, "from a checkpoint, and not from scratch: {to:?}");
    }
}

#[test]
fn i12_a_damaged_checkpoint_is_named_and_an_older_one_is_taken() {
    const STEPS: i64 = 200;
    let world = saved_run(STEPS);
    let dir = kill_after(world.launch(&["--workers", "2"]), 30);
    // The newest one may be complete and never listed. Then the run would not ask for it.
    let folders = complete_checkpoints(&dir.join("checkpoints"));
    let late = folders.iter().filter(|folder| step_of(folder) >= 30);
    let flipped: Vec<String> = late.map(|folder| flip_a_bit(folder)).collect();
    let (ended, run) = resume(&world, &dir, &["--workers", "2"]);
    let run = run.unwrap_or_else(|| panic!("{ended:?}"));
    assert_eq!(run.hash(), world.undisturbed());
    run.assert_one_history(STEPS as u64);
    let events = run.lines("events.jsonl");
    let damaged = events.iter().find(|event| event["event"] == "checkpoint_damaged");
    let reason = damaged.expect("an event")["reason"].as_str().expect("words");
    let is_named = flipped.iter().any(|name| reason.contains(name));
    assert!(is_named && reason.contains("parameter shard"), "{reason}");
}

/// Neither a store that is not at its place, nor a copy of the run's directory, nor a damaged
/// checkpoint that was asked for, costs the run another one.
#[test]
fn what_cannot_be_restored_is_refused_before_anything_is_undone() {
    const STEPS: i64 = 200;
    let world = saved_run(STEPS).with("checkpoint.keep", 100);
    let dir = kill_after(world.launch(&["--workers", "2"]), 20);
    let moved = world.path("moved");
    fs::rename(&dir, &moved).expect("moved");
    let (refused, _) = resume(&world, &moved, &["--workers", "1"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("move the run's directory back"), "{refused:?}");
    fs::rename(&moved, &dir).expect("moved back");
    let copy = world.path("copy");
    copied(&dir, &copy);
    let (refused, _) = resume(&world, &copy, &["--workers", "1"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    let fork = format!("everstep resume {}", copy.join("checkpoints").display());
    assert!(refused.stderr.contains(&fork), "{refused:?}");
    let manifest = dir.join("checkpoints/step-000010/manifest.json");
    let whole = fs::read(&manifest).expect("a manifest");
    fs::write(&manifest, &whole[..whole.len() / 2]).expect("cut");
    let (refused, _) = resume(&world, &dir, &["--workers", "1", "--step", "10"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("the checkpoint of step 10 is damaged"), "{refused:?}");
    fs::write(&manifest, whole).expect("mended");
    let (ended, run) = resume(&world, &dir, &["--workers", "1", "--step", "10"]);
    let run = run.unwrap_or_else(|| panic!("{ended:?}"));
    assert_eq!(run.hash(), world.undisturbed());
    assert_eq!(rollbacks(&run), [10]);
    run.assert_one_history(STEPS as u64);
}

#[test]
fn what_is_kept_is_listed_verified_and_exported() {
    // A busy disk may skip every checkpoint but the first one and that of the last step.
    let world = World::lasting(40).with("checkpoint.every", 20);
    let world = world.with("checkpoint.keep", 1).with("checkpoint.keep_every", 20);
    let run = world.train(&["--workers", "3"]);
    let model = run.dir.join("checkpoints/model.safetensors");
    let host = run.report["model_host"].as_str().expect("a directory is on a machine");
    let stored = format!("  stored      {host}:{}", model.display());
    assert!(run.stdout.contains(&stored), "{}", run.stdout);
    assert_eq!(run.report["model"], show(&model));
    let ask = |arguments: &[&str]| {
        world.start(&[&["checkpoint"], arguments, &["--dir", show(&run.dir)]].concat()).end()
    };
    let told = ask(&["ls", "--json"]);
    let told: Value = serde_json::from_str(&told.stdout).unwrap_or_else(|_| panic!("{told:?}"));
    let told = told.as_array().expect("a list");
    let steps: Vec<u64> = told.iter().filter_map(|it| it["step"].as_u64()).collect();
    assert!(steps.ends_with(&[20, 40]), "{steps:?}");
    assert!(told.iter().rev().take(2).all(|it| it["complete"] == true), "{told:?}");
    assert_eq!(told.last().expect("one")["state_hash"], run.hash());
    let verified = ask(&["verify"]);
    assert_eq!(verified.code, Some(0), "{verified:?}");
    let folder = world.path("exported");
    let exported = ask(&["export", show(&folder)]);
    assert_eq!(exported.code, Some(0), "{exported:?}");
    let files = ["config.json", "model.safetensors"];
    assert!(files.iter().all(|file| folder.join(file).is_file()), "{exported:?}");

    let refused = ask(&["rm", "--step", "40"]);
    assert_ne!(refused.code, Some(0), "the newest one stays: {refused:?}");
    let store = run.dir.join("checkpoints");
    for (flags, step) in
        [(&["rm", "--step", "20"][..], 20), (&["rm", "--step", "40", "--force"], 40)]
    {
        assert!(store.join(format!("step-{step:06}/manifest.json")).is_file());
        let removed = ask(flags);
        assert_eq!(removed.code, Some(0), "{removed:?}");
        let folder = store.join(format!("step-{step:06}"));
        assert!(!folder.join("manifest.json").exists(), "{removed:?}");
    }
    let missing = ask(&["verify", "--step", "40"]);
    assert!(missing.block().contains("next: `everstep checkpoint ls`"), "{missing:?}");
}

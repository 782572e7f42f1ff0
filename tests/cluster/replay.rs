//! Steps that are trained again from a checkpoint, and compared with what was recorded.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::world::{Ended, World, show};

fn replay(world: &World, dir: &Path, flags: &[&str]) -> (Ended, Value) {
    let verb = ["checkpoint", "verify", "--json", "--dir", show(dir)];
    let ended = world.start(&[&verb[..], flags].concat()).end();
    let told = serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{ended:?}"));
    (ended, told)
}

#[test]
fn a_replay_finds_each_step_that_is_not_as_recorded() {
    // A busy disk may skip every checkpoint but the first one and that of the last step.
    let world = World::lasting(60).with("checkpoint.every", 30);
    let run = world.train(&["--workers", "2"]);
    let files = fs::read_dir(run.dir.join("checkpoints")).expect("a store").count();
    let (ended, told) = replay(&world, &run.dir, &["--replay", "7"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(told["steps"].as_u64().is_some_and(|steps| steps > 0), "{told}");
    assert_eq!(told["differences"], serde_json::json!([]));
    // The store has the lines, too.
    let store = run.dir.join("checkpoints");
    let (ended, told) = replay(&world, &store, &["--replay", "7"]);
    assert_eq!((ended.code, &told["differences"]), (Some(0), &serde_json::json!([])), "{ended:?}");
    // The next checkpoint is among the steps.
    let (ended, compared) = replay(&world, &store, &["--replay", "30", "--step", "30"]);
    assert_eq!((ended.code, &compared["state_hashes"]), (Some(0), &1.into()), "{ended:?}");
    assert_eq!(compared["differences"], serde_json::json!([]));
    let after = fs::read_dir(run.dir.join("checkpoints")).expect("a store").count();
    assert_eq!(after, files, "the store is only read");

    // The data have moved.
    let text = world.path("text.txt");
    let moved = world.path("moved.txt");
    fs::rename(&text, &moved).expect("moved");
    let verb = ["checkpoint", "verify", "--dir", show(&store), "--replay", "1"];
    let refused = world.start(&verb).end();
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.block().contains("name with --data where they are now"), "{refused:?}");
    let (ended, told_of) = replay(&world, &store, &["--replay", "1", "--data", show(&moved)]);
    assert_eq!((ended.code, &told_of["steps"]), (Some(0), &1.into()), "{ended:?}");
    fs::rename(&moved, &text).expect("moved back");

    let path = run.dir.join("metrics.jsonl");
    let mut lines: Vec<Value> = run.lines("metrics.jsonl");
    let step = told["checkpoint"].as_u64().expect("a step") + 2;
    lines[step as usize - 1]["loss"] = 1.0.into();
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(path, text).expect("written");
    let from = (step - 2).to_string();
    let (ended, told) = replay(&world, &run.dir, &["--replay", "4", "--step", &from]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.block().contains("the replay differs from what was recorded"), "{ended:?}");
    let differences = told["differences"].as_array().expect("a list");
    let steps: Vec<&Value> = differences.iter().map(|it| &it["step"]).collect();
    assert_eq!(steps, [step]);
}

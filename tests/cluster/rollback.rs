//! Real processes whose run an operator lets go back to a checkpoint.

use serde_json::Value;

use crate::world::{Ended, Launched, World, complete_checkpoints, flip_a_bit, show, step_of};

/// Runs a verb for a run under way.
fn ask(world: &World, run: &Launched, verb: &[&str]) -> Ended {
    world.start(&[verb, &["--dir", show(&run.dir), "--json"]].concat()).end()
}

/// The answer of a verb, which must succeed.
fn told(world: &World, run: &Launched, verb: &[&str]) -> Value {
    let ended = ask(world, run, verb);
    assert_eq!(ended.code, Some(0), "{verb:?}: {ended:?}");
    serde_json::from_str(&ended.stdout).expect("JSON")
}

/// The steps of the events of this kind: of a rollback the one that it went back to.
fn steps(run: &Launched, kind: &str, key: &str) -> Vec<u64> {
    let events = run.lines("events.jsonl").into_iter().filter(|event| event["event"] == kind);
    events.map(|event| event[key].as_u64().expect("a step")).collect()
}

/// A rollback deletes the later checkpoints. So one that cannot be restored is noticed before.
#[test]
fn a_rollback_to_a_damaged_checkpoint_is_an_error_and_undoes_nothing() {
    const STEPS: i64 = 300;
    let world = World::lasting(STEPS).with("checkpoint.every", 10);
    let world = world.with("checkpoint.keep", 100);
    let wanted = world.undisturbed();
    let run = world.launch(&["--workers", "2"]);
    run.until("checkpoints", || (run.count("checkpoint") >= 2).then_some(()));
    told(&world, &run, &["run", "pause"]);
    let folders = complete_checkpoints(&run.dir.join("checkpoints"));
    let [damaged, whole] = [&folders[0], &folders[1]].map(|folder| step_of(folder).to_string());
    let file = flip_a_bit(&folders[0]);

    let refused = ask(&world, &run, &["run", "rollback", "--step", &damaged]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let words = format!("nothing was undone: the checkpoint of step {damaged} is damaged");
    let block = refused.block();
    let names = block.contains(&file) && block.contains("parameter shard");
    assert!(block.contains(&words) && names, "{refused:?}");
    assert_eq!(steps(&run, "rollback", "to"), [0; 0]);
    let left = complete_checkpoints(&run.dir.join("checkpoints"));
    assert!(folders.iter().all(|folder| left.contains(folder)), "{folders:?}, and now {left:?}");

    told(&world, &run, &["run", "rollback", "--step", &whole]);
    let whole: u64 = whole.parse().expect("a step");
    run.until("it goes back", || (steps(&run, "rollback", "to") == [whole]).then_some(()));
    told(&world, &run, &["run", "resume"]);
    let damaged: u64 = damaged.parse().expect("a step");
    assert_eq!(steps(&run, "checkpoint_damaged", "step"), [damaged]);
    let run = run.complete();
    assert_eq!(run.hash(), wanted);
    run.assert_one_history(STEPS as u64);
}

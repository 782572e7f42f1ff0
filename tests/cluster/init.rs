//! Runs that begin with given weights.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::world::{Run, Signal, World, show, until};

/// A run of so many steps at this learning rate, with a checkpoint at its end.
fn world(steps: i64, learning_rate: f64) -> World {
    learning(World::new().with("run.steps", steps), learning_rate)
}

fn learning(world: World, learning_rate: f64) -> World {
    world
        .with("checkpoint.every", 1_000)
        .with("optimizer.warmup_steps", 0)
        .with("optimizer.learning_rate", learning_rate)
}

fn validation(run: &Run) -> f64 {
    run.report["loss"]["validation"].as_f64().expect("a loss")
}

/// The weights of a run, in a folder that `transformers` loads.
fn export(world: &World, run: &Run, dtype: &str) -> PathBuf {
    let folder = world.path(&format!("weights-{dtype}"));
    let verb = ["checkpoint", "export", show(&folder), "--dtype", dtype, "--dir", show(&run.dir)];
    let ended = world.start(&verb).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    folder
}

#[test]
fn a_fine_tuned_run_goes_on_where_the_trained_one_ended() {
    let trained = world(60, 1e-2);
    let run = trained.train(&["--workers", "2"]);
    let fresh = world(1, 1e-9).train(&["--workers", "1"]);
    assert!(validation(&run) < validation(&fresh) - 0.5, "it has learned something");
    for (dtype, near) in [("f32", 1e-5), ("bf16", 0.02)] {
        let weights = export(&trained, &run, dtype);
        // So small a rate changes nothing that the loss would show.
        let tuned = world(1, 1e-9).with("model.init", show(&weights));
        let again = tuned.train(&["--workers", "3"]);
        let (before, after) = (validation(&run), validation(&again));
        assert!((after - before).abs() < near, "{dtype}: {before}, then {after}");
        let alone = tuned.train(&["--workers", "1"]);
        assert_eq!(alone.hash(), again.hash(), "for any number of workers");
    }
}

#[test]
fn weights_that_do_not_fit_are_refused_by_the_tensor_before_a_worker_starts() {
    let small = world(2, 1e-3);
    let run = small.train(&["--workers", "1"]);
    let weights = export(&small, &run, "f32");
    let refused = |world: World| {
        let config = world.config();
        let ended = world.start(&["train", "--dry-run", "--config", show(&config)]).end();
        assert_eq!(ended.code, Some(2), "{ended:?}");
        ended.block().to_string()
    };
    let told = refused(world(2, 1e-3).with("model.width", 64).with("model.init", show(&weights)));
    assert!(told.contains("model.init is \"") && told.contains("tensor \"wte.weight\""), "{told}");
    let told = refused(world(2, 1e-3).with("model.layers", 3).with("model.init", show(&weights)));
    assert!(told.contains("there is no tensor \"h.2."), "{told}");
    let told = refused(world(2, 1e-3).with("model.init", "/nowhere/at/all"));
    assert!(told.contains("there is no such folder"), "{told}");
}

#[test]
fn a_worker_that_sees_other_weights_says_so_and_the_run_waits_for_the_true_ones() {
    let first = world(2, 1e-3);
    let run = first.train(&["--workers", "1"]);
    let weights = export(&first, &run, "f32");
    let tuned = world(2, 1e-3).with("model.init", show(&weights));
    let begun = tuned.train(&["--workers", "1"]);
    let run_json = begun.dir.join("run.json");
    let spec: Value =
        serde_json::from_str(&fs::read_to_string(&run_json).expect("read")).expect("JSON");
    let digest = spec["model"]["init"]["digest"].as_str().expect("a digest");
    assert!(digest.len() == 64 && digest.contains(|digit| digit != '0'), "{digest}");
    let file = weights.join("model.safetensors");
    let whole = fs::read(&file).expect("weights");
    let mut bytes = whole.clone();
    let last = bytes.len() - 2;
    bytes[last] ^= 1; // a bit of a mantissa or of an exponent
    fs::write(&file, bytes).expect("written");
    // The specification still states the weights that were there.
    let mut founder = tuned.start(&["coordinator", "--dir", "one", "--bootstrap"]);
    let line: Value =
        serde_json::from_str(&founder.line().expect("a line")).expect("a line of JSON");
    let address = line["address"].as_str().expect("an address");
    let one = tuned.path("one");
    let submitted = tuned.start(&["run", "submit", show(&run_json), "--dir", show(&one)]).end();
    assert_eq!(submitted.code, Some(0), "{submitted:?}");
    let token = format!("@{}", show(&one.join("join.token")));
    let _worker = tuned.start(&["worker", "--coordinators", address, "--join", &token]);
    let words = "are not those that the run was submitted with";
    let status = || tuned.start(&["run", "status", "--dir", show(&one)]).end();
    until("the worker's words", || status().stdout.contains(words).then_some(()));
    fs::write(&file, whole).expect("written");
    until("the end", || status().stdout.contains("complete").then_some(()));
}

/// Kills a run of two workers after this step, with all of its processes.
fn kill_after(world: &World, step: usize) -> PathBuf {
    let run = world.launch(&["--workers", "2"]);
    let is_saved = || run.count("checkpoint") > 0 && run.lines("metrics.jsonl").len() > step;
    run.until("a checkpoint", || is_saved().then_some(()));
    run.program.signal(Signal::KILL);
    run.program.end();
    run.dir
}

/// A checkpoint has all that the run needs.
#[test]
fn i12_a_run_goes_on_and_takes_joiners_when_its_initial_weights_are_gone() {
    let first = world(2, 1e-3);
    let weights = export(&first, &first.train(&["--workers", "1"]), "f32");
    let tuned = learning(World::lasting(300), 1e-3);
    let tuned = tuned.with("model.init", show(&weights)).with("checkpoint.every", 5);
    let wanted = tuned.undisturbed();
    let (here, moved) = (kill_after(&tuned, 10), kill_after(&tuned, 20));
    let joined = tuned.launch(&["--workers", "1"]);
    joined.until_step(3);
    let ask = |verb| {
        let ended = tuned.start(&["run", verb, "--dir", show(&joined.dir)]).end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
    };
    ask("pause");
    fs::remove_dir_all(&weights).expect("removed");
    let _joiner = tuned.join(&joined);
    joined.until_whole(2);
    ask("resume");
    assert_eq!(joined.complete().hash(), wanted, "a worker has joined");
    for (from, workers) in [(here, "3"), (moved.join("checkpoints"), "1")] {
        let report = from.with_extension("resumed.json");
        let resume = ["resume", show(&from), "--workers", workers, "--report", show(&report)];
        let ended = tuned.start(&resume).end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert_eq!(Run::read(from, &report, ended.stdout).hash(), wanted, "{workers} workers");
    }
}

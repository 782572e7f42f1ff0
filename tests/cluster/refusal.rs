//! Refusals in words: invalid configurations, data, and workers that do not belong to the run.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use everstep_kernels::device::DeviceChoice;
use everstep_worker::builtin;
use everstep_worker::daemon::{self, WorkerOptions};

use crate::world::{CoordinatorGroup, Ended, Launched, Member, World, show};

/// The program refused its input: exit code 2, and these words in one block.
fn assert_refused(ended: &Ended, words: &str) {
    assert_eq!(ended.code, Some(2), "{words}: {ended:?}");
    assert!(ended.block().contains(words), "{words}: {ended:?}");
    assert_eq!(ended.stdout, "", "stdout is for data");
}

#[test]
fn a_setting_that_cannot_be_is_refused() {
    for (key, value, words) in [
        ("model.hads", "2".into(), "did you mean \"model.heads\"?"),
        ("run.steps", "many".into(), "run.steps is \"many\", but must be a whole number"),
        ("run.steps", 0.into(), "run.steps is 0"),
        ("model.heads", 3.into(), "model.heads is 3, which does not divide model.width = 16"),
        ("model.kind", "gtp".into(), "there is no model named \"gtp\". This program has "),
        ("batch.data_shards", 0.into(), "batch.data_shards is 0"),
        ("redundancy.copies", 0.into(), "redundancy.copies is 0"),
        ("optimizer.learning_rate", f64::NAN.into(), "optimizer.learning_rate is NaN"),
        ("optimizer.learning_rate", toml::Value::from(-1e-3), "optimizer.learning_rate is -0.001"),
        ("optimizer.weight_decay", f64::INFINITY.into(), "optimizer.weight_decay is inf"),
        ("data.path", "nowhere.txt".into(), "\"nowhere.txt\", which cannot be read"),
    ] {
        let ended = World::new().with(key, value).launch(&[]).program.end();
        assert_refused(&ended, words);
        assert_refused(&ended, "run.toml");
    }
}

#[test]
fn a_store_that_cannot_keep_checkpoints_is_refused_before_anything_starts() {
    let world = World::new().with("checkpoint.every", 5).with("checkpoint.path", "taken/store");
    world.write("taken", "a file, and no folder");
    for flags in [&[][..], &["--dry-run"]] {
        let run = world.launch(flags);
        let dir = run.dir.clone();
        let ended = run.program.end();
        assert_refused(&ended, "the store of the checkpoints cannot be used");
        assert!(!dir.exists(), "no run has begun");
    }
}

#[test]
fn a_flag_that_cannot_be_is_refused() {
    for (flags, words) in [
        (&["--workers", "0"][..], "--workers"),
        (&["--copies", "0"], "--copies"),
        (&["--steps", "0"], "--steps"),
        (&["--coordinators", "2"], "it must be 1, 3 or 5"),
    ] {
        assert_refused(&World::new().launch(flags).program.end(), words);
    }
}

#[test]
fn a_configuration_that_cannot_be_read_is_refused() {
    let world = World::new();
    world.write("broken.toml", "[run\n");
    fs::write(world.path("latin.toml"), [b'#', 0xe9]).unwrap();
    for name in ["nowhere.toml", ".", "broken.toml", "latin.toml"] {
        assert_refused(&world.start(&["train", "--config", name]).end(), name);
    }
}

#[test]
fn a_text_that_nothing_can_be_learned_from_is_refused() {
    let world = World::new();
    world.write("empty.txt", "");
    world.write("short.txt", "too short");
    fs::create_dir(world.path("empty")).unwrap();
    world.write("list", "nowhere.txt\n");
    for (data, words) in [
        ("empty.txt", "the training text has 0 bytes"),
        ("short.txt", "the training text has 9 bytes"),
        ("empty", "no file in "),
        ("@list", "nowhere.txt"),
        ("/dev/zero", "it is not a regular file"),
    ] {
        let ended = world.launch(&["--data", data]).program.end();
        assert_refused(&ended, words);
        assert_refused(&ended, "--data");
    }
}

#[test]
fn a_directory_with_another_run_is_refused_and_left_alone() {
    let world = World::new();
    let first = world.train(&[]);
    let before = fs::read(first.dir.join("metrics.jsonl")).unwrap();
    let config = world.config();
    let again = ["train", "--config", show(&config), "--dir", show(&first.dir)];
    assert_refused(&world.start(&again).end(), "it holds a run already");
    assert_eq!(fs::read(first.dir.join("metrics.jsonl")).unwrap(), before);
}

#[test]
fn a_directory_is_free_again_after_a_refusal() {
    let world = World::new();
    let dir = world.path("run");
    let train = |data| {
        let config = world.config();
        let arguments = ["train", "--config", show(&config), "--dir", show(&dir), "--data", data];
        world.start(&arguments).end()
    };
    world.write("empty.txt", "");
    assert_refused(&train("empty.txt"), "0 bytes");
    assert_eq!(train("text.txt").code, Some(0));
}

/// A run that waits for a second worker. The first is there.
fn half_a_cluster(world: &World) -> Launched {
    let run = world.launch(&["--workers", "1"]);
    run.until_workers(1, "waiting");
    run
}

fn refusals(run: &Launched) -> Vec<String> {
    let text = fs::read_to_string(run.dir.join("events.jsonl")).unwrap_or_default();
    text.lines().filter(|line| line.contains("\"refused\"")).map(str::to_string).collect()
}

#[test]
fn a_worker_with_other_data_is_refused_and_one_with_the_same_completes_the_run() {
    let world = World::new().with("run.start_workers", 2);
    let run = half_a_cluster(&world);
    let text = fs::read_to_string(world.path("text.txt")).unwrap();
    world.write("text.txt", &text.replacen("worker", "Worker", 1));
    let refused = world.join(&run).end();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    for words in ["differs from worker-", ", which registered first: data ", ", not "] {
        assert!(refused.block().contains(words), "{refused:?}");
    }
    let told = run.until("the refusal is an event", || refusals(&run).pop());
    assert!(told.contains("which registered first: data "), "{told}");

    world.write("text.txt", &text);
    let second = world.join(&run);
    let joined = run.complete();
    assert_eq!(second.end().code, Some(0));
    joined.assert_whole(12, 8, 2);
    assert_eq!(joined.hash(), world.train(&["--workers", "2"]).hash());
}

#[test]
fn a_worker_whose_program_has_another_model_is_refused() {
    let world = World::new().with("run.start_workers", 2);
    let run = half_a_cluster(&world);
    let wider = builtin::registry().model("gpt", |run, device| {
        let mut run = run.clone();
        run.model.width *= 2;
        builtin::registry().build_model(&run, device.choice).map_err(|error| error.to_string())
    });
    let options = WorkerOptions {
        coordinators: vec![run.cluster().expect("a cluster").leader().address.into()],
        token: fs::read_to_string(run.dir.join("join.token")).unwrap().trim().into(),
        listen: "127.0.0.1:0".parse().unwrap(),
        zone: None,
        dir: None,
        kept_in: None,
        device: DeviceChoice::Cpu,
        grace: None,
        metadata: None,
        overlap: true,
        ends_with_run: false,
        shares_memory: true,
    };
    let refused = daemon::run(options, Arc::new(wider), |_| {}).expect_err("another model");
    for words in ["differs from worker-", "registered first: model ", "; parameters ", ", not "] {
        assert!(refused.to_string().contains(words), "{refused}");
    }
}

#[test]
fn a_worker_with_the_token_of_another_cluster_is_refused() {
    let world = World::new().with("run.start_workers", 2);
    let run = half_a_cluster(&world);
    let token = run.dir.join("join.token");
    let ours = fs::read_to_string(&token).unwrap();
    let mode = fs::metadata(&token).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // Parts: version, id, secret, pin.
    let parts: Vec<&str> = ours.trim().split('.').collect();
    let zeros = |part: usize| {
        let mut parts: Vec<String> = parts.iter().map(ToString::to_string).collect();
        parts[part] = "A".repeat(parts[part].len());
        parts.join(".")
    };
    for (token, code) in [(zeros(1), 1), (zeros(2), 1), (zeros(3), 1), ("secret".into(), 2)] {
        fs::write(run.dir.join("join.token"), &token).unwrap();
        let refused = world.join(&run).end();
        assert_eq!(refused.code, Some(code), "{refused:?}");
        assert!(refused.block().contains("token"), "{refused:?}");
    }
    fs::write(run.dir.join("join.token"), ours).unwrap();
    assert_eq!(refusals(&run), [""; 0], "they were never let in");
    let second = world.join(&run);
    run.complete();
    assert_eq!(second.end().code, Some(0));
}

#[test]
fn a_coordinator_that_cannot_begin_says_what_to_do() {
    let world = World::new();
    let group = CoordinatorGroup::found(&world.path("coordinators"), 1, &[]);
    let theirs = CoordinatorGroup::found(&world.path("others"), 1, &[]);
    let (there, address) = (&group.members[0], group.addresses());
    let begin = |dir: &str, flags: &[&str]| {
        let (dir, words) = (world.path(dir), ["coordinator", "--dir"]);
        world.start(&[&words[..], &[show(&dir)], flags].concat()).end()
    };
    let token = |member: &Member, name: &str| format!("@{}", show(&member.dir.join(name)));
    let [ours, workers] = ["coordinator.token", "join.token"].map(|name| token(there, name));
    let foreign = token(&theirs.members[0], "coordinator.token");
    let join = |token| ["--join", token, "--coordinators", &address];
    let founded = "coordinators/coordinator-1";
    for (dir, flags, code, words, next) in [
        ("new", &[][..], 2, "nothing to start from", "or found a cluster, or join one"),
        (founded, &["--bootstrap"], 2, "there is a cluster in", "name an empty directory"),
        (founded, &join(&ours), 2, "there is a cluster in", "name an empty directory"),
        (founded, &[], 2, "another process has it open", "end the other coordinator"),
        ("new", &join("es1.a.b"), 2, "3 parts instead of 4", "coordinator.token"),
        ("new", &join(&workers), 1, "with the role worker, not coordinator", "the token"),
        ("new", &join(&foreign), 1, "belongs to another cluster", "the token"),
    ] {
        let refused = begin(dir, flags);
        assert_eq!(refused.code, Some(code), "{flags:?}: {refused:?}");
        assert!(refused.block().contains(words), "{flags:?}: {refused:?}");
        assert!(refused.block().contains(next), "{flags:?}: {refused:?}");
        assert!(!world.path("new").join("authority").exists(), "{flags:?} leaves nothing behind");
    }
}

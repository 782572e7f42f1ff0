//! The files of a run, and their content for scripts and other programs.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use crate::world::{Run, World, show};

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

/// The value has these keys. Later versions only add keys.
fn assert_has(value: &Value, wanted: &[&str]) {
    let missing: Vec<_> = wanted.iter().filter(|key| !keys(value).contains(*key)).collect();
    assert!(missing.is_empty(), "{missing:?} missing in {value}");
}

/// The page at this path of an HTTP API.
fn answer(api: &str, path: &str) -> String {
    let address = api.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn cluster_json_tells_who_takes_part_while_the_run_is_under_way() {
    let world = World::endless();
    let run = world.launch(&["--workers", "3"]);
    run.until_workers(3, "training");
    let text = fs::read_to_string(run.dir.join("cluster.json")).unwrap();
    let cluster: Value = serde_json::from_str(&text).unwrap();
    let coordinator = &cluster["coordinators"][0];
    assert_has(coordinator, &["id", "pid", "address", "api", "leader"]);
    let api = coordinator["api"].as_str().unwrap_or_default();
    assert!(coordinator["leader"] == true && api.starts_with("http://127.0.0.1:"), "{coordinator}");
    let status = answer(api, "/api/v1/status");
    assert!(status.contains("\"world_size\":3"), "{status}");
    let nothing = (&serde_json::json!([]), &Value::Null);
    assert_eq!((&cluster["under_protected"], &cluster["waiting"]), nothing);
    assert_eq!((&cluster["unreachable"], &cluster["workers"][0]["zone"]), nothing);
    let workers = cluster["workers"].as_array().unwrap();
    for worker in workers {
        assert_has(worker, &["id", "pid", "address", "rank", "state", "device"]);
        assert_eq!(worker.get("telemetry"), None, "what changes every moment is asked of the API");
    }
    let ranks: BTreeSet<_> = workers.iter().map(|worker| worker["rank"].as_u64()).collect();
    assert_eq!(ranks, BTreeSet::from([Some(0), Some(1), Some(2)]));
}

#[test]
fn cluster_json_tells_the_zones_that_workers_state() {
    let world = World::endless().with("run.start_workers", 3);
    let run = world.launch(&["--workers", "1"]);
    run.until_workers(1, "waiting");
    let _guests = ["a", "b"].map(|zone| world.join_with(&run, &["--zone", zone]));
    let cluster = run.until_workers(3, "training");
    let zones = cluster.workers.iter().map(|worker| worker.zone.as_deref());
    assert_eq!(zones.collect::<BTreeSet<_>>(), BTreeSet::from([None, Some("a"), Some("b")]));
}

#[test]
fn the_directory_of_a_complete_run_tells_its_story() {
    let world = World::new();
    let run = world.train(&["--workers", "3"]);
    let token = fs::metadata(run.dir.join("join.token")).unwrap();
    assert_eq!(token.permissions().mode() & 0o777, 0o600);
    for log in ["coordinator-1", "worker-1", "worker-2", "worker-3"] {
        let text = fs::read_to_string(run.dir.join(format!("logs/{log}.log"))).expect(log);
        let complaint = ["ERROR", "error: ", "panicked"].into_iter().find(|it| text.contains(it));
        assert_eq!(complaint, None, "{text}");
        let said = match log {
            "coordinator-1" => &["a cluster is founded"][..],
            _ => &["entered id=", "rank=", "generation=1", "trained step=", "loss="],
        };
        said.iter().for_each(|words| assert!(text.contains(words), "no {words} in {text}"));
    }
    for line in run.lines("metrics.jsonl") {
        assert_has(&line, &["step", "generation", "world_size", "loss", "grad_norm", "loss_scale"]);
        assert_has(&line, &["learning_rate", "tokens", "seconds", "unix_ms"]);
        assert_eq!((&line["world_size"], &line["tokens"]), (&3.into(), &256.into()));
    }
    for told in [run.hash(), "12 steps", "model.safetensors"] {
        assert!(run.stdout.contains(told), "{told} is not in {}", run.stdout);
    }
    let events = run.lines("events.jsonl");
    let order: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    let registered = ["registered"; 3];
    assert_eq!(
        order,
        [&["leading", "submitted"][..], &registered, &["generation", "complete"]].concat()
    );
}

#[test]
fn the_report_has_every_key_that_scripts_rely_on() {
    let Run { report, .. } = World::new().train(&["--workers", "2"]);
    assert_has(&report, &["state_hash", "steps", "steps_redone", "steps_lost", "samples_lost"]);
    assert_has(&report, &["samples_repeated", "loss", "tokens_per_second", "generations"]);
    assert_has(&report, &["workers", "bitwise", "wall_seconds"]);
    assert_has(&report["loss"], &["first", "last", "validation", "bigram"]);
    assert_has(&report, &["rollbacks", "under_protected", "respawned", "coordinator_restarts"]);
    let generation = ["number", "cause", "workers", "at_step", "detect_ms", "stall_ms"];
    assert_has(&report["generations"][0], &generation);
    assert_has(&report["generations"][0], &["members", "redone", "waiting"]);
    let worker = &report["workers"][0];
    assert_has(worker, &["id", "data_shards_computed", "bytes_sent", "bytes_received"]);
    assert_has(worker, &["compute_seconds", "exposed_communication_seconds", "optimizer_bytes"]);
    assert_has(worker, &["peak_rss_bytes"]);
    for loss in keys(&report["loss"]) {
        let nats = report["loss"][loss].as_f64().expect(loss);
        assert!(nats > 0.0 && nats < 6.0, "{loss} {nats}");
    }
}

#[test]
fn the_model_has_the_tensors_of_gpt_2() {
    let world = World::new();
    let run = world.train(&["--workers", "3"]);
    let bytes = fs::read(run.dir.join("model.safetensors")).unwrap();
    let model = SafeTensors::deserialize(&bytes).expect("a valid file");
    let mut expected: BTreeSet<String> =
        ["wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias"].map(String::from).into();
    for layer in 0..2 {
        for part in ["ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"] {
            expected.extend(["weight", "bias"].map(|kind| format!("h.{layer}.{part}.{kind}")));
        }
    }
    let names: BTreeSet<String> = model.names().into_iter().map(str::to_string).collect();
    assert_eq!(names, expected);
    for (name, shape) in [("wte.weight", [256, 16]), ("h.1.attn.c_attn.weight", [16, 48])] {
        let tensor = model.tensor(name).unwrap();
        assert_eq!((tensor.shape(), tensor.dtype()), (&shape[..], Dtype::F32), "{name}");
        let (values, _) = tensor.data().as_chunks();
        let values: Vec<f32> = values.iter().copied().map(f32::from_le_bytes).collect();
        assert!(values.iter().all(|value| value.is_finite() && value.abs() < 10.0), "{name}");
    }
    let files = fs::read_dir(&run.dir).unwrap().map(|entry| entry.unwrap().file_name());
    let partial: Vec<_> = files.filter(|f| f.to_string_lossy().contains("partial")).collect();
    assert!(partial.is_empty(), "nothing half-written is left: {partial:?}");
}

#[test]
fn the_model_is_the_same_file_for_any_number_of_workers() {
    let world = World::new();
    let model = |run: Run| fs::read(run.dir.join("model.safetensors")).unwrap();
    let alone = model(world.train(&["--workers", "1"]));
    assert!(model(world.train(&["--workers", "3"])) == alone, "other bytes");
}

#[test]
fn a_trained_model_continues_a_text() {
    let world = World::new().with("run.steps", 30);
    let run = world.train(&["--workers", "2"]);
    let model = run.dir.join("model.safetensors");
    let generate =
        ["generate", "--model", show(&model), "--prompt", "the worker ", "--bytes", "40"];
    let ended = world.start(&generate).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let added = ended.stdout.strip_prefix("the worker ").expect("the prompt comes first");
    assert!(added.chars().count() > 20, "{added}");
    assert_eq!(world.start(&generate).end().stdout, ended.stdout, "the same seed, the same text");
}

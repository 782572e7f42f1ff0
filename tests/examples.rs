//! The examples do what their comments promise. Each runs as a user would run it, in a directory of
//! its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

#[test]
fn the_own_model_learns_with_the_same_bits_on_one_worker_and_on_three() {
    let directory = TempDir::new().unwrap();
    let printed = stdout(&example("own_model", &[], &directory));
    let hashes: Vec<&str> =
        printed.lines().filter_map(|line| line.split("state hash ").nth(1)).collect();
    assert_eq!(hashes.len(), 2, "{printed}");
    assert_eq!((hashes[0].len(), hashes[0]), (64, hashes[1]), "{printed}");
    assert!(directory.path().join("runs/rings-002/model.safetensors").is_file());
}

#[test]
fn the_own_model_is_trained_by_the_same_command_line() {
    let directory = TempDir::new().unwrap();
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/own_model.toml");
    let arguments = ["train", "--config", config, "--steps", "20", "--report", "report.json"];
    let printed = stdout(&example("own_model", &arguments, &directory));
    assert!(printed.contains("trained 20 steps"), "{printed}");
    let report = std::fs::read(directory.path().join("report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    assert!(report["metric"].as_f64().is_some_and(|metric| metric > 0.5), "{report}");
    assert_eq!((&report["samples_lost"], &report["bitwise"]), (&0.into(), &true.into()));
}

#[test]
fn an_option_of_the_own_model_changes_what_is_trained_and_others_are_refused_with_their_line() {
    let directory = TempDir::new().unwrap();
    let config = include_str!("../examples/own_model.toml");
    let train = |leak: &str| {
        let config = config.replace("leak = 0.01", leak);
        std::fs::write(directory.path().join("rings.toml"), config).unwrap();
        let arguments = ["train", "--config", "rings.toml", "--steps", "3", "--workers", "1"];
        example("own_model", &[&arguments[..], &["--report", "report.json"]].concat(), &directory)
    };
    let hash = |leak: &str| {
        stdout(&train(leak));
        let report = std::fs::read(directory.path().join("report.json")).unwrap();
        let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
        report["state_hash"].as_str().unwrap().to_string()
    };
    let [leaking, dry, again] = [hash("leak = 0.01"), hash(""), hash("leak = 0.0")];
    assert_ne!(leaking, dry);
    assert_eq!(dry, again, "the default");
    let refused = train("leek = 0.01");
    let told = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{told}");
    assert!(told.contains("rings.toml:14"), "{told}");
    assert!(told.contains("leek is no option here: the options are leak"), "{told}");
}

#[test]
fn the_own_optimizer_learns_with_the_same_bits_on_one_worker_and_on_three() {
    let directory = TempDir::new().unwrap();
    let printed = stdout(&example("own_optimizer", &[], &directory));
    let hashes: Vec<&str> =
        printed.lines().filter_map(|line| line.split("state hash ").nth(1)).collect();
    assert_eq!(hashes.len(), 2, "{printed}");
    assert_eq!((hashes[0].len(), hashes[0]), (64, hashes[1]), "{printed}");
}

#[test]
fn the_own_optimizer_refuses_what_it_does_not_know_before_anything_starts() {
    let directory = TempDir::new().unwrap();
    let config = include_str!("../examples/own_optimizer.toml");
    std::fs::write(directory.path().join("text"), "any text will do\n".repeat(100)).unwrap();
    for (from, to, words) in [
        ("\"signum\"", "\"signam\"", "Use \"adamw\", \"lion\", \"sgd\" or \"signum\""),
        ("dead_zone", "deadzone", "there is no option deadzone: the options are dead_zone"),
        ("1e-7", "true", "the option dead_zone is true, but must be a number"),
        ("momentum", "epsilon", "optimizer.epsilon is 0.8, and optimizer.kind is \"signum\""),
    ] {
        let path = directory.path().join("signum.toml");
        std::fs::write(path, config.replace(from, to)).unwrap();
        for more in [&["--dry-run"][..], &[]] {
            let arguments = ["train", "--config", "signum.toml", "--data", "text"];
            let arguments = [&arguments[..], more].concat();
            let output = example("own_optimizer", &arguments, &directory);
            let told = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{told}");
            assert!(told.contains("signum.toml:") && told.contains(words), "{told}");
        }
    }
}

#[test]
fn a_device_of_ones_own_trains_the_built_in_models_with_the_same_bits_on_one_worker_and_on_three() {
    let directory = TempDir::new().unwrap();
    std::fs::write(directory.path().join("text"), "any text will do\n".repeat(100)).unwrap();
    let config = "[model]\nlayers = 1\nwidth = 16\ncontext = 16\n[batch]\nmicro_batch = 1\n";
    std::fs::write(directory.path().join("run.toml"), config).unwrap();
    let train = |device: &str, workers: &str| {
        let arguments = ["train", "--config", "run.toml", "--data", "text", "--steps", "3"];
        let more = ["--device", device, "--workers", workers, "--report", "report.json"];
        stdout(&example("own_device", &[&arguments[..], &more].concat(), &directory));
        let report = std::fs::read(directory.path().join("report.json")).unwrap();
        serde_json::from_slice::<serde_json::Value>(&report).unwrap()
    };
    let [one, three, on_cpu] = [train("f64:0", "1"), train("f64", "3"), train("cpu", "1")];
    assert_eq!(one["state_hash"], three["state_hash"]);
    assert_ne!(one["state_hash"], on_cpu["state_hash"], "f64 rounds elsewhere");
    let device = &three["workers"][2]["device"];
    assert_eq!(
        (&device["name"], &device["precision"]),
        (&"Double precision".into(), &"f32".into())
    );
    assert_eq!((&device["gpu"]["kind"], &device["gpu"]["number"]), (&"f64".into(), &0.into()));
    assert!(three["model_flops_utilization"].as_f64().is_some_and(|share| share > 0.0));
    let listed = stdout(&example("own_device", &["devices"], &directory));
    assert!(listed.contains("f64:0") && listed.contains("Double precision"), "{listed}");
    let refused = example("own_device", &["train", "--device", "f64:1"], &directory);
    let words = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{words}");
    assert!(words.contains("the only one is f64:0"), "{words}");
}

#[test]
fn a_cluster_from_code_trains_on_the_text_that_it_is_given_and_tells_of_it() {
    let directory = TempDir::new().unwrap();
    let text = "the quick brown fox jumps over the lazy dog\n".repeat(400);
    std::fs::write(directory.path().join("fox.txt"), text).unwrap();
    let printed = stdout(&example("cluster_from_code", &["fox.txt"], &directory));
    assert!(printed.contains("generation  1 after step 0: 2 members, Start"), "{printed}");
    let losses: Vec<f64> = printed
        .lines()
        .filter_map(|line| line.strip_suffix(" nats")?.split("loss ").nth(1)?.parse().ok())
        .collect();
    assert_eq!(losses.len(), 6, "{printed}");
    assert!(losses[5] < losses[0], "{printed}");
    assert!(printed.contains("\nvalidation ") && printed.contains("\nstate hash "), "{printed}");
}

#[test]
fn a_cluster_from_code_says_why_it_cannot_train() {
    let directory = TempDir::new().unwrap();
    let output = example("cluster_from_code", &["missing.txt"], &directory);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("missing.txt"), "{told}");
}

#[test]
fn the_all_reduce_gives_the_same_bits_for_any_number_of_workers() {
    let directory = TempDir::new().unwrap();
    let printed = stdout(&example("all_reduce", &[], &directory));
    let equal = printed.lines().filter(|line| line.ends_with("bit for bit")).count();
    assert_eq!(equal, 4, "{printed}");
    assert!(!printed.contains(" instead, 0 of"), "the order of additions matters: {printed}");
}

/// Runs the example to its end.
fn example(name: &str, arguments: &[&str], directory: &TempDir) -> Output {
    let program = beside_this_test().join("examples").join(name);
    assert!(
        program.is_file(),
        "{} is not there: `cargo test` builds it, `cargo test --test …` alone does not; \
         run `cargo build --examples` first",
        program.display()
    );
    Command::new(program).args(arguments).current_dir(directory).output().unwrap()
}

/// The directory of the build profile: this test is in its `deps`.
fn beside_this_test() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().and_then(Path::parent).unwrap().to_path_buf()
}

fn stdout(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{stderr}", output.status);
    String::from_utf8(output.stdout.clone()).unwrap()
}

//! The work of `everstep train` around the training itself: its waits, its output and its files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// A folder with a small text and `run.toml`, which trains a small model on it.
fn folder(settings: &str) -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("text.txt"), "the worker owns the shard\n".repeat(200)).unwrap();
    let config = format!(
        "[model]\nlayers = 1\nheads = 2\nwidth = 16\ncontext = 16\n[data]\npath = \"text.txt\"\n\
         [batch]\ndata_shards = 2\n{settings}"
    );
    fs::write(folder.path().join("run.toml"), config).unwrap();
    folder
}

/// The command that starts the program in the folder.
fn everstep(folder: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_everstep"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("EVERSTEP_") {
            command.env_remove(name);
        }
    }
    command.args(arguments).current_dir(folder).stdin(Stdio::null());
    command
}

fn train(folder: &TempDir, flags: &[&str]) -> Output {
    let train = ["train", "--config", "run.toml", "--dir", "run", "--report", "report.json"];
    everstep(folder, &[&train, flags].concat()).output().unwrap()
}

/// Runs the program with a stdout that has no reader.
fn unread(mut command: Command) -> Output {
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    child.wait_with_output().unwrap()
}

fn json(path: PathBuf) -> Value {
    serde_json::from_slice(&fs::read(&path).unwrap()).unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_run_whose_workers_do_not_come_says_what_it_waits_for_and_gives_up() {
    let folder = folder("[run]\nstart_workers = 2");
    let output = train(&folder, &["--workers", "1", "--wait", "20"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{said}");
    let (waiting, block) = said.split_once("error: the run did not start in time\n").expect(&said);
    assert!(waiting.contains("\nwaiting: 1 of 2 workers have registered\n"), "{said}");
    let join = concat!(env!("CARGO_BIN_EXE_everstep"), " worker --coordinators 127.0.0.1:");
    assert!(waiting.contains(&format!("\nothers join with: {join}")), "{said}");
    assert!(block.contains("why: 1 of 2 workers had registered after 20 s\n"), "{said}");
    assert!(block.contains(join) && block.contains("/run/join.token"), "{said}");
    assert!(!folder.path().join("report.json").exists(), "there is nothing to report");
    let told = json(folder.path().join("run/report.json"));
    assert_eq!((&told["state"], &told["step"]), (&"failed".into(), &0.into()));
    assert_eq!(told["reason"], "1 of 2 workers had registered after 20 s");
}

#[test]
fn a_closed_stdout_costs_neither_the_report_nor_the_exit_code() {
    let folder = folder("[run]\nsteps = 3");
    let train = ["train", "--config", "run.toml", "--dir", "run", "--report", "report.json"];
    for arguments in [
        &train[..],
        &["train", "--config", "run.toml", "--dry-run"],
        &["generate", "--model", "run/model.safetensors", "--prompt", "the ", "--bytes", "9"],
    ] {
        let output = unread(everstep(&folder, arguments));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {said}");
    }
    assert_eq!(json(folder.path().join("report.json"))["steps"], 3);
}

#[test]
fn a_refused_start_leaves_nothing() {
    let folder = folder("");
    let before = names(folder.path());
    fs::write(folder.path().join("short.txt"), "short").unwrap();
    for (flags, words) in [
        (&["--data", "short.txt"][..], "--data"),
        (&["--report", "no/such/report.json"], "no/such/report.json"),
        (&["--report", "."], "the report cannot be written"),
    ] {
        let flags = [&["train", "--config", "run.toml", "--dir", "run"], flags].concat();
        let output = everstep(&folder, &flags).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(words), "{said}");
    }
    fs::remove_file(folder.path().join("short.txt")).unwrap();
    assert_eq!(names(folder.path()), before);
}

/// The variable hides the GPUs of the machine.
#[test]
fn a_dry_run_refuses_the_device_and_the_report_that_a_run_would_refuse() {
    let folder = folder("");
    let config = fs::read_to_string(folder.path().join("run.toml")).unwrap();
    let config = config.replace("[model]\n", "[model]\nprecision = \"bf16\"\n");
    fs::write(folder.path().join("bf16.toml"), config).unwrap();
    let before = names(folder.path());
    let in_16_bits = "the CPU computes in f32, not in bf16";
    for (config, flags, words) in [
        ("bf16.toml", &["--device", "auto"][..], in_16_bits),
        ("bf16.toml", &["--device", "cpu"], in_16_bits),
        ("run.toml", &["--device", "npu"], "this program has no device of the kind \"npu\""),
        ("run.toml", &["--report", "no/such/report.json"], "no/such/report.json"),
        ("run.toml", &["--report", "."], "the report cannot be written"),
    ] {
        for more in [&["--dry-run"][..], &[]] {
            let train = ["train", "--config", config, "--dir", "run"];
            let mut command = everstep(&folder, &[&train[..], flags, more].concat());
            let output = command.env("CUDA_VISIBLE_DEVICES", "").output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{flags:?} {more:?}: {said}");
            assert!(said.contains(words), "{flags:?} {more:?}: {said}");
        }
    }
    assert_eq!(names(folder.path()), before);
}

/// The folder `run` is made by the run.
#[test]
fn a_dry_run_takes_a_report_that_a_run_would_write_and_leaves_it_alone() {
    let folder = folder("");
    fs::write(folder.path().join("old.json"), "an earlier report").unwrap();
    let before = names(folder.path());
    for report in ["new.json", "old.json", "run/new.json"] {
        let train = ["train", "--config", "run.toml", "--dir", "run", "--report", report];
        let output = everstep(&folder, &[&train[..], &["--dry-run"]].concat()).output().unwrap();
        assert!(output.status.success(), "{report}: {}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(names(folder.path()), before);
    let old = fs::read_to_string(folder.path().join("old.json")).unwrap();
    assert_eq!(old, "an earlier report");
}

#[test]
fn a_dry_run_of_the_default_text_leaves_nothing() {
    let folder = folder("");
    let scratch = TempDir::new().unwrap();
    let mut command = everstep(&folder, &["train", "--dry-run"]);
    let output = command.env("TMPDIR", scratch.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8(output.stdout).unwrap().contains("\nparameters      "));
    assert_eq!(names(scratch.path()), [""; 0]);
    assert_eq!(names(folder.path()), ["run.toml", "text.txt"]);
}

#[test]
fn a_runs_files_state_its_data_its_workers_and_the_coordinators_last_words() {
    let folder = folder("[run]\nsteps = 3");
    let output = train(&folder, &["--workers", "2"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let run = folder.path().join("run");
    let text = fs::canonicalize(folder.path().join("text.txt")).unwrap();
    let stated = json(run.join("run.json"))["data"]["path"].as_str().map(PathBuf::from).unwrap();
    assert_eq!(fs::canonicalize(stated).unwrap(), text);
    let workers = &json(run.join("cluster.json"))["workers"];
    let mut labels = [&workers[0]["label"], &workers[1]["label"]];
    labels.sort_by_key(|label| label.to_string());
    assert_eq!(labels, ["worker-1", "worker-2"]);
    let log = fs::read_to_string(run.join("logs/coordinator-1.log")).unwrap();
    assert!(log.contains("the coordinator stops"), "{log}");
}

#[test]
fn steps_that_changed_nothing_are_counted_and_warned_of() {
    let settings = "[run]\nsteps = 8\n[optimizer]\nkind = \"sgd\"\nlearning_rate = 1e3\n\
                    warmup_steps = 0\nclip_norm = \"none\"\nschedule = \"constant\"";
    let folder = folder(settings);
    let output = train(&folder, &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let skipped = json(folder.path().join("report.json"))["steps_skipped"].as_u64().unwrap();
    assert!(skipped > 0);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains(&format!("{skipped} of 8 steps were skipped: ")), "{printed}");
}

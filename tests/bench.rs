//! The benchmarks, each so small that it takes a moment, and the figures that they print.

use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

#[test]
fn the_all_reduce_has_its_figures() {
    let folder = TempDir::new().unwrap();
    let flags = ["all-reduce", "--workers", "2", "--mb", "1", "--iterations", "3"];
    let result = bench(&folder, &flags);
    assert_eq!((&result["workers"], &result["mb"]), (&2.into(), &1.into()), "{result}");
    assert_eq!(result["iterations"], 3);
    for figure in ["median_ms", "p99_ms", "gib_per_s", "cpu_seconds_per_gb"] {
        assert_positive(&result, figure);
    }
    assert!(result.get("stages_ms").is_none(), "nobody has asked: {result}");

    let result = bench(&folder, &[&flags[..], &["--stages"]].concat());
    assert_positive(&result, "exchange_ms");
    for stage in ["data_shard", "update"] {
        assert_positive(&result["stages_ms"], stage);
    }
    for stage in ["reduce_scatter", "commit", "all_gather"] {
        let took = &result["stages_ms"][stage];
        assert!(took.as_f64().is_some_and(|ms| ms >= 0.0), "{result}");
    }
}

#[test]
fn the_overlap_has_its_figures_whatever_the_file_says_of_workers() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("text.txt"), "the worker owns the shard\n".repeat(200))
        .unwrap();
    let config = "[run]\nstart_workers = 1\n[model]\nlayers = 1\nheads = 2\nwidth = 16\n\
                  context = 16\n[data]\npath = \"text.txt\"\n[batch]\ndata_shards = 2";
    std::fs::write(folder.path().join("run.toml"), config).unwrap();
    let flags = ["overlap", "--config", "run.toml", "--workers", "2", "--steps", "3"];
    let result = bench(&folder, &[&flags[..], &["--pairs", "1"]].concat());
    assert_eq!((&result["workers"], &result["pairs"]), (&2.into(), &1.into()), "{result}");
    assert_positive(&result, "step_ratio");
    for run in ["overlapped", "not_overlapped"] {
        assert_positive(&result[run], "step_ms");
        assert!(result[run]["exposed_ms"].as_f64().is_some_and(|ms| ms >= 0.0), "{result}");
    }
}

#[test]
fn kills_and_joins_have_their_figures_and_lose_nothing() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("text.txt"), "the worker owns the shard\n".repeat(200))
        .unwrap();
    let config = "[model]\nlayers = 1\nheads = 2\nwidth = 16\ncontext = 16\n\
                  [data]\npath = \"text.txt\"\n[batch]\ndata_shards = 4";
    std::fs::write(folder.path().join("run.toml"), config).unwrap();
    let flags = ["--config", "run.toml", "--workers", "2"];
    let kills = bench(&folder, &[&["kills", "--kills", "2"][..], &flags].concat());
    assert_eq!(kills["kills"], 2, "{kills}");
    let by_hand = bench(&folder, &[&["kills", "--by-hand", "--kills", "2"][..], &flags].concat());
    assert_eq!(by_hand["by_hand"], true, "{by_hand}");
    let noticed = by_hand["detect_ms"]["longest"].as_f64().unwrap();
    assert!(noticed > 0.0, "without help: {by_hand}");
    let joins = bench(&folder, &[&["joins", "--joins", "1"][..], &flags].concat());
    assert_eq!((&joins["joins"], &joins["workers"]), (&1.into(), &2.into()), "{joins}");
    assert_positive(&joins, "step_ms");
    for nothing in ["steps_lost", "samples_lost", "samples_repeated", "rollbacks"] {
        assert_eq!((&kills[nothing], &by_hand[nothing]), (&0.into(), &0.into()), "{nothing}");
    }
    for (result, times) in [
        (&kills, &["stall_ms", "detect_ms", "record_ms", "resume_ms"][..]),
        (&by_hand, &["stall_ms", "detect_ms", "record_ms", "resume_ms"]),
        (&joins, &["stall_ms", "arrival_ms", "leave_ms"]),
    ] {
        for (time, rank) in
            times.iter().flat_map(|time| ["p50", "p95", "longest"].map(|r| (time, r)))
        {
            assert!(result[time][rank].as_f64().is_some_and(f64::is_finite), "{time} in {result}");
        }
    }
}

#[test]
fn failovers_have_their_figures_and_nobody_notices() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("text.txt"), "the worker owns the shard\n".repeat(200))
        .unwrap();
    let config = "[model]\nlayers = 1\nheads = 2\nwidth = 16\ncontext = 16\n\
                  [data]\npath = \"text.txt\"\n[batch]\ndata_shards = 4";
    std::fs::write(folder.path().join("run.toml"), config).unwrap();
    let flags = ["failovers", "--config", "run.toml", "--workers", "2", "--kills"];
    let result = bench(&folder, &[&flags[..], &["2"]].concat());
    assert_eq!((&result["failovers"], &result["coordinators"]), (&2.into(), &3.into()), "{result}");
    assert_eq!((&result["hash_equal"], &result["generations"]), (&true.into(), &1.into()));
    for nothing in ["steps_lost", "steps_redone", "samples_lost", "samples_repeated"] {
        assert_eq!(result[nothing], 0, "{nothing} in {result}");
    }
    for (time, rank) in ["back_ms", "gap_ms", "calm_ms"]
        .map(|time| ["p50", "p99", "longest"].map(|r| (time, r)))
        .concat()
    {
        assert!(result[time][rank].as_f64().is_some_and(f64::is_finite), "{time} in {result}");
    }
    assert_positive(&result["back_ms"], "p50");
    assert!(result["wake_ms"].is_null(), "who was killed does not go on: {result}");
    let stopped = bench(&folder, &[&flags[..], &["1", "--stop", "300ms"]].concat());
    assert_eq!((&stopped["hash_equal"], &stopped["generations"]), (&true.into(), &1.into()));
    assert!(stopped["wake_ms"]["longest"].as_f64().is_some_and(f64::is_finite), "{stopped}");
    let together = bench(&folder, &[&flags[..], &["1", "--with-worker"]].concat());
    assert_eq!(together["hash_equal"], true, "{together}");
    for nothing in ["steps_lost", "samples_lost", "samples_repeated"] {
        assert_eq!(together[nothing], 0, "{nothing} in {together}");
    }
    assert!(together["stall_ms"]["longest"].as_f64().is_some_and(f64::is_finite), "{together}");
}

/// In memory, the lines of the longer history would take 40 MiB.
#[test]
fn a_history_has_its_figures_and_takes_no_memory() {
    let folder = TempDir::new().unwrap();
    let histories = ["1000", "300000"].map(|steps| bench(&folder, &["history", "--steps", steps]));
    for result in &histories {
        for figure in ["file_bytes", "restart_ms", "last_page_ms"] {
            assert_positive(result, figure);
        }
    }
    let [short, long] = histories.map(|result| result["peak_rss_mib"].as_f64().unwrap());
    assert!(short > 0.0 && long < short + 8.0, "{short} MiB, {long} MiB");
}

/// Runs the benchmark in the folder. It must leave no new file there.
fn bench(folder: &TempDir, flags: &[&str]) -> Value {
    let scratch = TempDir::new().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_everstep"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("EVERSTEP_") {
            command.env_remove(name);
        }
    }
    let command = command.arg("bench").args(flags).arg("--json");
    let output = command.current_dir(folder).env("TMPDIR", scratch.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), 0, "something is left behind");
    assert!(!folder.path().join("runs").exists());
    serde_json::from_slice(&output.stdout).unwrap()
}

fn assert_positive(result: &Value, figure: &str) {
    let value = result[figure].as_f64();
    assert!(value.is_some_and(|value| value > 0.0 && value.is_finite()), "{figure} in {result}");
}

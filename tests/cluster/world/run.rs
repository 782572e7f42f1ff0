//! A run that is complete: its report and its files.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// A run that is complete.
pub struct Run {
    /// The directory of its files.
    pub dir: PathBuf,
    /// Its output on stdout.
    pub stdout: String,
    /// Its report.
    pub report: Value,
}

/// Checks that the files in the directory of a run say that it has failed, and why: its report, its
/// last event, and the state of its cluster.
pub fn assert_failed(dir: &Path, reason: &str) {
    let json = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
    let read = |name: &str| fs::read_to_string(dir.join(name)).expect(name);
    let [report, cluster] = ["report.json", "cluster.json"].map(|name| json(&read(name)));
    let last = json(read("events.jsonl").lines().last().expect("an event"));
    assert_eq!((&report["state"], &cluster["state"]), (&"failed".into(), &"failed".into()));
    assert_eq!((&last["event"], &last["by"]), (&"failed".into(), &"launcher".into()), "{last}");
    assert!(report["reason"].as_str().is_some_and(|words| words.contains(reason)), "{report}");
    assert_eq!((&last["reason"], &last["step"]), (&report["reason"], &report["step"]));
    let status = format!("failed: after step {} of {}: ", report["step"], report["run"]["steps"]);
    assert!(report["status"].as_str().is_some_and(|words| words.starts_with(&status)), "{report}");
    assert_eq!((&report["state_hash"], &report["model"]), (&Value::Null, &Value::Null));
    let workers = cluster["workers"].as_array().expect("workers");
    let mut states = workers.iter().map(|worker| worker["state"].as_str().expect("a state"));
    assert!(states.all(|state| ["ended", "lost", "left"].contains(&state)), "{cluster}");
}

impl Run {
    /// Reads the report of a run.
    pub fn read(dir: PathBuf, report: &Path, stdout: String) -> Self {
        let text = fs::read_to_string(report).expect("a complete run has a report");
        let report = serde_json::from_str(&text).expect("it is JSON");
        Self { dir, stdout, report }
    }

    /// The state hash.
    pub fn hash(&self) -> &str {
        let hash = self.report["state_hash"].as_str().expect("a hash");
        assert_eq!(hash.len(), 64, "{hash}");
        hash
    }

    /// The lines of a file of the run, each JSON.
    pub fn lines(&self, name: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.dir.join(name)).expect(name);
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// A number in every worker's report.
    pub fn of_workers(&self, key: &str) -> Vec<u64> {
        let workers = self.report["workers"].as_array().expect("workers");
        workers.iter().map(|worker| worker[key].as_u64().expect(key)).collect()
    }

    /// Checks that all faults cost only time: the run never went back (I5, I6).
    pub fn assert_survived(&self, steps: u64) {
        self.assert_one_history(steps);
        assert_eq!(self.report["rollbacks"], serde_json::json!([]));
    }

    /// Checks that the report and the metrics are those of one history, after any faults: no step
    /// and no sample lost or repeated (I4, I13).
    pub fn assert_one_history(&self, steps: u64) {
        assert_eq!(self.report["steps"], steps);
        for nothing in ["steps_lost", "samples_lost", "samples_repeated"] {
            assert_eq!(self.report[nothing], 0, "{nothing}");
        }
        let order: Vec<_> = self.lines("metrics.jsonl").iter().map(|l| l["step"].clone()).collect();
        assert_eq!(order, (1..=steps).collect::<Vec<_>>(), "each step once, in order");
    }

    /// The generations that began for this cause.
    pub fn generations(&self, cause: &str) -> Vec<Value> {
        let all = self.report["generations"].as_array().expect("generations");
        all.iter().filter(|generation| generation["cause"] == cause).cloned().collect()
    }

    /// Checks that no fault hit the run, and that every worker took part in it.
    pub fn assert_whole(&self, steps: u64, data_shards: u64, workers: usize) {
        self.assert_survived(steps);
        assert_eq!(self.report["steps_redone"], 0);
        assert_eq!(self.report["bitwise"], true);
        let computed = self.of_workers("data_shards_computed");
        assert_eq!(computed.len(), workers);
        assert_eq!(computed.iter().sum::<u64>(), steps * data_shards);
        let idle = computed.iter().filter(|count| **count == 0).count();
        assert_eq!(idle, workers.saturating_sub(data_shards as usize), "{computed:?}");
        let silent = |sent: &u64| (*sent == 0) != (workers == 1);
        let sent = self.of_workers("bytes_sent");
        assert!(!sent.iter().any(silent), "{sent:?}");
    }
}

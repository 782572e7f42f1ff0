//! A run that ended together with its cluster. Its directory describes it, so no coordinator is
//! asked.

use std::path::PathBuf;

use everstep_transport::protocol::run::Units;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cli::ClusterFlags;
use crate::cluster;
use crate::failure::Failure;
use crate::operator::ClusterHandle;
use crate::output;
use crate::progress::{clock, shown_loss};

/// A run that has ended, as its `report.json` describes it.
pub(super) struct EndedRun {
    dir: PathBuf,
    report: Value,
}

impl EndedRun {
    /// The run in the directory that the flags mean, if it has ended. If the flags name
    /// coordinators, the program asks those instead.
    ///
    /// # Errors
    /// If a later build wrote the report.
    pub(super) fn find(flags: &ClusterFlags) -> Result<Option<Self>, Failure> {
        if !flags.coordinators.is_empty() {
            return Ok(None);
        }
        let Ok(dir) = ClusterHandle::dir(flags) else { return Ok(None) };
        Ok(cluster::ended(&dir)?.map(|report| Self { report, dir }))
    }

    /// An object with the keys of a coordinator's run.
    pub(super) fn json(&self) -> Value {
        let Self { report, .. } = self;
        let units = self.units();
        let count = |key: &str| report[key].as_array().map(Vec::len);
        json!({
            "id": null,
            "name": report["name"],
            "state": report["state"],
            "status": report["status"],
            "step": report["step"],
            "steps": report["run"]["steps"],
            "hash": report["state_hash"],
            "bitwise_reason": report["bitwise_reason"],
            "first_loss": report["loss"]["first"],
            "loss": report["loss"]["last"],
            "validation_loss": report["loss"]["validation"],
            "metric": report["metric"],
            "tokens_per_second": report["tokens_per_second"],
            "unit": units.unit,
            "loss_unit": units.loss_unit,
            "generations": count("generations"),
            "rollbacks": count("rollbacks"),
            "steps_redone": report["steps_redone"],
            "longest_stall_ms": report["longest_stall_ms"],
            "submitted_unix_ms": report["submitted_unix_ms"],
            "ended_unix_ms": report["ended_unix_ms"],
            "model": report["model"],
            "model_host": report["model_host"],
            "report": self.dir.join("report.json"),
        })
    }

    /// The units of its figures. A report of an older build has those of text.
    fn units(&self) -> Units {
        Units::deserialize(&self.report).unwrap_or_default()
    }

    /// Whether it is complete.
    pub(super) fn is_complete(&self) -> bool {
        self.report["state"] == "complete"
    }

    /// One line for a table.
    pub(super) fn row(&self) -> [String; 5] {
        let text = |key: &str| self.report[key].as_str().unwrap_or_default().to_string();
        let step = self.report["step"].to_string();
        ["-".into(), text("name"), text("state"), step, text("status")]
    }

    /// How the run ended, in a few lines for people.
    pub(super) fn words(&self) -> String {
        let Self { report, dir } = self;
        let text = |key: &str| report[key].as_str().unwrap_or_default();
        let mut lines = vec![format!("run \"{}\": {}", text("name"), text("status"))];
        let loss = |key: &str| report["loss"][key].as_f64();
        if let (Some(first), Some(last)) = (loss("first"), loss("last")) {
            let held_out =
                loss("validation").map(|loss| format!(", validation {}", shown_loss(loss)));
            let held_out = held_out.unwrap_or_default();
            let [first, last] = [shown_loss(first), self.units().loss(shown_loss(last))];
            lines.push(format!("  loss        {first} -> {last}{held_out}"));
        }
        if let Some(seconds) = report["wall_seconds"].as_f64() {
            lines.push(format!("  took        {} on {}", clock(seconds), text("host")));
        }
        if let Some(stall) = report["longest_stall_ms"].as_f64() {
            lines.push(format!("  stall       {stall:.0} ms at most"));
        }
        for (name, key) in [("state hash", "state_hash"), ("model", "model")] {
            lines.extend(report[key].as_str().map(|told| format!("  {name:<11} {told}")));
        }
        lines.extend(report["bitwise_reason"].as_str().map(|why| format!("  not bitwise: {why}")));
        lines.push(format!("  files       {}", dir.display()));
        lines.iter().map(|line| output::plain(line)).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn find(flags: &ClusterFlags) -> Option<EndedRun> {
        EndedRun::find(flags).expect("a report of this build, or none")
    }

    #[test]
    fn a_run_that_has_ended_is_told_of_without_its_coordinators() {
        let folder = tempfile::tempdir().expect("a folder");
        let flags = ClusterFlags { dir: Some(folder.path().into()), coordinators: Vec::new() };
        assert!(find(&flags).is_none(), "it has not ended");
        let report = json!({
            "name": "small", "state": "complete", "status": "complete: all 9 steps", "step": 9,
            "run": { "steps": 9 }, "loss": { "first": 5.5, "last": 2.5, "validation": 2.75 },
            "state_hash": "abcd", "model": "/m/model.safetensors", "wall_seconds": 61.0,
            "host": "ada", "longest_stall_ms": 57.4, "generations": [{}, {}], "rollbacks": [],
        });
        fs::write(folder.path().join("report.json"), report.to_string()).expect("written");
        let ended = find(&flags).expect("it has ended");
        assert!(ended.is_complete());
        let words = ended.words();
        for told in [
            "run \"small\": complete: all 9 steps",
            "loss        5.500 -> 2.500 nats, validation 2.750",
            "1 min 01 s on ada",
            "57 ms at most",
            "state hash  abcd",
            "model       /m/model.safetensors",
        ] {
            assert!(words.contains(told), "no \"{told}\" in {words}");
        }
        let told = ended.json();
        assert_eq!((&told["hash"], &told["generations"]), (&json!("abcd"), &json!(2)));
        let elsewhere = ClusterFlags { coordinators: vec!["127.0.0.1:1".into()], ..flags };
        assert!(find(&elsewhere).is_none(), "coordinators that are named are asked");
    }

    #[test]
    fn a_report_that_is_damaged_is_no_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let flags = ClusterFlags { dir: Some(folder.path().into()), coordinators: Vec::new() };
        for text in ["", "{", "[]", "\u{0}"] {
            fs::write(folder.path().join("report.json"), text).expect("written");
            assert!(find(&flags).is_none(), "{text}");
        }
        fs::write(folder.path().join("report.json"), "{}").expect("written");
        let nothing = find(&flags).expect("an object");
        assert!(!nothing.is_complete() && nothing.words().contains("files"), "and no panic");
    }
}

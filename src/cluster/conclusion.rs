//! `report.json`: how a run ended, for later readers.
//!
//! In: the run, its progress, and its ending. Out: one object with the keys of the report, the
//! run's state in a word and in a sentence, its specification, and when and where it was trained.
//! The launcher writes the file once, when no news follow. A directory without it has no ended run.
//! Keys are only ever added to it.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use everstep_transport::protocol::RunSpec;
use everstep_transport::protocol::outcome::event_json::utc;
use serde_json::{Value, json};

use super::{Directory, Progress, Report};
use crate::failure::{Exit, Failure};
use crate::file_format::{self, FORMAT_KEY};

/// The name of the file in the run's directory.
pub(crate) const REPORT: &str = "report.json";

/// The number of the file's format.
const FORMAT: u64 = 1;

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The run has trained its last step.
    Complete,
    /// The run cannot go on, for this reason.
    Failed(String),
    /// The launcher was told to end, or ended for a reason of its own.
    Interrupted,
}

impl Ending {
    /// A word for scripts.
    pub(super) fn state(&self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Failed(_) => "failed",
            Self::Interrupted => "interrupted",
        }
    }

    /// The reason. None for a complete run.
    fn reason(&self) -> Option<&str> {
        match self {
            Self::Complete => None,
            Self::Failed(reason) => Some(reason),
            Self::Interrupted => Some("its launcher ended before the run was over"),
        }
    }

    /// The line of `events.jsonl` for the end, if the coordinators have not told of it: they end
    /// with the launcher.
    pub(super) fn event(&self, progress: &Progress) -> Option<Value> {
        if progress.event_sums.has_ended {
            return None;
        }
        let number = progress.event_sums.newest() + 1;
        let (reason, step, unix_ms) = (self.reason(), progress.step(), now_unix_ms());
        Some(json!({
            "number": number, "unix_ms": unix_ms, "time": utc(unix_ms), "event": self.state(),
            "reason": reason, "step": step, "by": "launcher",
        }))
    }
}

/// The text of the file.
pub(super) fn text(
    directory: &Directory,
    run: &RunSpec,
    progress: &Progress,
    report: &Report,
    ending: &Ending,
) -> String {
    let mut told = json!(report);
    let step = progress.step();
    let sentence = match ending.reason() {
        None => format!("complete: all {} steps", run.steps),
        Some(reason) => {
            format!("{}: after step {step} of {}: {reason}", ending.state(), run.steps)
        }
    };
    let own = directory.path().join("model.safetensors");
    let own = own.is_file().then(|| own.display().to_string());
    let place = progress.model();
    let stalls = report.generations.iter().filter_map(|generation| generation.stall_ms);
    let submitted = progress.event_sums.submitted_unix_ms;
    let more = json!({
        FORMAT_KEY: FORMAT,
        "name": run.name,
        "state": ending.state(),
        "status": sentence,
        "reason": ending.reason(),
        "step": step,
        "checkpoint": progress.checkpoint(),
        "run": run,
        "model": place.map(|place| place.path.clone()).or(own),
        "model_host": place.map(|place| &place.host).filter(|host| !host.is_empty()),
        "longest_stall_ms": stalls.reduce(f64::max),
        "submitted_unix_ms": submitted,
        "ended_unix_ms": now_unix_ms(),
        "host": rustix::system::uname().nodename().to_string_lossy(),
        "version": env!("CARGO_PKG_VERSION"),
    });
    if *ending != Ending::Complete {
        told["state_hash"] = Value::Null;
    }
    if let (Value::Object(told), Value::Object(more)) = (&mut told, more) {
        told.extend(more);
    }
    format!("{told:#}\n")
}

/// The report of the run in this directory, if it has ended.
///
/// # Errors
/// If a later build wrote the report.
pub(crate) fn ended(dir: &Path) -> Result<Option<Value>, Failure> {
    let path = dir.join(REPORT);
    let text = fs::read_to_string(&path).unwrap_or_default();
    let Some(report) = serde_json::from_str(&text).ok().filter(Value::is_object) else {
        return Ok(None);
    };
    file_format::check(&report, FORMAT).map_err(|later| {
        Failure::new(Exit::Usage, "the report of the run cannot be read")
            .at(path.display())
            .because(later)
    })?;
    Ok(Some(report))
}

/// The report that a launcher of this build has written.
pub(crate) fn own_report(dir: &Path) -> Option<Value> {
    ended(dir).ok().flatten()
}

/// Adds the loss of a bigram model on the held-out text, which is known after the run. If the
/// report cannot be written, it stays as it was.
pub(crate) fn add_bigram(dir: &Path, bigram: Option<f64>) {
    let Some(mut told) = own_report(dir).filter(|_| bigram.is_some()) else { return };
    told["loss"]["bigram"] = json!(bigram);
    let partial = dir.join(format!("{REPORT}.partial"));
    let written = fs::write(&partial, format!("{told:#}\n"));
    let written = written.and_then(|()| fs::rename(&partial, dir.join(REPORT)));
    if let Err(error) = written {
        tracing::warn!(%error, "the bigram model's loss is not in {REPORT}");
    }
}

fn now_unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |span| span.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::outcome::{Event, EventKind};
    use everstep_transport::protocol::{MetricsLine, Step, exemplars};

    use super::*;
    use everstep_transport::protocol::reason::FailReason;

    fn progress(kind: EventKind) -> Progress {
        let line = MetricsLine { step: Step(3), ..MetricsLine::default() };
        let event = Event { number: 7, unix_ms: 5, kind };
        let mut progress = Progress::default();
        progress.settle(line);
        progress.hear(event);
        progress
    }

    #[test]
    fn an_end_that_the_coordinators_have_told_is_not_told_again() {
        let told = progress(EventKind::Failed { reason: FailReason::Cancelled });
        assert_eq!(Ending::Failed("no disk".into()).event(&told), None);
        let untold = progress(EventKind::Submitted { run: "one".into() });
        let event = Ending::Interrupted.event(&untold).expect("nobody else tells it");
        assert_eq!((&event["number"], &event["event"]), (&json!(8), &json!("interrupted")));
        assert_eq!(event["step"], 3);
        assert_eq!(event["time"], json!(utc(event["unix_ms"].as_u64().expect("a time"))));
    }

    #[test]
    fn a_report_tells_how_a_run_ended_even_if_it_is_not_complete() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = RunSpec { steps: 9, ..exemplars::run() };
        let directory = Directory::claim(folder.path(), &run).expect("a directory");
        assert_eq!(ended(folder.path()), Ok(None), "it has not ended");
        let progress = progress(EventKind::Submitted { run: "one".into() });
        let report = Report::new(&run, &progress, std::time::Duration::from_secs(1));
        let text = text(&directory, &run, &progress, &report, &Ending::Interrupted);
        directory.write(REPORT, text.as_bytes()).expect("written");
        let told = own_report(folder.path()).expect("it has ended");
        assert_eq!(told["format"], 1);
        assert_eq!((&told["state"], &told["step"]), (&json!("interrupted"), &json!(3)));
        assert_eq!((&told["state_hash"], &told["model"]), (&Value::Null, &Value::Null));
        assert!(told["status"].as_str().expect("words").contains("after step 3 of 9"), "{told}");
        add_bigram(folder.path(), Some(2.5));
        assert_eq!(own_report(folder.path()).expect("still there")["loss"]["bigram"], 2.5);
    }

    #[test]
    fn i23_a_report_of_a_later_format_is_refused_by_its_number() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join(REPORT), r#"{ "format": 9, "state": "x" }"#).expect("written");
        let words = ended(folder.path()).expect_err("a later format").to_string();
        assert!(words.contains("report.json") && words.contains("it has format 9"), "{words}");
    }
}

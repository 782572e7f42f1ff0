//! `everstep resume`: goes on with the run of a local cluster whose processes have all ended.

use std::path::Path;
use std::time::Duration;

use everstep_transport::protocol::{RunSpec, Step};
use everstep_worker::builtin;
use everstep_worker::registry::Registry;
use serde_json::Value;

use crate::cli::ResumeFlags;
use crate::cluster::{self, ClusterError, ClusterOptions, Directory, Earlier, Report};
use crate::failure::{Exit, Failure};
use crate::text::RunText;
use crate::train::{self, ReportFile, Trained};
use crate::{logging, output, progress};

pub(crate) fn run(flags: &ResumeFlags, registry: &Registry) -> Result<(), Failure> {
    logging::start("warn")?;
    if let Some(words) = cluster::ended(&flags.dir).and_then(|it| complete(&flags.dir, &it)) {
        return output::print(words);
    }
    let (directory, run) = Directory::reopen(&flags.dir)?;
    check(flags, &run, registry)?;
    let workers = flags.workers.unwrap_or_else(|| as_before(directory.path(), &run));
    for note in notes(workers, &run) {
        output::say(format_args!("note: {note}"));
    }
    let report_file = flags.report.as_deref().map(ReportFile::open).transpose()?;
    let home = directory.path().to_path_buf();
    let report = go_on(flags, (&run, workers), directory, registry);
    let trained = Trained { run: &run, home: &home, text: &RunText::of(&run) };
    trained.conclude(report, report_file, registry)
}

/// What to say of a run that is complete. None if it is not.
fn complete(dir: &Path, report: &Value) -> Option<String> {
    if report["state"] != "complete" {
        return None;
    }
    let name = report["name"].as_str().unwrap_or_default();
    let place = match (report["model_host"].as_str(), report["model"].as_str()) {
        (Some(host), Some(model)) => format!("{host}:{model}"),
        (None, Some(model)) => model.to_string(),
        _ => dir.join("model.safetensors").display().to_string(),
    };
    Some(output::plain(&format!("run \"{name}\" is complete: its model is {place}")))
}

/// Finds errors that every worker would find only after its start.
fn check(flags: &ResumeFlags, run: &RunSpec, registry: &Registry) -> Result<(), Failure> {
    registry.validate(run).map_err(|error| {
        Failure::new(Exit::Usage, "this program cannot train the run")
            .at(flags.dir.join("run.json").display())
            .because(error)
            .next("resume it with the program that began it")
    })?;
    registry.devices().check(&flags.device, builtin::precision(run)).map_err(|error| {
        Failure::new(Exit::Usage, "the device cannot be used")
            .at(format!("--device {}", flags.device))
            .because(error)
            .next("everstep devices lists what this machine has")
    })
}

/// As many workers as there were when the run stopped, else as many as it began with.
fn as_before(dir: &Path, run: &RunSpec) -> u32 {
    match Earlier::read(dir).living() {
        0 => run.start_workers.max(1),
        living => living,
    }
}

fn notes(workers: u32, run: &RunSpec) -> Vec<String> {
    let idle = train::idle(workers, run.batch.data_shards);
    let (wanted, here) = (run.min_workers, workers);
    let few = (wanted > here).then(|| {
        format!(
            "the run needs {wanted} workers, and {here} start here: it waits until others join \
             with `everstep worker`"
        )
    });
    idle.into_iter().chain(few).collect()
}

fn go_on(
    flags: &ResumeFlags,
    (run, workers): (&RunSpec, u32),
    directory: Directory,
    registry: &Registry,
) -> Result<Report, ClusterError> {
    let mut display = progress::Display::new(run, workers, directory.path()).resumed();
    let options = ClusterOptions {
        wait: Duration::from_secs(flags.wait.into()),
        respawn: flags.respawn,
        trace: flags.traces,
        device: flags.device.clone(),
        devices: registry.devices().clone(),
        ..ClusterOptions::new(workers)
    };
    let from = flags.step.map(Step);
    let report = cluster::resume(run, directory, &options, from, |progress| display.show(progress));
    display.end();
    report
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::exemplars;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_complete_run_says_where_its_model_is() {
        let dir = Path::new("runs/a");
        let report =
            json!({ "state": "complete", "name": "a", "model": "/m", "model_host": "ada" });
        let told = complete(dir, &report).expect("complete");
        assert_eq!(told, "run \"a\" is complete: its model is ada:/m");
        let told = complete(dir, &json!({ "state": "complete", "name": "a" })).expect("complete");
        assert!(told.ends_with("runs/a/model.safetensors"), "{told}");
        assert_eq!(complete(dir, &json!({ "state": "interrupted" })), None);
    }

    #[test]
    fn as_many_workers_come_back_as_there_were() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = RunSpec { start_workers: 4, min_workers: 3, ..exemplars::run() };
        assert_eq!(as_before(folder.path(), &run), 4, "nothing says how many there were");
        let worker = json!({ "name": "worker-a", "label": "worker-1", "state": "training" });
        let cluster = json!({ "workers": [worker] }).to_string();
        std::fs::write(folder.path().join("cluster.json"), cluster).expect("written");
        assert_eq!(as_before(folder.path(), &run), 1);
        assert!(notes(1, &run).iter().any(|note| note.contains("the run needs 3 workers")));
        assert!(!notes(3, &run).iter().any(|note| note.contains("needs")));
    }
}

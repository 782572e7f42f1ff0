//! `everstep resume`: goes on with the run of a local cluster whose processes have all ended.

mod checks;
mod source;
mod stored;
mod stored_run;

use std::path::Path;

use everstep_kernels::device::DeviceChoice;
use everstep_transport::protocol::{RunSpec, Step};
use everstep_worker::builtin;
use everstep_worker::registry::Registry;
use serde_json::Value;

use self::source::ResumeSource;
pub(crate) use self::source::store_of;
pub(crate) use self::stored::{ClaimedRun, check_stored, read_run, read_stored, use_data};
use crate::cli::ResumeFlags;
use crate::cluster::{self, ClusterError, ClusterOptions, Directory, Earlier, Report, Script};
use crate::failure::{Exit, Failure};
use crate::script::gpus;
use crate::store_check::{self, StoreUse};
use crate::text::RunText;
use crate::train::{self, ReportFile, Trained};
use crate::{logging, output, progress, script};

pub(crate) fn run(flags: &ResumeFlags, registry: &Registry) -> Result<(), Failure> {
    logging::start("warn")?;
    if let Some(words) = cluster::ended(&flags.from)?.and_then(|it| complete(&flags.from, &it)) {
        return output::print(words);
    }
    match ResumeSource::find(&flags.from)? {
        ResumeSource::Directory => in_directory(flags, registry),
        ResumeSource::Store(place) => stored::run(flags, &place, registry),
    }
}

/// The coordinators of the directory know the run, and go on there.
fn in_directory(flags: &ResumeFlags, registry: &Registry) -> Result<(), Failure> {
    let (directory, run) = Directory::reopen(&flags.from)?;
    unused(flags).for_each(|note| output::say(format_args!("note: {note}")));
    let script = script::of_kept_run(&run, &flags.from, &flags.script)?;
    let script =
        script.map(|script| seeing(script, flags.local.device.as_ref(), registry)).transpose()?;
    if script.is_none() {
        check(&flags.from, &flags.local.device(), &run, registry)?;
    }
    checks::check_checkpoints(&flags.from, &run, flags.step)?;
    if let Some(spec) = &run.checkpoint {
        store_check::check(spec, StoreUse::Resume)?;
    }
    let workers = flags.workers.unwrap_or_else(|| as_before(directory.path(), &run));
    for note in notes(workers, &run) {
        output::say(format_args!("note: {note}"));
    }
    let report_file = flags.local.start.report.as_deref().map(ReportFile::open).transpose()?;
    let home = directory.path().to_path_buf();
    if let Some(script) = &script
        && !script::is_kept(directory.path())
    {
        script::keep(&directory, script)?;
    }
    let options = ClusterOptions { script, ..train::options(&flags.local, workers, registry) };
    let report = match (go_on(flags.step, &run, directory, &options), flags.step) {
        (Err(ClusterError::Refused(reason)), Some(step)) => {
            return Err(refused(&home, step, reason));
        }
        (report, _) => report,
    };
    let trained = Trained { run: &run, home: &home, text: &RunText::of(&run) };
    trained.conclude(report, report_file, registry)
}

/// The script with the GPUs of `--device`, which by default are those of before.
fn seeing(
    script: Script,
    stated: Option<&DeviceChoice>,
    registry: &Registry,
) -> Result<Script, Failure> {
    let device = stated.cloned().or(script.device);
    device.as_ref().map(|device| gpus::check(device, registry.devices())).transpose()?;
    Ok(Script { device, ..script })
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
pub(crate) fn check(
    from: &Path,
    device: &DeviceChoice,
    run: &RunSpec,
    registry: &Registry,
) -> Result<(), Failure> {
    registry.validate(run).map_err(|error| {
        Failure::new(Exit::Usage, "this program cannot train the run")
            .at(from.display())
            .because(error)
            .next("resume it with the program that began it")
    })?;
    registry.devices().check(device, builtin::precision(run)).map_err(|error| {
        Failure::new(Exit::Usage, "the device cannot be used")
            .at(format!("--device {device}"))
            .because(error)
            .next("everstep devices lists what this machine has")
    })
}

fn refused(dir: &Path, step: u64, reason: String) -> Failure {
    Failure::new(Exit::Usage, format!("the run does not go back to step {step}"))
        .at(dir.display())
        .because(reason)
        .next("name another step with --step, or leave it out for the newest checkpoint")
}

/// Notes on flags that a run in its own directory has no use for.
fn unused(flags: &ResumeFlags) -> impl Iterator<Item = &'static str> {
    let dir = flags.local.start.dir.as_ref();
    let elsewhere = dir.filter(|dir| **dir != flags.from);
    let elsewhere = elsewhere.map(|_| "--dir is not used: the run goes on in its own directory");
    let data = flags.data.as_ref().map(|_| "--data is not used: the run's directory names them");
    elsewhere.into_iter().chain(data)
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
    step: Option<u64>,
    run: &RunSpec,
    directory: Directory,
    options: &ClusterOptions,
) -> Result<Report, ClusterError> {
    let mut display = progress::Display::new(run, options.workers, directory.path()).resumed();
    let from = step.map(Step);
    let report = cluster::resume(run, directory, options, from, |progress| display.show(progress));
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

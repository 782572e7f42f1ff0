//! `everstep train`: a local cluster of real processes that trains one run.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use everstep_kernels::device::{DeviceChoice, OpenError};
use everstep_transport::protocol::{CheckpointSpec, RunSpec};
use everstep_worker::builtin;
use everstep_worker::registry::Registry;

use crate::cli::{LocalFlags, StartFlags, TrainFlags};
use crate::cluster::{self, ClusterError, ClusterOptions, Directory, Report, resume_command};
use crate::config::{self, Resolved};
use crate::failure::{Exit, Failure};
use crate::generate::{self, continue_text, read_model, visible};
use crate::store_check::{self, StoreUse};
use crate::text::RunText;
use crate::{dry_run, logging, output, progress, scratch};

pub(crate) fn run(flags: &TrainFlags, registry: &Registry) -> Result<(), Failure> {
    logging::start("warn")?;
    check_coordinators(flags.local.start.coordinators)?;
    let mut resolved = config::read(flags.config.as_deref(), &flags.overrides, registry)?;
    for note in &resolved.notes {
        output::say(format_args!("note: {note}"));
    }
    let shards = resolved.run.batch.data_shards;
    idle(resolved.workers, shards)
        .into_iter()
        .for_each(|note| output::say(format_args!("note: {note}")));
    if !flags.dry_run {
        check_device(&flags.local.device(), &resolved, registry)?;
    }
    let text = RunText::find(&resolved)?;
    if flags.dry_run {
        check_dry_run(flags, &resolved, registry)?;
        let estimate = |resolved: &Resolved| dry_run::run(resolved, &flags.local, registry);
        return with_listed_text(&resolved, &text, estimate);
    }
    with_listed_text(&resolved, &text, |resolved| check_model_and_data(resolved, registry))?;
    let (directory, report_file) = claim_directory(&flags.local.start, &mut resolved.run, &text)?;
    let home = directory.path().to_path_buf();
    let report = train(flags, &resolved, directory, registry);
    let trained = Trained { run: &resolved.run, home: &home, text: &text };
    trained.conclude(report, report_file, registry)
}

/// A run that has come to its end, and what a verb tells of it.
pub(crate) struct Trained<'a> {
    /// The specification of the run.
    pub(crate) run: &'a RunSpec,
    /// The directory of the run.
    pub(crate) home: &'a Path,
    /// The source of its data.
    pub(crate) text: &'a RunText,
}

impl Trained<'_> {
    /// Writes and prints the results of a complete run, or says what remains of an interrupted one.
    pub(crate) fn conclude(
        &self,
        report: Result<Report, ClusterError>,
        report_file: Option<ReportFile>,
        registry: &Registry,
    ) -> Result<(), Failure> {
        let Self { run, home, text } = self;
        let mut report = report.map_err(|error| interrupted(error.into(), home, run))?;
        let facts = text.facts(run);
        report.loss.bigram = facts.bigram;
        cluster::add_bigram(home, report.loss.bigram);
        if let Some(file) = report_file {
            file.write(&report)?;
        }
        output::print(progress::summary(run, &report, home))?;
        let model = home.join("model.safetensors");
        if !model.is_file() && !is_stored(run, home) {
            return Err(without_model(&model, home, &report));
        }
        match facts.prompt.and_then(|prompt| sample(run, &model, &prompt, registry)) {
            Some(sample) => output::print(sample),
            None => Ok(()),
        }
    }
}

/// Most of the coordinators have to agree. So an even number is no safer than the odd one below it.
pub(crate) fn check_coordinators(count: u32) -> Result<(), Failure> {
    if matches!(count, 1 | 3 | 5) {
        return Ok(());
    }
    let what = format!("there cannot be {count} coordinators");
    Err(Failure::new(Exit::Usage, what)
        .at("--coordinators")
        .because("it must be 1, 3 or 5: three go on without one, five without two")
        .next("pass --coordinators 3"))
}

/// A note on workers that have nothing to compute.
pub(crate) fn idle(workers: u32, data_shards: u32) -> Option<String> {
    let idle = workers.checked_sub(data_shards).filter(|idle| *idle > 0)?;
    let plural = if data_shards == 1 { "" } else { "s" };
    Some(format!(
        "{idle} of {workers} workers compute nothing: every batch has {data_shards} data \
         shard{plural} (batch.data_shards), and each is computed by one worker"
    ))
}

/// Refuses what a run would refuse, but for a named GPU that this machine lacks: the user may ask
/// about it.
fn check_dry_run(
    flags: &TrainFlags,
    resolved: &Resolved,
    registry: &Registry,
) -> Result<(), Failure> {
    let (start, device) = (&flags.local.start, &flags.local.device());
    match device {
        DeviceChoice::Kind(..) => {
            let provider = registry.devices().provider(device);
            provider.map_err(|error| unusable(device, &error))?;
        }
        DeviceChoice::Auto(_) | DeviceChoice::Cpu => check_device(device, resolved, registry)?,
    }
    check_places(start, resolved.run.checkpoint.as_ref())
}

/// Refuses places that a run could not have.
pub(crate) fn check_places(
    start: &StartFlags,
    store: Option<&CheckpointSpec>,
) -> Result<(), Failure> {
    start.dir.as_deref().map_or(Ok(()), Directory::check)?;
    check_report(start)?;
    // A folder in the run's directory is not there before the run.
    match store.filter(|spec| config::is_elsewhere(spec).is_none()) {
        Some(spec) => store_check::check(spec, StoreUse::Estimate),
        None => Ok(()),
    }
}

/// Finds errors that every worker would find only when it builds its model.
fn check_device(
    device: &DeviceChoice,
    resolved: &Resolved,
    registry: &Registry,
) -> Result<(), Failure> {
    let checked = registry.devices().check(device, builtin::precision(&resolved.run));
    checked.map_err(|error| match error {
        OpenError::Precision(_) => {
            resolved.refusal("model.precision", &format!("cannot be used: {error}")).into()
        }
        _ => unusable(device, &error),
    })
}

fn unusable(device: &DeviceChoice, error: &OpenError) -> Failure {
    Failure::new(Exit::Usage, "the device cannot be used")
        .at(format!("--device {device}"))
        .because(error)
        .next("everstep devices lists what this machine has")
}

/// Refuses a report that cannot be written. A folder that the run would make is not there yet.
fn check_report(flags: &StartFlags) -> Result<(), Failure> {
    let Some(report) = &flags.report else { return Ok(()) };
    let made = flags.dir.as_ref().map_or_else(|| PathBuf::from("runs"), |dir| dir.join("logs"));
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_default();
    let (report_path, made) = (absolute(report), absolute(&made));
    let will_be_made = |folder: &Path| !folder.exists() && made.starts_with(folder);
    match report_path.parent().is_some_and(will_be_made) {
        true => Ok(()),
        false => ReportFile::open(report).map(drop),
    }
}

/// Calls `examine` with a run that has no directory yet. The default text is listed in a temporary
/// one.
pub(crate) fn with_listed_text(
    resolved: &Resolved,
    text: &RunText,
    examine: impl FnOnce(&Resolved) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let folder = scratch::folder()?;
    let mut resolved = resolved.clone();
    resolved.run.data = text.listed_in(folder.path(), &resolved.run.data)?;
    examine(&resolved)
}

/// Finds errors that a worker would find only after its start.
pub(crate) fn check_model_and_data(
    resolved: &Resolved,
    registry: &Registry,
) -> Result<(), Failure> {
    let refused = |key, error: &dyn std::fmt::Display| {
        Failure::from(resolved.refusal(key, &format!("cannot be used: {error}")))
    };
    registry.plan_model(&resolved.run).map_err(|error| refused("model.kind", &error))?;
    let dataset =
        registry.build_dataset(&resolved.run).map_err(|error| refused("data.path", &error))?;
    if dataset.is_empty() {
        return Err(refused("data.kind", &"the data set is empty"));
    }
    Ok(())
}

/// Makes the places of the run's files, and names the data in `run` as the workers will find them.
/// A directory in which no run can begin is not kept.
pub(crate) fn claim_directory(
    flags: &StartFlags,
    run: &mut RunSpec,
    text: &RunText,
) -> Result<(Directory, Option<ReportFile>), Failure> {
    let (directory, report_file) = claim(flags, run)?;
    let directory = with_usable_store(directory, run.checkpoint.as_ref())?;
    run.data = text.listed_in(directory.path(), &run.data)?;
    directory.write_run(run)?;
    Ok((directory, report_file))
}

/// Gives the directory back if the run's store can keep checkpoints, or is away for the moment.
pub(crate) fn with_usable_store(
    directory: Directory,
    store: Option<&CheckpointSpec>,
) -> Result<Directory, Failure> {
    let Some(spec) = store else { return Ok(directory) };
    let spec = directory.placed_store(spec)?;
    if let Err(failure) = store_check::check(&spec, StoreUse::Begin) {
        if Path::new(&spec.path).starts_with(directory.path()) {
            let _ = fs::remove_dir(&spec.path); // an error leaves what is in it
        }
        directory.give_up();
        return Err(failure);
    }
    Ok(directory)
}

/// Makes the places of a run's files.
pub(crate) fn claim(
    flags: &StartFlags,
    run: &RunSpec,
) -> Result<(Directory, Option<ReportFile>), Failure> {
    let directory = match &flags.dir {
        Some(path) => Directory::claim(path, run)?,
        None => Directory::claim_new(Path::new("runs"), run)?,
    };
    let report_file = match flags.report.as_deref().map(ReportFile::open).transpose() {
        Ok(file) => file,
        Err(failure) => {
            directory.give_up();
            return Err(failure);
        }
    };
    Ok((directory, report_file))
}

/// The settings of a local cluster with so many workers.
pub(crate) fn options(flags: &LocalFlags, workers: u32, registry: &Registry) -> ClusterOptions {
    ClusterOptions {
        trace: flags.traces,
        device: flags.device(),
        devices: registry.devices().clone(),
        threads: flags.threads,
        ..start_options(&flags.start, workers)
    }
}

/// The settings of a local cluster with so many workers, which compute on the CPU.
pub(crate) fn start_options(flags: &StartFlags, workers: u32) -> ClusterOptions {
    ClusterOptions {
        coordinators: flags.coordinators,
        wait: flags.wait,
        respawn: flags.respawn,
        ..ClusterOptions::new(workers)
    }
}

fn train(
    flags: &TrainFlags,
    resolved: &Resolved,
    directory: Directory,
    registry: &Registry,
) -> Result<Report, ClusterError> {
    let Resolved { run, workers, .. } = resolved;
    let mut display = progress::Display::new(run, *workers, directory.path());
    let options = options(&flags.local, *workers, registry);
    let report = cluster::train(run, directory, &options, |progress| display.show(progress));
    display.end();
    report
}

/// What remains of an interrupted run, and how it goes on.
pub(crate) fn interrupted(failure: Failure, home: &Path, run: &RunSpec) -> Failure {
    if !failure.is_interruption() {
        return failure;
    }
    let ended = cluster::own_report(home).unwrap_or_default();
    let (step, steps) = (ended["step"].as_u64().unwrap_or_default(), run.steps);
    let command = resume_command(home);
    let next = match (ended["checkpoint"].as_u64(), &run.checkpoint) {
        (Some(step), _) => format!("{command} goes on from the checkpoint of step {step}"),
        (None, Some(_)) => format!(
            "no checkpoint was complete yet: {command} begins at the first step, and ends with the \
             same bits"
        ),
        (None, None) => format!(
            "it has no checkpoints: {command} begins at the first step, and ends with the same \
             bits. With a section [checkpoint] a run goes on from its newest one"
        ),
    };
    failure
        .at(home.display())
        .because(format!("the run stopped after step {step} of {steps}, and its files are kept"))
        .next(next)
}

/// Whether the model of a complete run is in the store of its checkpoints.
fn is_stored(run: &RunSpec, home: &Path) -> bool {
    let place = run.checkpoint.as_ref().map(CheckpointSpec::model_path);
    place.is_some()
        && cluster::own_report(home).and_then(|it| it["model"].as_str().map(Into::into)) == place
}

/// A run with all results but a model in the place where its user will look for it.
fn without_model(model: &Path, home: &Path, report: &Report) -> Failure {
    let place = cluster::own_report(home);
    let told = |key: &str| place.as_ref()?[key].as_str().map(str::to_string);
    let place = match (told("model_host"), told("model")) {
        (Some(host), Some(path)) => format!("{host}:{path}"),
        _ => "that worker's --dir".into(),
    };
    Failure::new(Exit::Failed, "the run is complete, but its model is not in its directory")
        .at(model.display())
        .because(format!(
            "a worker that was started by hand wrote it to its own --dir: {place}, and the state \
             hash is {}",
            report.state_hash
        ))
        .next(
            "copy it from there. The next time start workers with --join @DIR/join.token, DIR \
             being the run's directory",
        )
}

/// The parameters of the largest model of which a run shows a sample at its end. A larger one would
/// take the CPU more than some seconds, and `everstep generate` is there for it.
const MAX_SAMPLED_PARAMETERS: usize = 16 << 20;

/// Whether a run shows a sample at its end.
fn is_sampled(run: &RunSpec, registry: &Registry) -> bool {
    let plan = registry.plan_model(run);
    plan.is_ok_and(|plan| plan.layout.count() <= MAX_SAMPLED_PARAMETERS)
}

/// Continues some held-out text with the trained model, if the model can do that.
fn sample(run: &RunSpec, model: &Path, prompt: &[u8], registry: &Registry) -> Option<String> {
    if !is_sampled(run, registry) {
        return None;
    }
    let options = generate::GenerateOptions { bytes: 240, temperature: 0.7, seed: run.seed };
    let mut compute = read_model(model, registry).ok()?;
    let continued = continue_text(compute.as_mut(), prompt, &options)?;
    let head = "a held-out beginning, and what the model makes of it after \"|\":";
    Some(format!("{head}\n\n{}|{}\n", visible(prompt), visible(&continued)))
}

/// The file of `--report`, which can be written. If it is dropped before a write, it stays as it
/// was.
pub(crate) struct ReportFile {
    path: PathBuf,
    is_new: bool,
}

impl ReportFile {
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let mut options = OpenOptions::new();
        options.write(true);
        let is_new = match options.clone().create_new(true).open(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                options.open(path).map(|_| false)
            }
            created => created.map(|_| true),
        };
        let is_new = is_new.map_err(|error| {
            Failure::new(Exit::Usage, "the report cannot be written")
                .at(path.display())
                .because(error)
                .next("name a file that can be written with --report")
        })?;
        Ok(Self { path: path.to_path_buf(), is_new })
    }

    pub(crate) fn write(mut self, report: &Report) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(report).expect("a report is plain data");
        fs::write(&self.path, text + "\n").map_err(|error| {
            Failure::new(Exit::Failed, "the report cannot be written")
                .at(self.path.display())
                .because(error)
                .next("the run is complete, and its files are in its directory")
        })?;
        self.is_new = false;
        Ok(())
    }
}

impl Drop for ReportFile {
    fn drop(&mut self) {
        if self.is_new {
            let _ = fs::remove_file(&self.path); // it says nothing
        }
    }
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::checkpoint::{CheckpointSpec, OnFailure};
    use everstep_transport::protocol::exemplars;
    use everstep_worker::builtin;

    use super::*;
    use crate::cli::Overrides;

    #[test]
    fn workers_that_would_compute_nothing_are_told_of() {
        assert_eq!(idle(4, 4), None);
        let told = idle(5, 4).expect("one is idle");
        assert!(told.starts_with("1 of 5 workers compute nothing: every batch has 4 data shards"));
    }

    /// It would take a GPT-2 minutes on a CPU.
    #[test]
    fn the_sample_of_a_large_model_is_left_to_the_verb_for_it() {
        let mut run = exemplars::run();
        assert!(is_sampled(&run, &builtin::registry()));
        (run.model.layers, run.model.heads, run.model.width) = (12, 12, 768);
        assert!(!is_sampled(&run, &builtin::registry()));
    }

    #[test]
    fn an_interrupted_run_says_from_which_checkpoint_it_goes_on() {
        let folder = scratch::folder().expect("a folder");
        let words = |report: &str, checkpoint: Option<CheckpointSpec>| {
            fs::write(folder.path().join("report.json"), report).expect("written");
            let run = RunSpec { steps: 90, checkpoint, ..exemplars::run() };
            let failure = Failure::new(Exit::Interrupted, "interrupted");
            interrupted(failure, folder.path(), &run).to_string()
        };
        let (path, on_failure) = ("/c".to_string(), OnFailure::Continue);
        let spec = CheckpointSpec { path, every: 5, keep: 3, keep_every: 0, on_failure };
        let told = words("{\"step\": 47, \"checkpoint\": 45}", Some(spec.clone()));
        assert!(told.contains("the run stopped after step 47 of 90"), "{told}");
        let command = format!("`everstep resume {}`", folder.path().display());
        assert!(told.contains(&format!("{command} goes on from the checkpoint of step 45")));
        let told = words("{\"step\": 3, \"checkpoint\": null}", Some(spec));
        assert!(told.contains("no checkpoint was complete yet"), "{told}");
        let told = words("{\"step\": 3, \"checkpoint\": null}", None);
        assert!(told.contains("it has no checkpoints") && told.contains(&command), "{told}");
    }

    #[test]
    fn a_data_set_of_the_program_gets_the_path_that_the_user_stated() {
        let folder = scratch::folder().expect("a folder");
        let registry = builtin::registry().dataset("rings", |run| Err(run.data.path.clone()));
        let config = folder.path().join("run.toml");
        fs::write(&config, "[data]\nkind = \"rings\"\npath = \"rings://7\"").expect("written");
        let read = config::read(Some(&config), &Overrides::default(), &registry);
        let mut resolved = read.expect("a valid run");
        let text = RunText::find(&resolved).expect("nothing to look for");

        let told = with_listed_text(&resolved, &text, |resolved| {
            check_model_and_data(resolved, &registry)
        });
        let told = told.expect_err("it says its path").to_string();
        assert!(told.contains("cannot build the data set \"rings\": rings://7"), "{told}");

        let flags = StartFlags { dir: Some(folder.path().join("run")), ..StartFlags::default() };
        let (directory, _) =
            claim_directory(&flags, &mut resolved.run, &text).expect("a directory");
        assert_eq!(resolved.run.data.path, "rings://7");
        let stated = fs::read_to_string(directory.path().join("run.json")).expect("claimed");
        assert!(stated.contains("rings://7"), "{stated}");
    }
}

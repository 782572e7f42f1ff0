//! `everstep launch`: a local cluster whose workers are processes of a Python script.
//!
//! The launcher imports nothing of Python. The first process of the script says which run it
//! trains. The launcher adds what decides no bit of it, such as checkpoints.
//!
//! A script that is started without a launcher starts one for itself, with `--attached`. It states
//! its run on the launcher's stdin, and joins as a worker of its own.

use std::cell::RefCell;
use std::io::{self, BufRead};
use std::path::Path;

use everstep_kernels::device::DeviceChoice;
use everstep_transport::protocol::RunSpec;
use everstep_worker::registry::Registry;
use serde_json::json;

use crate::cli::{LaunchFlags, WorkerCount};
use crate::cluster::{self, ClusterOptions, Directory, Script};
use crate::config::{self, LaunchSettings};
use crate::failure::{Exit, Failure};
use crate::progress::Display;
use crate::script::{Measured, gpus};
use crate::text::RunText;
use crate::train::{self, ReportFile, Trained, check_coordinators, check_places, start_options};
use crate::{announce, logging, output, supervision};

/// What stands for the script of a run that is attached to a process without one, such as that of a
/// notebook.
const NO_SCRIPT: &str = "SCRIPT";

pub(crate) fn run(flags: &LaunchFlags, registry: &Registry) -> Result<(), Failure> {
    logging::start("warn")?;
    check_coordinators(flags.start.coordinators)?;
    let settings = config::read_launch(flags.config.as_deref(), flags.checkpoint_every)?;
    let stated = if flags.attached { Some(stated_by_parent()?) } else { None };
    let script = script(flags, registry)?;
    if flags.dry_run {
        return dry_run(
            flags,
            workers(flags, registry),
            &settings,
            &gpus::first(script, registry.devices()),
        );
    }
    let report_file = flags.start.report.as_deref().map(ReportFile::open).transpose()?;
    let directory = claim(flags, &settings, &script)?;
    let home = directory.path().to_path_buf();
    let workers = if flags.attached { 0 } else { workers(flags, registry) };
    let started = start_options(&flags.start, workers);
    let devices = registry.devices().clone();
    let options = ClusterOptions { script: Some(script), devices, ..started };
    let shown: RefCell<Option<(RunSpec, Display)>> = RefCell::default();
    let begin = |stated: &RunSpec| {
        let run = settings.complete(stated, workers.max(1));
        let display = Display::new(&run, workers.max(1), &home);
        *shown.borrow_mut() = Some((run.clone(), display));
        run
    };
    let watch = |progress: &cluster::Progress| {
        if let Some((_, display)) = &mut *shown.borrow_mut() {
            display.show(progress);
        }
    };
    let trained = match &stated {
        Some(stated) => {
            announce(&json!({ "directory": home }));
            cluster::train(&begin(stated), directory, &options, watch)
        }
        None => {
            output::say(format_args!("starting {} of {}", processes(workers), name(flags)));
            cluster::launch(directory, &options, begin, watch)
        }
    };
    let Some((run, display)) = shown.into_inner() else {
        Directory::forget(&home);
        return trained.map(drop).map_err(Failure::from);
    };
    display.end();
    let trained_run = Trained { run: &run, home: &home, text: &RunText::of(&run) };
    trained_run.conclude(trained, report_file, registry)
}

/// Has one process of the script measure what the run needs, and prints it.
fn dry_run(
    flags: &LaunchFlags,
    workers: u32,
    settings: &LaunchSettings,
    script: &Script,
) -> Result<(), Failure> {
    check_places(&flags.start, settings.checkpoint.as_ref())?;
    let measured = Measured::of(script)?;
    let run = settings.complete(&measured.run, workers);
    crate::dry_run::of_script(&measured, &run, workers, &flags.script[0].to_string_lossy())
}

/// The run that the parent process trains, from the first line on stdin. This process ends with its
/// parent.
fn stated_by_parent() -> Result<RunSpec, Failure> {
    let failed = |why: String| {
        Failure::new(Exit::Usage, "the parent process states no run").at("stdin").because(why)
    };
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).map_err(|error| failed(error.to_string()))?;
    let run = serde_json::from_str(&line).map_err(|error| failed(error.to_string()))?;
    supervision::start()?;
    Ok(run)
}

/// Makes the place of the run's files, with its script in it. A directory in which no run can begin
/// is not kept.
fn claim(
    flags: &LaunchFlags,
    settings: &LaunchSettings,
    script: &Script,
) -> Result<Directory, Failure> {
    let directory = match &flags.start.dir {
        Some(path) => Directory::claim_empty(path)?,
        None => Directory::claim_new_empty(Path::new("runs"), &name(flags))?,
    };
    let directory = train::with_usable_store(directory, settings.checkpoint.as_ref())?;
    match crate::script::keep(&directory, script) {
        Ok(()) => Ok(directory),
        Err(failure) => {
            directory.give_up();
            Err(failure)
        }
    }
}

/// How many workers to start. `auto` is one for each GPU, where they get those in turn.
fn workers(flags: &LaunchFlags, registry: &Registry) -> u32 {
    let in_turn = |device: &DeviceChoice| gpus::in_turn(device, registry.devices()).len() as u32;
    match (flags.workers, &flags.device) {
        (WorkerCount::Auto, Some(device)) if in_turn(device) > 0 => in_turn(device),
        _ => flags.workers(),
    }
}

/// The script of the workers. Its interpreter is that of this program, if one runs it.
fn script(flags: &LaunchFlags, registry: &Registry) -> Result<Script, Failure> {
    if flags.script.is_empty() {
        return crate::script::here(&[NO_SCRIPT.into()], flags.threads, flags.isa);
    }
    let script = crate::script::found_here(&flags.script, flags.threads, flags.isa)?;
    if let Some(device) = &flags.device {
        gpus::check(device, registry.devices())?;
    }
    Ok(Script { device: flags.device.clone(), ..script })
}

/// The name of the script, for its directory.
fn name(flags: &LaunchFlags) -> String {
    let stem = flags.script.first().and_then(|script| Path::new(script).file_stem());
    stem.map_or("script".into(), |stem| stem.to_string_lossy().into_owned())
}

fn processes(count: u32) -> String {
    format!("{count} process{}", if count == 1 { "" } else { "es" })
}

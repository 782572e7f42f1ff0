//! A script whose process is a worker.
//!
//! A launcher, or `everstep worker … -- SCRIPT`, starts the script with the settings of a worker in
//! its environment. Then a library in the script's own process calls [`work`], which is `everstep
//! worker` with models and data of the script. This module knows no language but the name of an
//! interpreter. `kept` says how a run's directory keeps its script, `measured` what a process tells
//! of its needs, and `gpus` which GPU a process sees.

pub(crate) mod gpus;
mod kept;
mod measured;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use clap::Parser;
use everstep_kernels::device::Devices;
use everstep_transport::protocol::RunSpec;
use everstep_transport::protocol::run::OptionValue;
use everstep_worker::daemon::Ready;
use everstep_worker::registry::Registry;

use crate::cli::{Cli, Verb, WorkerFlags, WorkerVerb};
use crate::cluster::{InstructionSet, Program, Script};
use crate::failure::{Exit, Failure};
use crate::{config, supervision, worker};
pub(crate) use kept::{found_here, here, is_kept, keep, of_kept_run};
pub use measured::Measured;

/// The kind of the model and of the data set of a script's run.
pub const KIND: &str = "python";
/// The option of the model that has the number of compute threads of each worker.
pub const THREADS: &str = "threads";

/// The least time after which a pass of a script counts as hanging, unless its launcher states
/// another one: the loop of a script may do other things than compute.
pub const HANG_AFTER_MS: u64 = 60_000;

/// The interpreter, where no interpreter runs this program.
const INTERPRETER: &str = "python3";

/// The script of this command, with so many compute threads and these instructions.
pub(crate) fn of(command: Vec<OsString>, threads: u32, isa: Option<InstructionSet>) -> Script {
    // A program with arguments before its verb is run by an interpreter.
    let own = Program::own().ok().filter(|own| !own.arguments.is_empty());
    let interpreter = own.map_or(INTERPRETER.into(), |own| own.executable);
    Script { interpreter, command, threads, isa, ..Script::default() }
}

/// Whether the models, data and optimizer of the run are a script's.
pub(crate) fn is_of_script(run: &RunSpec) -> bool {
    run.model.kind == KIND
}

/// The number of compute threads of each worker of a script's run.
fn threads(run: &RunSpec) -> u32 {
    match run.model.options.0.get(THREADS) {
        Some(OptionValue::Integer(count)) => u32::try_from(*count).unwrap_or(1).max(1),
        _ => 1,
    }
}

/// Becomes the script of `flags`, as a worker with these flags.
pub(crate) fn run(flags: &WorkerFlags) -> Result<(), Failure> {
    let script = of(flags.script.clone(), flags.threads.unwrap_or(1), flags.isa);
    let mut command = Command::new(&script.interpreter);
    command.args(&script.command).envs(script.environment());
    if let Some(device) = &flags.device {
        let devices = Devices::default();
        gpus::check(device, &devices)?;
        command.envs(gpus::visible_to(&device.of_worker(0, &gpus::in_turn(device, &devices))));
    }
    command.env("EVERSTEP_COORDINATORS", flags.coordinators.join(","));
    command.env("EVERSTEP_JOIN", worker::token(&flags.join, "join.token")?);
    command.env("EVERSTEP_LISTEN", flags.listen.to_string());
    command.env("EVERSTEP_LOG_FORMAT", flags.daemon.log_format.name());
    let paths = [("EVERSTEP_DIR", worker::home(flags)), ("EVERSTEP_TRACE", flags.trace.clone())];
    command.envs(paths.into_iter().filter_map(|(name, path)| Some((name, path?))));
    let texts = [
        ("EVERSTEP_ZONE", flags.zone.as_ref().map(|zone| zone.as_str().to_string())),
        ("EVERSTEP_GRACE", flags.grace.map(|seconds| seconds.to_string())),
        ("EVERSTEP_PREEMPTION", flags.preemption.map(|source| source.name())),
        ("EVERSTEP_METADATA_URL", flags.metadata_url.as_ref().map(|it| format!("http://{it}"))),
    ];
    command.envs(texts.into_iter().filter_map(|(name, text)| Some((name, text?))));
    let error = command.exec();
    Err(Failure::new(Exit::Failed, "the script cannot be started")
        .at(Path::new(&script.interpreter).display())
        .because(error)
        .next("install Python 3.10 or later, or use the everstep of a Python environment"))
}

/// Has this process end when the launcher does. The script's stdin is the launcher's.
///
/// # Errors
/// If the system refuses.
pub fn supervise() -> Result<(), Failure> {
    supervision::start()
}

/// Works as `everstep worker` with the settings in the environment. Blocks until the run is over.
/// Calls `ready` once the worker listens.
///
/// # Errors
/// [`Failure`], in words for the user, and with the exit code of the process: also if the worker
/// was told to leave.
pub fn work(registry: Registry, ready: impl FnOnce(&Ready)) -> Result<(), Failure> {
    let arguments = ["everstep", "worker"].map(OsString::from).to_vec();
    let arguments = config::complete(arguments, |name| std::env::var_os(name))?;
    let cli = Cli::try_parse_from(arguments).map_err(|error| {
        let told = error.to_string();
        Failure::new(Exit::Usage, "the settings of the worker cannot be used").because(told.trim())
    })?;
    match cli.verb {
        Verb::Worker(WorkerVerb::Run(flags)) => worker::work(flags, Arc::new(registry), ready),
        _ => unreachable!("the arguments name a worker without a task"),
    }
}

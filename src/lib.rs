//! The program: one command line for the daemons, for local clusters of them, and for the results
//! that they leave.
//!
//! A user's program registers its models, data sets, optimizers and devices, and passes them to
//! [`program`]. The binary `everstep` does so with those that come with Everstep. Each verb has its
//! file. [`cli`] defines their arguments, [`config`] the settings of a run, [`failure`] their
//! errors. The `coordinator` and `worker` crates train a run: nothing here takes part in training.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, CoordinatorVerb, Verb, WorkerTask, WorkerVerb};
use cluster::Program;
use failure::{Exit, Failure};

mod bench;
mod chaos;
mod checkpoint;
pub mod cli;
pub mod cluster;
mod conceal;
pub mod config;
mod coordinator;
mod demo;
mod devices;
mod drain;
mod dry_run;
pub mod failure;
mod file_format;
pub mod generate;
mod launch;
mod logging;
mod operator;
mod output;
mod progress;
mod resume;
mod revoke;
mod run;
mod scratch;
pub mod script;
mod store_check;
mod supervision;
mod text;
mod token;
mod trace;
mod train;
mod worker;

pub use checkpoint::{StoredState, read_state};

// The types that a program needs for its own models and data sets, and for its own cluster.
#[doc(inline)]
pub use everstep_kernels::{
    compute::{Batch, Compute, Evaluation, HostModel, OnHost},
    device::{ChosenDevice, DeviceChoice, DeviceInfo, DeviceProvider, OpenedDevice, PeakFlops},
    layout::{Init, Layout},
    optimizer::{UpdateBlock, UpdateInputs, UpdateRule},
    random::Philox,
};
#[doc(inline)]
pub use everstep_transport::protocol::{RunSpec, outcome::EventKind};
#[doc(inline)]
pub use everstep_worker::{
    builtin,
    data::{DataError, Dataset},
    registry::Registry,
};

/// Runs the program on the process's command line with the models and data sets of `registry`.
///
/// Every process of a cluster must run the same program. This prints data to stdout, all other
/// output to stderr, and returns the exit code that [`Exit`] names, or 0.
pub fn program(registry: Registry) -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    conceal::token(&arguments);
    run_verb(registry, arguments)
}

/// As [`program`], for a program that an interpreter runs: `arguments` are those of the program,
/// its name first, and `own` says how to start it. The processes of local clusters start so, too.
pub fn program_of(registry: Registry, arguments: Vec<OsString>, own: Program) -> ExitCode {
    own.set_own();
    run_verb(registry, arguments)
}

fn run_verb(registry: Registry, arguments: Vec<OsString>) -> ExitCode {
    let arguments = match config::complete(arguments, |name| std::env::var_os(name)) {
        Ok(arguments) => arguments,
        Err(error) => {
            output::say(Failure::from(error));
            return Exit::Usage.into();
        }
    };
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version end here too, with 0. If stderr is closed, no output is possible.
            let _ = error.print();
            return if error.use_stderr() { Exit::Usage.into() } else { ExitCode::SUCCESS };
        }
    };
    let registry = bench::register(registry);
    match dispatch(cli.verb, registry) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            logging::say(&failure);
            failure.exit.into()
        }
    }
}

fn dispatch(verb: Verb, registry: Registry) -> Result<(), Failure> {
    match verb {
        Verb::Train(flags) => train::run(&flags, &registry),
        Verb::Launch(flags) => launch::run(&flags, &registry),
        Verb::Resume(flags) => resume::run(&flags, &registry),
        Verb::Coordinator(CoordinatorVerb::Run(flags)) => coordinator::run(flags),
        Verb::Coordinator(CoordinatorVerb::Task(task)) => coordinator::operate(&task),
        Verb::Worker(WorkerVerb::Run(flags)) => worker::run(flags, registry),
        Verb::Worker(WorkerVerb::Task(WorkerTask::Drain(flags))) => drain::run(&flags),
        Verb::Worker(WorkerVerb::Task(WorkerTask::Add(flags))) => worker::add(&flags),
        Verb::Worker(WorkerVerb::Task(WorkerTask::Ls(flags))) => worker::list(&flags),
        Verb::Worker(WorkerVerb::Task(WorkerTask::Revoke(flags))) => revoke::worker(&flags),
        Verb::Devices(flags) => devices::run(&flags, &registry),
        Verb::Run(task) => run::run(&task, &registry),
        Verb::Checkpoint(task) => checkpoint::run(&task, &registry),
        Verb::Token(task) => token::run(&task),
        Verb::Operator(task) => revoke::run(&task),
        Verb::Generate(flags) => generate::run(&flags, &registry),
        Verb::Bench(bench) => bench::run(&bench, &registry),
        Verb::Chaos(chaos) => chaos::run(&chaos),
        Verb::Demo(flags) => demo::run(&flags, &registry),
        Verb::Leash(flags) => supervision::leash(&flags),
    }
}

/// Tells a script where a daemon listens. The daemon goes on even if no script reads that.
fn announce(line: &serde_json::Value) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

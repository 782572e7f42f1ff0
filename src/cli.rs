//! The command line: every verb with its flags, each flag with its environment variable.
//!
//! This module only parses flags. [`crate::config`] judges those of `train` that override the
//! configuration. The verbs judge the others.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, Parser, Subcommand};

mod bench;
mod checkpoint;
mod cluster;
mod coordinator;
mod daemon_verb;
mod demo;
mod flag_error;
mod http;
mod launch;
mod local;
mod operator;
mod resume;
mod run;
mod token;
mod worker;

pub use bench::{
    AllReduceFlags, Bench, ChurnFlags, FailoversFlags, HistoryFlags, JoinsFlags, KillsFlags,
    OverlapFlags, StagesFlags,
};
pub use checkpoint::{
    CheckpointTask, ExportFlags, ExportType, RemoveCheckpointFlags, StoreFlags, VerifyFlags,
};
pub use cluster::{AskFlags, ClusterFlags, DaemonFlags, LogStyle};
pub use coordinator::{
    AddFlags, CoordinatorFlags, CoordinatorTask, CoordinatorVerb, RecoverFlags, RemoveFlags,
    TransferFlags,
};
pub use daemon_verb::DaemonVerb;
pub(crate) use demo::duration;
pub use demo::{Chances, DemoFlags};
pub use flag_error::FlagError;
pub use http::HttpFlags;
pub use launch::{LaunchFlags, WorkerCount};
pub use local::{LocalFlags, StartFlags};
pub use operator::{OperatorTask, RevokeOperatorFlags};
pub use resume::ResumeFlags;
pub use run::{RollbackFlags, RunTask, SubmitFlags};
pub use token::{CreateFlags, RevokeFlags, TokenTask};
pub use worker::{
    DrainFlags, PreemptionSource, RevokeWorkerFlags, WorkerAddFlags, WorkerFlags, WorkerTask,
    WorkerVerb,
};

/// Trains models on machines that come and go, and never loses a step.
///
/// `everstep train` needs no configuration: it starts a small cluster on this machine and trains a
/// small GPT. Results go to stdout, and everything else to stderr.
#[derive(Parser, Debug)]
#[command(name = "everstep", version, after_help = AFTER_HELP)]
pub struct Cli {
    /// The verb, with its flags.
    #[command(subcommand)]
    pub verb: Verb,
}

const AFTER_HELP: &str = "\
Exit codes: 0 complete, 1 failed, 2 usage or configuration, 3 too few workers or coordinators in \
time, 130 interrupted, 143 ended by SIGTERM or drained.
EVERSTEP_LOG sets what is logged on stderr: error, warn, info, debug, trace. The default is info \
of daemons, and warn of the other verbs.";

/// What the program does, with the flags of each.
#[derive(Subcommand, Debug)]
pub enum Verb {
    /// Train a model on a local cluster of real processes
    Train(TrainFlags),
    /// Train a Python script on a local cluster of real processes
    ///
    /// Each worker is a process of the script, which makes an `everstep.Run` and iterates over it.
    /// docs/pytorch.md has an example. Everything after the script's name is the script's own.
    Launch(LaunchFlags),
    /// Go on with a run that was interrupted, or of which all processes have ended
    ///
    /// The run goes on from its newest checkpoint. Without checkpoints it begins at its first step
    /// again. Either way it ends with the same bits, with any number of workers. Workers that were
    /// started by hand and still run go on, too.
    ///
    /// A store of checkpoints is enough: if no coordinator's directory is left, a new cluster goes
    /// on from there, with files in a new directory, and goes on writing to that store.
    Resume(ResumeFlags),
    /// Run a coordinator: the coordinators decide which workers take part in a run
    ///
    /// With --bootstrap it founds a cluster, and with --join it becomes a further coordinator of a
    /// cluster. With neither it goes on in its directory, however it ended before. A cluster of
    /// three coordinators goes on when it loses one.
    ///
    /// `everstep train` starts coordinators of its own, and submits its run. Coordinators that are
    /// started by hand get a run by `everstep run submit`, or over the HTTP API: the first line on
    /// stdout has its address, and docs/http.md its paths. After SIGTERM a coordinator lets another
    /// one lead, and ends with exit code 143.
    Coordinator(CoordinatorVerb),
    /// Run a worker: it computes for the cluster's runs, also for a run under way
    ///
    /// A worker needs a token to join. `everstep worker add` prints the whole command, with a new
    /// token. `everstep train` and `everstep coordinator` also keep a token in DIR/join.token.
    /// After SIGTERM a worker leaves in good order: it ends with exit code 143 once the others need
    /// nothing more of it.
    Worker(WorkerVerb),
    /// List what this machine can compute on
    Devices(DevicesFlags),
    /// Submit a run to a cluster, and see how its runs do
    #[command(subcommand)]
    Run(RunTask),
    /// List, save, verify, export and delete the checkpoints of a run
    #[command(subcommand)]
    Checkpoint(CheckpointTask),
    /// Make and revoke the tokens with which nodes join a cluster
    #[command(subcommand)]
    Token(TokenTask),
    /// List and revoke the operators of a cluster
    #[command(subcommand)]
    Operator(OperatorTask),
    /// Continue a text with a model that was trained
    Generate(GenerateFlags),
    /// Measure training on this machine
    #[command(subcommand)]
    Bench(Bench),
    /// Simulate clusters under faults, and check that every promise holds
    #[command(subcommand)]
    Chaos(ChaosTask),
    /// Train with a live view and faults on demand, and compare with a run without faults
    ///
    /// Keys: arrows or numbers choose a worker, k kills it, p stops it and lets it go on, d drains
    /// it, a adds a worker, q quits. Where stdout is no terminal, the demo prints a line each
    /// second in place of the view.
    Demo(DemoFlags),
    /// Become a program that ends when the parent process does.
    #[command(hide = true)]
    Leash(LeashFlags),
}

/// The flags of `everstep train`.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct TrainFlags {
    /// The configuration, a TOML file. Without it, a small GPT is trained on the sources of the
    /// Rust packages that Everstep was built from
    #[arg(long, value_name = "FILE", env = "EVERSTEP_CONFIG")]
    pub config: Option<PathBuf>,
    /// The flags that win over the configuration.
    #[command(flatten)]
    pub overrides: Overrides,
    /// How the local cluster trains the run.
    #[command(flatten)]
    pub local: LocalFlags,
    /// Print parameters, shards and memory, and train nothing
    #[arg(long, env = "EVERSTEP_DRY_RUN", value_parser = BoolishValueParser::new())]
    pub dry_run: bool,
}

/// The flags that win over the configuration file.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    /// How many worker processes to start [default: 2, and 4 for `everstep demo`]
    #[arg(long, value_name = "N", env = "EVERSTEP_WORKERS")]
    pub workers: Option<u32>,
    /// How many workers the run starts and ends with, in place of the file's value. It has no flag.
    #[arg(skip)]
    pub start_workers: Option<u32>,
    /// How many optimizer steps to train [default: 400]
    #[arg(long, value_name = "N", env = "EVERSTEP_STEPS")]
    pub steps: Option<u64>,
    /// A file or a directory to train on. Its bytes are the text
    #[arg(long, value_name = "PATH", env = "EVERSTEP_DATA")]
    pub data: Option<String>,
    /// The seed of everything random [default: 1]
    #[arg(long, value_name = "N", env = "EVERSTEP_SEED")]
    pub seed: Option<u64>,
    /// How many workers hold each part of the optimizer's state [default: 2]
    #[arg(long, value_name = "N", env = "EVERSTEP_COPIES")]
    pub copies: Option<u32>,
}

/// The flags of `everstep generate`.
#[derive(Args, Clone, Debug)]
pub struct GenerateFlags {
    /// The trained model: a run's DIR/model.safetensors
    #[arg(long, value_name = "FILE", env = "EVERSTEP_MODEL")]
    pub model: PathBuf,
    /// The text to continue
    #[arg(long, value_name = "TEXT", env = "EVERSTEP_PROMPT", allow_hyphen_values = true)]
    pub prompt: String,
    /// How many bytes to add
    #[arg(long, value_name = "N", env = "EVERSTEP_BYTES", default_value_t = 256)]
    pub bytes: usize,
    /// How bold the text is: 0 always takes the likeliest byte, and above 1 the text gets wild
    #[arg(
        long,
        value_name = "F",
        env = "EVERSTEP_TEMPERATURE",
        default_value_t = 0.8,
        allow_negative_numbers = true
    )]
    pub temperature: f64,
    /// The seed of the choice of bytes: the same seed gives the same text
    #[arg(long, value_name = "N", env = "EVERSTEP_SEED", default_value_t = 1)]
    pub seed: u64,
}

/// The flags of `everstep devices`.
#[derive(Args, Clone, Debug)]
pub struct DevicesFlags {
    /// Print the list as JSON
    #[arg(long, env = "EVERSTEP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}

/// What `everstep leash` takes: nothing that a user would type.
#[derive(Args, Clone, Debug)]
pub struct LeashFlags {
    /// The process whose end ends this one.
    pub parent: i32,
    /// The program that this process becomes.
    pub program: PathBuf,
    /// The arguments of the program.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<OsString>,
}

/// What `everstep chaos` does.
#[derive(Subcommand, Clone, Debug)]
pub enum ChaosTask {
    /// Run small clusters on virtual time, with different faults for every seed
    ///
    /// Processes crash, stand still and come back. Connections are lost, slow or cut. Messages
    /// arrive late or twice, and clocks drift. A run that fails is started again. When the faults
    /// stop, the run must become complete, with the same hash as without faults. The same seed
    /// gives the same history. The first seed that breaks a promise stops the simulation, and its
    /// report has the command that repeats it.
    Simulate(SimulateFlags),
}

/// The flags of `everstep chaos simulate`.
#[derive(Args, Clone, Debug)]
pub struct SimulateFlags {
    /// How many seeds to simulate
    #[arg(long, value_name = "N", env = "EVERSTEP_SEEDS", default_value_t = 100,
        value_parser = clap::value_parser!(u64).range(1..))]
    pub seeds: u64,
    /// The first seed
    #[arg(long, value_name = "SEED", env = "EVERSTEP_FROM", default_value_t = 0)]
    pub from: u64,
    /// How many workers a cluster has
    #[arg(long, value_name = "W", env = "EVERSTEP_WORKERS", default_value_t = 4,
        value_parser = clap::value_parser!(u32).range(1..=64))]
    pub workers: u32,
    /// How many coordinators a cluster has at the start [default: 1, 3 or 5, by the seed]
    #[arg(long, value_name = "N", env = "EVERSTEP_COORDINATORS",
        value_parser = clap::value_parser!(u32).range(1..=5))]
    pub coordinators: Option<u32>,
    /// For how many virtual minutes faults happen
    #[arg(long, value_name = "M", env = "EVERSTEP_MINUTES", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1440))]
    pub minutes: u32,
    /// Print the summary as JSON
    #[arg(long, env = "EVERSTEP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
    /// Write a line for every event to this file. The simulation then uses one core
    #[arg(long, value_name = "FILE", env = "EVERSTEP_TRACE")]
    pub trace: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_tree_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_flag_has_the_variable_of_its_name() {
        // For `worker` the variable of this name means addresses. Here it would be a count.
        let exceptions =
            [("train", "coordinators"), ("launch", "coordinators"), ("resume", "coordinators")];
        fn flags<'a>(verb: &str, command: &'a clap::Command) -> Vec<(String, &'a clap::Arg)> {
            let own = command.get_arguments().filter(|flag| !flag.is_hide_set());
            let own = own.map(|flag| (verb.to_string(), flag));
            let of = |below: &'a clap::Command| {
                flags(format!("{verb} {}", below.get_name()).trim_start(), below)
            };
            own.chain(command.get_subcommands().flat_map(of)).collect()
        }
        for (command, flag) in flags("", &Cli::command()) {
            let Some(long) = flag.get_long() else { continue };
            let variable = format!("EVERSTEP_{}", long.to_uppercase().replace('-', "_"));
            let wanted = (!exceptions.contains(&(&*command, long))).then_some(&*variable);
            let stated = flag.get_env().and_then(|name| name.to_str());
            assert_eq!(stated, wanted, "{command} --{long}");
        }
    }
}

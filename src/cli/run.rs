//! The command line of `everstep run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::AskFlags;
use crate::cluster::InstructionSet;

/// What an operator does with runs.
#[derive(Subcommand, Clone, Debug)]
pub enum RunTask {
    /// Submit a run to a cluster, which trains one run at a time
    Submit(SubmitFlags),
    /// List the runs of a cluster: those that are over, and the one under way
    Ls(AskFlags),
    /// Print how the newest run does and what it waits for, or how it ended
    Status(AskFlags),
    /// Follow the newest run to its end: loss, throughput, ETA and trouble, as they come. Exits
    /// with 0 when the run is complete, and with 1 when it has failed
    Watch(AskFlags),
    /// End the run under way: it counts as failed, and its workers wait for the next run
    Cancel(AskFlags),
    /// Let the run rest after the step under way. It saves a checkpoint, if it keeps any
    Pause(AskFlags),
    /// Let a paused run go on
    Resume(AskFlags),
    /// Let the run go back to a checkpoint, and train again from there: gives up what silent
    /// workers hold, where a run waits for them
    Rollback(RollbackFlags),
}

/// The flags of `everstep run rollback`.
#[derive(Args, Clone, Debug)]
pub struct RollbackFlags {
    /// The step of the checkpoint; 0 is the initial state. Checkpoints of later steps are deleted
    #[arg(long, value_name = "N", env = "EVERSTEP_STEP")]
    pub step: u64,
    /// The cluster to ask.
    #[command(flatten)]
    pub ask: AskFlags,
}

/// The flags of `everstep run submit`.
#[derive(Args, Clone, Debug)]
pub struct SubmitFlags {
    /// The run: a TOML file as for `everstep train --config`, or another run's run.json. Its data
    /// path is one of the workers' machines
    #[arg(value_name = "FILE", required_unless_present_any = ["from", "script"],
        conflicts_with_all = ["from", "script"])]
    pub file: Option<PathBuf>,
    /// Go on with the run in this store of checkpoints, which this machine reads and the workers
    /// use: a directory that all of them see, or a URL such as s3://BUCKET/FOLDER
    #[arg(long, value_name = "DIR|URL", env = "EVERSTEP_FROM")]
    pub from: Option<PathBuf>,
    /// With --from: go on from the checkpoint of this step, even if there is a newer one. What the
    /// store has of later steps is deleted
    #[arg(long, value_name = "N", env = "EVERSTEP_STEP")]
    pub step: Option<u64>,
    /// With --from: where the run's data are on the workers' machines, if they have moved. They
    /// must be the same
    #[arg(long, value_name = "PATH", env = "EVERSTEP_DATA")]
    pub data: Option<String>,
    /// With a script: begin when so many workers are there [default: 1]
    #[arg(long, value_name = "N", env = "EVERSTEP_WORKERS",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub workers: Option<u32>,
    /// With a script: compute threads of each worker. The workers are started with the same number
    /// [default: 1]
    #[arg(long, value_name = "K", env = "EVERSTEP_THREADS",
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// With a script: the instructions to which the workers keep, as `worker --isa` [default: the
    /// newest of each CPU]
    #[arg(long, value_name = "ISA", env = "EVERSTEP_ISA")]
    pub isa: Option<InstructionSet>,
    /// With a script: a TOML file with what it does not state: the sections checkpoint and
    /// redundancy
    #[arg(long, value_name = "FILE", env = "EVERSTEP_CONFIG")]
    pub config: Option<PathBuf>,
    /// With a script: write a checkpoint every so many steps, and one at the end. 0: none
    #[arg(long, value_name = "STEPS", env = "EVERSTEP_CHECKPOINT_EVERY")]
    pub checkpoint_every: Option<u64>,
    /// The cluster to ask.
    #[command(flatten)]
    pub ask: AskFlags,
    /// The Python script of the run, and its arguments. One process of it computes a micro-batch
    /// here, and says which run it trains. The workers are processes of it, too
    #[arg(value_name = "SCRIPT", last = true, conflicts_with = "from")]
    pub script: Vec<OsString>,
}

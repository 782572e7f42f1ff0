//! The flags of `everstep launch`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use clap::builder::BoolishValueParser;

/// How a local cluster trains a script.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct LaunchFlags {
    /// How many processes of the script to start. Each is a worker
    #[arg(long, value_name = "N", env = "EVERSTEP_WORKERS", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub workers: u32,
    /// How many coordinators to start: of 3 one may die, of 5 two
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub coordinators: u32,
    /// Start a new worker for every one that dies once the run has begun
    #[arg(long, env = "EVERSTEP_RESPAWN", value_parser = BoolishValueParser::new())]
    pub respawn: bool,
    /// Compute threads of each worker. The bits of PyTorch depend on their number, so all workers
    /// of a run have the same
    #[arg(long, value_name = "K", env = "EVERSTEP_THREADS", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: u32,
    /// Where the run's files go [default: a new directory under `runs`]
    #[arg(long, value_name = "DIR", env = "EVERSTEP_DIR")]
    pub dir: Option<PathBuf>,
    /// Write a report of the run to this file, as JSON
    #[arg(long, value_name = "FILE", env = "EVERSTEP_REPORT")]
    pub report: Option<PathBuf>,
    /// How long to wait for workers that the run needs, before it begins or when too few are left.
    /// After that time the exit code is 3
    #[arg(long, value_name = "SECONDS", env = "EVERSTEP_WAIT", default_value_t = 600,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub wait: u32,
    /// The script, and the arguments that it gets
    #[arg(value_name = "SCRIPT", required = true, num_args = 1.., trailing_var_arg = true,
        allow_hyphen_values = true)]
    pub script: Vec<OsString>,
}

//! The flags of the verbs that start a local cluster: `everstep train`, `everstep resume` and
//! `everstep launch`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::BoolishValueParser;
use everstep_kernels::device::DeviceChoice;

use super::demo::wait_time;

/// How a local cluster starts, and where the files of its run go.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct StartFlags {
    /// How many coordinators to start: of 3 one may die, of 5 two. A run that goes on in its
    /// directory has those of before
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub coordinators: u32,
    /// Where the run's files go [default: a new directory under `runs`]
    #[arg(long, value_name = "DIR", env = "EVERSTEP_DIR")]
    pub dir: Option<PathBuf>,
    /// Write a report of the run to this file, as JSON
    #[arg(long, value_name = "FILE", env = "EVERSTEP_REPORT")]
    pub report: Option<PathBuf>,
    /// How long to wait for workers that the run needs, before it begins or when too few are left.
    /// After that time the exit code is 3
    #[arg(long, value_name = "TIME", env = "EVERSTEP_WAIT", default_value = "10m",
        value_parser = wait_time)]
    pub wait: Duration,
    /// Start a new worker for every one that dies once the run has begun
    #[arg(long, env = "EVERSTEP_RESPAWN", value_parser = BoolishValueParser::new())]
    pub respawn: bool,
}

/// How a local cluster trains a run.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct LocalFlags {
    /// How the cluster starts.
    #[command(flatten)]
    pub start: StartFlags,
    /// Where the workers compute: cpu, cuda (a GPU for each), cuda:N (the GPU of that number), or
    /// auto (a GPU if there is one) [default: cpu]. A script computes where it says: by default it
    /// sees the GPUs with which it was launched
    #[arg(long, value_name = "DEVICE", env = "EVERSTEP_DEVICE")]
    pub device: Option<DeviceChoice>,
    /// Threads with which each worker computes [default: as many as there are cores for it]. The
    /// bits do not depend on their number. A script keeps to the number with which its run began
    #[arg(long, value_name = "K", env = "EVERSTEP_THREADS",
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Write the begin and the duration of each stage of each step, worker by worker, to
    /// DIR/traces, for Perfetto (ui.perfetto.dev) or chrome://tracing
    #[arg(long, env = "EVERSTEP_TRACES", value_parser = BoolishValueParser::new())]
    pub traces: bool,
}

impl LocalFlags {
    /// Where the workers compute.
    pub fn device(&self) -> DeviceChoice {
        self.device.clone().unwrap_or_default()
    }
}

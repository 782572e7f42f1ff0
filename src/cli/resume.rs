//! The command line of `everstep resume`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::BoolishValueParser;
use everstep_kernels::device::DeviceChoice;

/// The flags of `everstep resume`. They mean what they mean to `everstep train`.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct ResumeFlags {
    /// The directory of the run
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Go back to the checkpoint of this step, even if there is a newer one; 0 is the initial state
    #[arg(long, value_name = "N", env = "EVERSTEP_STEP")]
    pub step: Option<u64>,
    /// How many worker processes to start [default: as many as were there when the run stopped]
    #[arg(long, value_name = "N", env = "EVERSTEP_WORKERS",
        value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub workers: Option<u32>,
    /// Write a report of the run to this file, as JSON
    #[arg(long, value_name = "FILE", env = "EVERSTEP_REPORT")]
    pub report: Option<PathBuf>,
    /// How long to wait for workers that the run needs. After that time the exit code is 3
    #[arg(long, value_name = "SECONDS", env = "EVERSTEP_WAIT", default_value_t = 600,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub wait: u32,
    /// Where the workers compute: cpu, cuda (a GPU for each), cuda:N (the GPU of that number), or
    /// auto (a GPU if there is one)
    #[arg(long, value_name = "DEVICE", env = "EVERSTEP_DEVICE", default_value_t)]
    pub device: DeviceChoice,
    /// Start a new worker for every one that dies
    #[arg(long, env = "EVERSTEP_RESPAWN", value_parser = BoolishValueParser::new())]
    pub respawn: bool,
    /// Write the begin and the duration of each stage of each step, worker by worker, to
    /// DIR/traces
    #[arg(long, env = "EVERSTEP_TRACES", value_parser = BoolishValueParser::new())]
    pub traces: bool,
}

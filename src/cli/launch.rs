//! The flags of `everstep launch`.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::thread::available_parallelism;

use clap::Args;
use clap::builder::BoolishValueParser;
use everstep_kernels::device::DeviceChoice;

use super::{FlagError, StartFlags};
use crate::cluster::InstructionSet;

/// How many workers to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerCount {
    /// As many as the machine's cores compute for.
    Auto,
    /// So many, at least one.
    Number(u32),
}

impl Default for WorkerCount {
    fn default() -> Self {
        Self::Number(1)
    }
}

impl fmt::Display for WorkerCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Number(number) => number.fmt(f),
        }
    }
}

impl FromStr for WorkerCount {
    type Err = FlagError;

    fn from_str(text: &str) -> Result<Self, FlagError> {
        match (text, text.parse()) {
            ("auto", _) => Ok(Self::Auto),
            (_, Ok(number @ 1..)) => Ok(Self::Number(number)),
            _ => Err(FlagError::Workers),
        }
    }
}

impl LaunchFlags {
    /// How many workers to start on this machine.
    pub fn workers(&self) -> u32 {
        match self.workers {
            WorkerCount::Number(number) => number,
            WorkerCount::Auto => {
                let cores = available_parallelism().map_or(1, |cores| cores.get() as u32);
                (cores / self.threads).max(1)
            }
        }
    }
}

/// How a local cluster trains a script.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct LaunchFlags {
    /// How many processes of the script to start. Each is a worker. auto: as many as the cores of
    /// this machine compute for, with --threads each, or one for each GPU with --device cuda
    #[arg(long, value_name = "N|auto", env = "EVERSTEP_WORKERS", default_value_t)]
    pub workers: WorkerCount,
    /// Compute threads of each worker. The bits of PyTorch depend on their number, so all workers
    /// of a run have the same
    #[arg(long, value_name = "K", env = "EVERSTEP_THREADS", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: u32,
    /// Instructions to which the mathematics libraries of the script keep: unlike CPUs get the same
    /// bits then, more slowly [default: the newest of each CPU]
    #[arg(long, value_name = "ISA", env = "EVERSTEP_ISA")]
    pub isa: Option<InstructionSet>,
    /// The GPU that each worker sees: cuda (one each, in turn), cuda:N (that one for all), auto (as
    /// cuda, if there is one), or cpu (none). The script moves its model there [default: all that
    /// the launcher sees]
    #[arg(long, value_name = "DEVICE", env = "EVERSTEP_DEVICE")]
    pub device: Option<DeviceChoice>,
    /// A TOML file with what the script does not state: the sections checkpoint and redundancy
    #[arg(long, value_name = "FILE", env = "EVERSTEP_CONFIG")]
    pub config: Option<PathBuf>,
    /// Write a checkpoint every so many steps, and one at the end. 0: none
    #[arg(long, value_name = "STEPS", env = "EVERSTEP_CHECKPOINT_EVERY")]
    pub checkpoint_every: Option<u64>,
    /// How the cluster starts.
    #[command(flatten)]
    pub start: StartFlags,
    /// Print parameters, shards and memory, and train nothing. One process of the script computes a
    /// micro-batch, and what it takes is measured
    #[arg(long, env = "EVERSTEP_DRY_RUN", value_parser = BoolishValueParser::new(),
        conflicts_with = "attached")]
    pub dry_run: bool,
    /// The parent process states its run on stdin, and joins as a worker: no other one starts here
    #[arg(long, hide = true)]
    pub attached: bool,
    /// The script, and the arguments that it gets
    #[arg(value_name = "SCRIPT", required_unless_present = "attached", num_args = 1..,
        trailing_var_arg = true, allow_hyphen_values = true)]
    pub script: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_a_number_or_as_many_as_the_cores_compute_for() {
        let parsed = |text: &str| text.parse::<WorkerCount>();
        assert_eq!(parsed("3"), Ok(WorkerCount::Number(3)));
        assert!(parsed("0").is_err() && parsed("many").is_err());
        let flags = |workers, threads| LaunchFlags { workers, threads, ..LaunchFlags::default() };
        assert_eq!(flags(WorkerCount::Number(3), 9).workers(), 3);
        let auto = parsed("auto").expect("a count");
        assert_eq!(auto.to_string(), "auto");
        assert_eq!(flags(auto, 1 << 20).workers(), 1);
        assert!(flags(auto, 1).workers() >= 1);
    }
}

//! The command line of `everstep bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::{Args, Subcommand};
use everstep_kernels::device::DeviceChoice;

use super::demo::{duration, wait_time};

/// What `everstep bench` measures.
#[derive(Subcommand, Clone, Debug)]
pub enum Bench {
    /// Sum a vector over worker processes on this machine, and give each of them the result
    AllReduce(AllReduceFlags),
    /// Train the same run with and without sending while computing, and compare
    Overlap(OverlapFlags),
    /// Train a run, and print how long each stage of a step takes
    Stages(StagesFlags),
    /// Kill random workers at random moments, and measure how long training stalls
    Kills(KillsFlags),
    /// Kill the leading coordinator, again and again, and measure how soon another one leads and
    /// whether training notices
    Failovers(FailoversFlags),
    /// Start a coordinator on the history of a long run, and measure its start and its memory
    /// (Linux)
    History(HistoryFlags),
    /// Let workers join and leave, and measure how long the others stall
    Joins(JoinsFlags),
}

/// The flags of `everstep bench all-reduce`.
#[derive(Args, Clone, Debug)]
pub struct AllReduceFlags {
    /// How many worker processes take part
    #[arg(long, value_name = "N", env = "EVERSTEP_WORKERS", default_value_t = 2,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub workers: u32,
    /// The size of the vector, MB
    #[arg(long, value_name = "M", env = "EVERSTEP_MB", default_value_t = 16,
        value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub mb: u32,
    /// How many times to sum; the median counts
    #[arg(long, value_name = "N", env = "EVERSTEP_ITERATIONS", default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub iterations: u32,
    /// Print also the time of the exchange in a step. The traces for this cost some time themselves
    #[arg(long, env = "EVERSTEP_STAGES", value_parser = BoolishValueParser::new())]
    pub stages: bool,
    /// Send everything over QUIC, as between hosts. Else the workers, which are all of this host,
    /// share memory
    #[arg(long, env = "EVERSTEP_NETWORK", value_parser = BoolishValueParser::new())]
    pub network: bool,
    /// How long to wait for workers that have not registered yet. After that time the exit code is
    /// 3
    #[arg(long, value_name = "TIME", env = "EVERSTEP_WAIT", default_value = "10m",
        value_parser = wait_time)]
    pub wait: Duration,
    /// Print the result as JSON
    #[arg(long, env = "EVERSTEP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}

/// The flags of `everstep bench overlap`.
#[derive(Args, Clone, Debug)]
pub struct OverlapFlags {
    /// The run to measure, a TOML file. Without it, the small GPT of `everstep train`
    #[arg(long, value_name = "FILE", env = "EVERSTEP_CONFIG")]
    pub config: Option<PathBuf>,
    /// How many worker processes take part
    #[arg(long, value_name = "N", env = "EVERSTEP_WORKERS", default_value_t = 2,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub workers: u32,
    /// Steps in each run; their median counts
    #[arg(long, value_name = "N", env = "EVERSTEP_STEPS", default_value_t = 20,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: u32,
    /// How many pairs of runs; the median counts
    #[arg(long, value_name = "N", env = "EVERSTEP_PAIRS", default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub pairs: u32,
    /// How long to wait for workers that have not registered yet. After that time the exit code is
    /// 3
    #[arg(long, value_name = "TIME", env = "EVERSTEP_WAIT", default_value = "10m",
        value_parser = wait_time)]
    pub wait: Duration,
    /// Print the result as JSON
    #[arg(long, env = "EVERSTEP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}

/// The flags of `everstep bench stages`.
#[derive(Args, Clone, Debug)]
pub struct StagesFlags {
    /// The run to measure, a TOML file. Without it, the small GPT of `everstep train`
    #[arg(long, value_name = "FILE", env = "EVERSTEP_CONFIG")]
    pub config: Option<PathBuf>,
    /// How many worker processes take part
    #[arg(long, value_name = "N", env = "EVERSTEP_WORKERS", default_value_t = 2,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub workers: u32,
    /// Where the workers compute, as for `everstep train`
    #[arg(long, value_name = "DEVICE", env = "EVERSTEP_DEVICE", default_value_t)]
    pub device: DeviceChoice,
    /// How many steps are measured. The median of each stage counts
    #[arg(long, value_name = "N", env = "EVERSTEP_STEPS", default_value_t = 20,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: u32,
    /// How long to wait for workers that have not registered yet. After that time the exit code is
    /// 3
    #[arg(long, value_name = "TIME", env = "EVERSTEP_WAIT", default_value = "10m",
        value_parser = wait_time)]
    pub wait: Duration,
    /// Print the result as JSON
    #[arg(long, env = "EVERSTEP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}

/// The flags of `everstep bench kills`.
#[derive(Args, Clone, Debug)]
pub struct KillsFlags {
    /// How many workers are killed, one after the other
    #[arg(long, value_name = "N", env = "EVERSTEP_KILLS", default_value_t = 500,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub kills: u32,
    /// Start coordinator and workers without a launcher, which would report the end of a process.
    /// This measures what the cluster notices by itself (Linux)
    #[arg(long, env = "EVERSTEP_BY_HAND", value_parser = BoolishValueParser::new())]
    pub by_hand: bool,
    /// The cluster under test, with its run.
    #[command(flatten)]
    pub churn: ChurnFlags,
}

/// The flags of `everstep bench failovers`.
#[derive(Args, Clone, Debug)]
pub struct FailoversFlags {
    /// How many leaders are killed, one after the other, and started again
    #[arg(long, value_name = "N", env = "EVERSTEP_KILLS", default_value_t = 200,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub kills: u32,
    /// How many coordinators there are
    #[arg(long, value_name = "N", env = "EVERSTEP_REPLICAS", default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(3..=5))]
    pub replicas: u32,
    /// Let the leader stand still for this long, as in 10s, instead of killing it. Steps are
    /// measured in the second after it stops, and in the second after it goes on
    #[arg(long, value_name = "TIME", env = "EVERSTEP_STOP", value_parser = duration)]
    pub stop: Option<Duration>,
    /// Kill a follower instead of the leader, to see what the loss of any process costs
    #[arg(long, env = "EVERSTEP_FOLLOWER", value_parser = BoolishValueParser::new())]
    pub follower: bool,
    /// Kill a worker at the same moment. Another one is started
    #[arg(long, env = "EVERSTEP_WITH_WORKER", value_parser = BoolishValueParser::new())]
    pub with_worker: bool,
    /// How many steps the run has, twice as many if it is over too soon [default: enough for the
    /// kills, by a measurement]
    #[arg(long, value_name = "N", env = "EVERSTEP_STEPS",
        value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: Option<u64>,
    /// The cluster under test, with its run.
    #[command(flatten)]
    pub churn: ChurnFlags,
}

/// The flags of `everstep bench history`.
#[derive(Args, Clone, Debug)]
pub struct HistoryFlags {
    /// How many steps the run has. Each has a line on the disk
    #[arg(long, value_name = "N", env = "EVERSTEP_STEPS", default_value_t = 10_000_000,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub steps: u64,
    /// Print the result as JSON
    #[arg(long, env = "EVERSTEP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}

/// The flags of `everstep bench joins`.
#[derive(Args, Clone, Debug)]
pub struct JoinsFlags {
    /// How many workers join, one after the other, and leave again
    #[arg(long, value_name = "N", env = "EVERSTEP_JOINS", default_value_t = 50,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub joins: u32,
    /// The cluster under test, with its run.
    #[command(flatten)]
    pub churn: ChurnFlags,
}

/// The cluster of a benchmark during which workers come and go.
#[derive(Args, Clone, Debug)]
pub struct ChurnFlags {
    /// The run to train meanwhile, a TOML file. Without it, the small GPT of `everstep train`
    #[arg(long, value_name = "FILE", env = "EVERSTEP_CONFIG")]
    pub config: Option<PathBuf>,
    /// How many workers there are while nothing happens
    #[arg(long, value_name = "N", env = "EVERSTEP_WORKERS", default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..=64))]
    pub workers: u32,
    /// The seed of which worker is killed, or joins, and when
    #[arg(long, value_name = "N", env = "EVERSTEP_SEED", default_value_t = 1)]
    pub seed: u64,
    /// How long to wait for workers that the run needs. After that time the exit code is 3
    #[arg(long, value_name = "TIME", env = "EVERSTEP_WAIT", default_value = "10m",
        value_parser = wait_time)]
    pub wait: Duration,
    /// Print the result as JSON
    #[arg(long, env = "EVERSTEP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}

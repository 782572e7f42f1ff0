//! The command line of `everstep bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::{Args, Subcommand};

use super::demo::duration;

/// What `everstep bench` measures.
#[derive(Subcommand, Clone, Debug)]
pub enum Bench {
    /// Sum a vector over worker processes on this machine, and give everyone the result
    AllReduce(AllReduceFlags),
    /// Train the same run with and without communication behind compute, and compare
    Overlap(OverlapFlags),
    /// Train a run, and say what each stage of a step takes
    Stages(StagesFlags),
    /// Kill random workers at random moments, and measure how long training stands still
    Kills(KillsFlags),
    /// Kill the coordinator that leads, again and again, and measure how soon another one does and
    /// whether training notices
    Failovers(FailoversFlags),
    /// Start a coordinator on the history of a long run, and measure how long that takes, and its
    /// memory (Linux)
    History(HistoryFlags),
    /// Let workers join and leave, and measure how long the others stand still
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
    /// How often; the median counts
    #[arg(long, value_name = "N", env = "EVERSTEP_ITERATIONS", default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub iterations: u32,
    /// Say also what a step's exchange takes of it; the traces for that cost some time themselves
    #[arg(long, env = "EVERSTEP_STAGES", value_parser = BoolishValueParser::new())]
    pub stages: bool,
    /// How long to wait for workers that have not registered yet; then the exit code is 3
    #[arg(long, value_name = "SECONDS", env = "EVERSTEP_WAIT", default_value_t = 600,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub wait: u32,
    /// Print the result as JSON
    #[arg(long, env = "EVERSTEP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}

/// The flags of `everstep bench overlap`.
#[derive(Args, Clone, Debug)]
pub struct OverlapFlags {
    /// The run to measure, a TOML file; without it, the small GPT on the default text
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
    /// How long to wait for workers that have not registered yet; then the exit code is 3
    #[arg(long, value_name = "SECONDS", env = "EVERSTEP_WAIT", default_value_t = 600,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub wait: u32,
    /// Print the result as JSON
    #[arg(long, env = "EVERSTEP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}

/// The flags of `everstep bench stages`.
#[derive(Args, Clone, Debug)]
pub struct StagesFlags {
    /// The run to measure, a TOML file; without it, the small GPT on the default text
    #[arg(long, value_name = "FILE", env = "EVERSTEP_CONFIG")]
    pub config: Option<PathBuf>,
    /// How many worker processes take part
    #[arg(long, value_name = "N", env = "EVERSTEP_WORKERS", default_value_t = 2,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub workers: u32,
    /// Steps that count; of each stage, their median
    #[arg(long, value_name = "N", env = "EVERSTEP_STEPS", default_value_t = 20,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: u32,
    /// How long to wait for workers that have not registered yet; then the exit code is 3
    #[arg(long, value_name = "SECONDS", env = "EVERSTEP_WAIT", default_value_t = 600,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub wait: u32,
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
    /// Start coordinator and workers as one would by hand: nobody tells the coordinator that a
    /// process has ended, so it is measured what the cluster notices by itself (Linux)
    #[arg(long, env = "EVERSTEP_BY_HAND", value_parser = BoolishValueParser::new())]
    pub by_hand: bool,
    /// The cluster.
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
    /// Let the leader stand still for this long, as in 10s, instead of killing it; steps are
    /// looked at in the second after it stops, and apart in the second after it goes on
    #[arg(long, value_name = "TIME", env = "EVERSTEP_STOP", value_parser = duration)]
    pub stop: Option<Duration>,
    /// Take one that follows: what training notices of this is the process, not the leadership
    #[arg(long, env = "EVERSTEP_FOLLOWER", value_parser = BoolishValueParser::new())]
    pub follower: bool,
    /// Kill a worker at the same moment; another one is started
    #[arg(long, env = "EVERSTEP_WITH_WORKER", value_parser = BoolishValueParser::new())]
    pub with_worker: bool,
    /// How many steps the run has [default: as many as take so long, measured first];
    /// twice as many if it is over too soon
    #[arg(long, value_name = "N", env = "EVERSTEP_STEPS",
        value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: Option<u64>,
    /// The cluster.
    #[command(flatten)]
    pub churn: ChurnFlags,
}

/// The flags of `everstep bench history`.
#[derive(Args, Clone, Debug)]
pub struct HistoryFlags {
    /// How many steps the run has: of each, a line is on the disk
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
    /// The cluster.
    #[command(flatten)]
    pub churn: ChurnFlags,
}

/// The cluster of a benchmark during which workers come and go.
#[derive(Args, Clone, Debug)]
pub struct ChurnFlags {
    /// The run to train meanwhile, a TOML file; without it, the small GPT on the default text
    #[arg(long, value_name = "FILE", env = "EVERSTEP_CONFIG")]
    pub config: Option<PathBuf>,
    /// How many workers there are while nothing happens
    #[arg(long, value_name = "N", env = "EVERSTEP_WORKERS", default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..=64))]
    pub workers: u32,
    /// What happens to whom, and when, follows from it
    #[arg(long, value_name = "N", env = "EVERSTEP_SEED", default_value_t = 1)]
    pub seed: u64,
    /// How long to wait for workers that the run needs; then the exit code is 3
    #[arg(long, value_name = "SECONDS", env = "EVERSTEP_WAIT", default_value_t = 600,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub wait: u32,
    /// Print the result as JSON
    #[arg(long, env = "EVERSTEP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}

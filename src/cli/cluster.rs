//! Flags of several verbs: the cluster of an operator, and the flags of all daemons.

use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum};

/// The cluster that an operator means.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterFlags {
    /// The directory of a run, or of one of its coordinators [default: the newest under `runs`]
    #[arg(long, value_name = "DIR", env = "EVERSTEP_DIR")]
    pub dir: Option<PathBuf>,
    /// Where coordinators listen, if not where DIR says. The credentials are those in DIR, which
    /// may be a directory with a copy of a coordinator's `operator` folder
    #[arg(
        long,
        value_name = "HOST:PORT,...",
        value_delimiter = ',',
        env = "EVERSTEP_COORDINATORS"
    )]
    pub coordinators: Vec<String>,
}

/// The cluster that an operator asks, and how the answer is printed.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct AskFlags {
    /// Where the cluster to ask is.
    #[command(flatten)]
    pub cluster: ClusterFlags,
    /// Print the answer as JSON
    #[arg(long, env = "EVERSTEP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}

/// What a daemon's file and log are.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonFlags {
    /// A TOML file whose section `coordinator` or `worker` has what neither a flag nor a variable
    /// states
    #[arg(long, value_name = "FILE", env = "EVERSTEP_CONFIG")]
    pub config: Option<PathBuf>,
    /// How the log on stderr is written
    #[arg(long, value_name = "FORMAT", env = "EVERSTEP_LOG_FORMAT", default_value = "text")]
    pub log_format: LogStyle,
    /// End when the parent process does.
    #[arg(long, hide = true)]
    pub supervised: bool,
}

/// How a log is written.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogStyle {
    /// A line for people.
    #[default]
    Text,
    /// An object a line, for machines.
    Json,
}

impl LogStyle {
    /// The name, as the flag takes it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

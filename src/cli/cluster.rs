//! Flags that several verbs have: which cluster is meant, how large one is to be, and what all
//! daemons take.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum};

/// The cluster that an operator means.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterFlags {
    /// The directory of a run, or of one of its coordinators [default: the newest under `runs`]
    #[arg(long, value_name = "DIR", env = "EVERSTEP_DIR")]
    pub dir: Option<PathBuf>,
    /// Where coordinators listen, if that is not as DIR says; the credentials are still those in
    /// DIR (a copy of a coordinator's `operator` folder will do)
    #[arg(
        long,
        value_name = "HOST:PORT,...",
        value_delimiter = ',',
        env = "EVERSTEP_COORDINATORS"
    )]
    pub coordinators: Vec<String>,
}

/// Whom an operator asks, and how the answer is printed.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct AskFlags {
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterFlags,
    /// Print the answer as JSON
    #[arg(long, env = "EVERSTEP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}

/// What a daemon's file and log are.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonFlags {
    /// A TOML file that states in its section [coordinator] or [worker] what neither a flag nor a
    /// variable does
    #[arg(long, value_name = "FILE", env = "EVERSTEP_CONFIG")]
    pub config: Option<PathBuf>,
    /// How the log on stderr is written
    #[arg(long, value_name = "FORMAT", env = "EVERSTEP_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// End when the parent process does.
    #[arg(long, hide = true)]
    pub supervised: bool,
}

/// How a log is written.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// A line for people.
    #[default]
    Text,
    /// An object a line, for machines.
    Json,
}

/// How many coordinators a cluster has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(pub u32);

impl Default for Count {
    fn default() -> Self {
        Self(1)
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Count {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            Ok(count @ (1 | 3 | 5)) => Ok(Self(count)),
            _ => Err("it must be 1, 3 or 5: most of them have to agree, and an even one more \
                      makes nothing safer"
                .into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_three_or_five_coordinators_agree() {
        for (text, count) in [("1", Some(1)), ("2", None), ("3", Some(3)), ("5", Some(5))] {
            assert_eq!(text.parse().ok(), count.map(Count), "{text}");
        }
        for text in ["0", "4", "7", "three", ""] {
            let words = text.parse::<Count>().expect_err(text);
            assert!(words.starts_with("it must be 1, 3 or 5"), "{words}");
        }
    }
}

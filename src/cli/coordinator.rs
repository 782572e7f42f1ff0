//! The command line of `everstep coordinator`: the daemon itself, or an operator's commands for the
//! coordinators.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::{Args, Subcommand};

use super::daemon_verb::DaemonVerb;
use super::demo::duration;
use super::{AskFlags, DaemonFlags, HttpFlags};

/// `everstep coordinator`, with flags or with an operator's task.
pub type CoordinatorVerb = DaemonVerb<CoordinatorFlags, CoordinatorTask>;

/// The flags of `everstep coordinator`.
#[derive(Args, Clone, Debug)]
pub struct CoordinatorFlags {
    /// The coordinator's directory: keys, log, history, join tokens
    #[arg(long, value_name = "DIR", env = "EVERSTEP_DIR")]
    pub dir: PathBuf,
    /// The address at which workers and the other coordinators reach this one (UDP). Port 0 takes a
    /// free port
    #[arg(long, value_name = "HOST:PORT", env = "EVERSTEP_LISTEN", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Found a new cluster in DIR
    #[arg(long, env = "EVERSTEP_BOOTSTRAP", value_parser = BoolishValueParser::new())]
    pub bootstrap: bool,
    /// The cluster is there for one run: its workers are dismissed afterwards.
    #[arg(long, hide = true, requires = "bootstrap")]
    pub ephemeral: bool,
    /// Become a coordinator of a cluster, by a token for coordinators: @FILE, or @- to read the
    /// token from stdin. `everstep coordinator add` prints the whole command. The token itself in
    /// place of @FILE works too, but other users may see it while the program starts
    #[arg(
        long,
        value_name = "@FILE|@-",
        requires = "coordinators",
        conflicts_with = "bootstrap",
        env = "EVERSTEP_JOIN",
        hide_env_values = true
    )]
    pub join: Option<OsString>,
    /// With --join: where coordinators of the cluster listen
    #[arg(
        long,
        value_name = "HOST:PORT,...",
        value_delimiter = ',',
        env = "EVERSTEP_COORDINATORS"
    )]
    pub coordinators: Vec<String>,
    /// The flags of its HTTP API.
    #[command(flatten)]
    pub http: HttpFlags,
    /// The flags of its file and its log.
    #[command(flatten)]
    pub daemon: DaemonFlags,
}

/// What an operator does with the coordinators of a cluster.
#[derive(Subcommand, Clone, Debug)]
pub enum CoordinatorTask {
    /// List the coordinators, which of them leads, and how many may be lost
    Status(AskFlags),
    /// Let another coordinator lead
    TransferLeader(TransferFlags),
    /// Make a token for one more coordinator, and print the command with which that coordinator
    /// joins
    Add(AddFlags),
    /// Remove a coordinator for good: its process ends, and then its machine may be switched off
    Remove(RemoveFlags),
    /// Make a cluster of one coordinator's directory when most coordinators are lost for good.
    /// Entries that only the others had are lost
    Recover(RecoverFlags),
}

/// The flags of `everstep coordinator transfer-leader`.
#[derive(Args, Clone, Debug)]
pub struct TransferFlags {
    /// The id of the coordinator that is to lead [default: the one that has most of the log]
    #[arg(value_name = "ID")]
    pub to: Option<u64>,
    /// The cluster to ask.
    #[command(flatten)]
    pub ask: AskFlags,
}

/// The flags of `everstep coordinator add`.
#[derive(Args, Clone, Debug)]
pub struct AddFlags {
    /// How long the token is valid
    #[arg(long, value_name = "TIME", env = "EVERSTEP_TTL", default_value = "15m",
        value_parser = duration)]
    pub ttl: Duration,
    /// The cluster to ask.
    #[command(flatten)]
    pub ask: AskFlags,
}

/// The flags of `everstep coordinator remove`.
#[derive(Args, Clone, Debug)]
pub struct RemoveFlags {
    /// The coordinator's id in `everstep coordinator status`
    #[arg(value_name = "ID")]
    pub coordinator: u64,
    /// Return when the coordinators have agreed, and do not wait until the coordinator is shut out
    #[arg(long, env = "EVERSTEP_NO_WAIT", value_parser = BoolishValueParser::new())]
    pub no_wait: bool,
    /// The cluster to ask.
    #[command(flatten)]
    pub ask: AskFlags,
}

/// The flags of `everstep coordinator recover`.
#[derive(Args, Clone, Debug)]
pub struct RecoverFlags {
    /// The directory of the coordinator that is left. The coordinator must not run
    #[arg(long, value_name = "DIR", env = "EVERSTEP_DIR")]
    pub dir: PathBuf,
    /// Accept the loss of entries that only the lost coordinators had. Without this flag nothing
    /// changes, and the program prints what the directory holds
    #[arg(long, env = "EVERSTEP_ACCEPT_LOST_ENTRIES", value_parser = BoolishValueParser::new())]
    pub accept_lost_entries: bool,
    /// Print the answer as JSON
    #[arg(long, env = "EVERSTEP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}

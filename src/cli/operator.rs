//! The command line of `everstep operator`.

use clap::builder::BoolishValueParser;
use clap::{Args, Subcommand};

use super::AskFlags;

/// What an operator does with operators.
#[derive(Subcommand, Clone, Debug)]
pub enum OperatorTask {
    /// Print the operator's name that DIR has, and list the operators that the leader knows, and
    /// the workers and operators that are revoked
    Ls(AskFlags),
    /// Shut an operator out: its links are closed at once, and the coordinator with that name in
    /// its `operator` folder makes credentials of another name
    Revoke(RevokeOperatorFlags),
}

/// The flags of `everstep operator revoke`.
#[derive(Args, Clone, Debug)]
pub struct RevokeOperatorFlags {
    /// The operator's name, or a copy of the folder with its credentials
    #[arg(value_name = "NAME|FOLDER")]
    pub operator: String,
    /// Revoke the name even if the cluster knows no operator of that name, such as one that has not
    /// asked for long
    #[arg(long, env = "EVERSTEP_UNKNOWN", value_parser = BoolishValueParser::new())]
    pub unknown: bool,
    /// The cluster to ask.
    #[command(flatten)]
    pub ask: AskFlags,
}

//! The command line of `everstep operator`.

use clap::{Args, Subcommand};

use super::AskFlags;

/// What an operator does with operators.
#[derive(Subcommand, Clone, Debug)]
pub enum OperatorTask {
    /// Say which operator DIR makes this one, and list the workers and operators that are revoked
    Ls(AskFlags),
    /// Let an operator in no more: its links are closed at once, and the folder of a coordinator
    /// gets credentials of another name
    Revoke(RevokeOperatorFlags),
}

/// The flags of `everstep operator revoke`.
#[derive(Args, Clone, Debug)]
pub struct RevokeOperatorFlags {
    /// The operator's name, or a copy of the folder with its credentials
    #[arg(value_name = "NAME|FOLDER")]
    pub operator: String,
    /// The cluster to ask.
    #[command(flatten)]
    pub ask: AskFlags,
}

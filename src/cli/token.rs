//! The command line of `everstep token`.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use everstep_transport::identity::Role;

use super::AskFlags;
use super::demo::duration;

/// What an operator does with tokens.
#[derive(Subcommand, Clone, Debug)]
pub enum TokenTask {
    /// Make a token with which nodes join. It is printed once, and kept nowhere
    Create(CreateFlags),
    /// List the tokens that admit nodes, without their secrets
    Ls(AskFlags),
    /// Revoke a token: it admits no node any more. The nodes that it has admitted stay
    Revoke(RevokeFlags),
}

/// The flags of `everstep token create`.
#[derive(Args, Clone, Debug)]
pub struct CreateFlags {
    /// The role of the nodes that join with the token
    #[arg(long, value_name = "ROLE", env = "EVERSTEP_ROLE")]
    pub role: TokenRole,
    /// How many nodes the token admits
    #[arg(long, value_name = "N", env = "EVERSTEP_USES", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub uses: u32,
    /// How long the token is valid
    #[arg(long, value_name = "TIME", env = "EVERSTEP_TTL", default_value = "15m",
        value_parser = duration)]
    pub ttl: Duration,
    /// The cluster to ask.
    #[command(flatten)]
    pub ask: AskFlags,
}

/// The flags of `everstep token revoke`.
#[derive(Args, Clone, Debug)]
pub struct RevokeFlags {
    /// The token's id in `everstep token ls`
    #[arg(value_name = "ID", allow_hyphen_values = true)]
    pub token: String,
    /// The cluster to ask.
    #[command(flatten)]
    pub ask: AskFlags,
}

/// What a token may make of a node.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenRole {
    /// A node that computes for runs.
    Worker,
    /// A node that decides which workers take part.
    Coordinator,
}

impl From<TokenRole> for Role {
    fn from(role: TokenRole) -> Self {
        match role {
            TokenRole::Worker => Self::Worker,
            TokenRole::Coordinator => Self::Coordinator,
        }
    }
}

//! `everstep token revoke`: a token admits no node any more.

use everstep_transport::identity::parse_token_id;
use everstep_transport::protocol::OperatorCommand;
use serde_json::json;

use crate::cli::RevokeFlags;
use crate::failure::{Exit, Failure};
use crate::operator::ClusterHandle;
use crate::output;

pub(super) fn run(flags: &RevokeFlags) -> Result<(), Failure> {
    let token = parse_token_id(&flags.token).map_err(|error| {
        Failure::new(Exit::Usage, format!("\"{}\" is no token's id", flags.token))
            .because(error)
            .next("look at `everstep token ls`: the id is the second part of a token's text")
    })?;
    let cluster = ClusterHandle::find(&flags.ask.cluster)?;
    cluster.ask(async |operator| operator.command(OperatorCommand::RevokeToken(token)).await)?;
    let id = &flags.token;
    if flags.ask.json {
        return output::print(json!({ "id": id, "state": "revoked" }));
    }
    output::print(format_args!(
        "token {id} is revoked: it admits no further node, and the nodes that it has admitted stay"
    ))
}

//! `everstep token create`: lets a number of nodes join for a time.

use std::time::{Duration, SystemTime};

use everstep_transport::identity::{JoinToken, TokenLimits, format_token_id};
use serde_json::json;

use crate::cli::{AskFlags, CreateFlags};
use crate::failure::Failure;
use crate::operator::ClusterHandle;
use crate::output;

pub(super) fn run(flags: &CreateFlags) -> Result<(), Failure> {
    let (role, uses) = (flags.role.into(), flags.uses);
    let expires_unix_s = until(flags.ttl);
    let limits = TokenLimits { role, uses: Some(uses), expires_unix_s: Some(expires_unix_s) };
    let cluster = ClusterHandle::find(&flags.ask.cluster)?;
    let token = cluster.ask(async |operator| operator.create_token(limits).await)?;
    let id = format_token_id(&token.id());
    if flags.ask.json {
        return output::print(json!({
            "id": id, "token": token.to_string(), "role": role, "uses": uses,
            "expires_unix_s": expires_unix_s,
        }));
    }
    let nodes = if uses == 1 { "one node".into() } else { format!("{uses} nodes") };
    let time = flags.ttl.as_secs();
    output::say(format_args!("it admits {nodes} as {role} for {time} s, and is shown this once"));
    output::print(token)
}

/// Makes the cluster accept a new token. Returns the token, and where the coordinators listen.
pub(crate) fn with_addresses(
    flags: &AskFlags,
    limits: TokenLimits,
) -> Result<(JoinToken, Vec<String>), Failure> {
    ClusterHandle::find(&flags.cluster)?.ask(async |operator| {
        let token = operator.create_token(limits).await?;
        let addresses = operator.coordinators().iter().map(|view| view.address.to_string());
        Ok((token, addresses.collect()))
    })
}

/// The end of a time that begins now, in seconds since 1970.
pub(crate) fn until(ttl: Duration) -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (now + ttl).as_secs().max(now.as_secs() + 1)
}

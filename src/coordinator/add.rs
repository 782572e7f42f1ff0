//! `everstep coordinator add`: the command with which one more coordinator joins.

use everstep_transport::identity::{Role, TokenLimits};
use serde_json::json;

use crate::cli::AddFlags;
use crate::failure::Failure;
use crate::{output, token};

pub(super) fn run(flags: &AddFlags) -> Result<(), Failure> {
    let expires_unix_s = token::until(flags.ttl);
    let limits = TokenLimits {
        role: Role::Coordinator,
        uses: Some(1),
        expires_unix_s: Some(expires_unix_s),
    };
    let (token, addresses) = token::with_addresses(&flags.ask, limits)?;
    let coordinators = addresses.join(",");
    if flags.ask.json {
        return output::print(json!({
            "token": token.to_string(), "coordinators": addresses,
            "expires_unix_s": expires_unix_s,
        }));
    }
    let time = flags.ttl.as_secs();
    output::say(format_args!(
        "run this on the new machine within {time} s, with a directory and an address of its own:"
    ));
    // The token comes from stdin, so no list of processes has it.
    output::print(format_args!(
        "echo {token} | everstep coordinator --dir DIR --listen HOST:PORT --join @- \
         --coordinators {coordinators}"
    ))
}

//! `everstep worker add`: the command with which workers on other machines join.
//!
//! The command reads the token from a file, so that no list of processes shows it.

use everstep_transport::identity::{Role, TokenLimits};
use serde_json::json;

use crate::cli::WorkerAddFlags;
use crate::failure::Failure;
use crate::{logging, output, token};

pub(crate) fn run(flags: &WorkerAddFlags) -> Result<(), Failure> {
    logging::start("warn")?;
    let expires_unix_s = token::until(flags.ttl);
    let (role, uses) = (Role::Worker, Some(flags.uses));
    let limits = TokenLimits { role, uses, expires_unix_s: Some(expires_unix_s) };
    let (token, addresses) = token::with_addresses(&flags.ask, limits)?;
    let (token, coordinators) = (token.to_string(), addresses.join(","));
    if flags.ask.json {
        return output::print(json!({
            "token": token, "coordinators": addresses, "uses": flags.uses,
            "expires_unix_s": expires_unix_s,
        }));
    }
    let machines = match flags.uses {
        1 => "on the new machine".to_string(),
        uses => format!("on each of {uses} new machines"),
    };
    let time = flags.ttl.as_secs();
    output::say(format_args!(
        "run this {machines} within {time} s, with an address of its own that the others reach, \
         and a directory for the trained model:"
    ));
    output::print(command(&token, &coordinators))
}

/// Two lines for a shell.
fn command(token: &str, coordinators: &str) -> String {
    format!(
        "(umask 077; echo {token} > worker.token)\n\
         everstep worker --coordinators {coordinators} --join @worker.token --listen HOST:PORT \
         --dir DIR"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worker_s_own_command_line_does_not_show_the_token() {
        let lines = command("everstep-1-abc", "10.0.0.1:7070,10.0.0.2:7070");
        let (file, worker) = lines.split_once('\n').expect("two lines");
        assert_eq!(file, "(umask 077; echo everstep-1-abc > worker.token)");
        let wanted = "everstep worker --coordinators 10.0.0.1:7070,10.0.0.2:7070 --join \
                      @worker.token --listen HOST:PORT --dir DIR";
        assert_eq!(worker, wanted);
    }
}

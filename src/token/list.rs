//! `everstep token ls`: the tokens that admit nodes. Those in the files of the coordinators are on
//! the list too. They admit any number of nodes until they are revoked.

use everstep_transport::identity::format_token_id;
use everstep_transport::protocol::question::TokenView;
use serde_json::json;

use super::until;
use crate::cli::AskFlags;
use crate::failure::Failure;
use crate::operator::ClusterHandle;
use crate::output::{self, table};
use crate::progress::clock;

pub(super) fn run(flags: &AskFlags) -> Result<(), Failure> {
    let tokens =
        ClusterHandle::find(&flags.cluster)?.ask(async |operator| operator.tokens().await)?;
    if flags.json {
        return output::print(json!(tokens));
    }
    if tokens.is_empty() {
        return output::print("no token admits a node. `everstep token create` makes one");
    }
    let now = until(std::time::Duration::ZERO);
    let head = ["id", "role", "uses left", "expires"].map(str::to_string);
    let rows = tokens.iter().map(|token| row(token, now));
    let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
    output::print(table(&rows))
}

fn row(token: &TokenView, now: u64) -> [String; 4] {
    let TokenView { id, role, uses_left, expires_unix_s } = token;
    let uses = uses_left.map_or("any number".into(), |uses| uses.to_string());
    let expires = match expires_unix_s {
        None => "never".into(),
        Some(at) if *at <= now => "expired".into(),
        Some(at) => format!("in {}", clock((at - now) as f64)),
    };
    [format_token_id(id), role.to_string(), uses, expires]
}

#[cfg(test)]
mod tests {
    use everstep_transport::identity::Role;

    use super::*;

    #[test]
    fn what_a_token_is_good_for_yet_is_said_in_words() {
        let mut token =
            TokenView { id: [7; 9], role: Role::Worker, uses_left: Some(2), expires_unix_s: None };
        assert_eq!(row(&token, 100)[1..], ["worker", "2", "never"]);
        token.uses_left = None;
        for (at, words) in [(100, "expired"), (101, "in 1 s"), (1_000, "in 15 min 00 s")] {
            token.expires_unix_s = Some(at);
            assert_eq!(row(&token, 100)[2..], ["any number", words]);
        }
    }
}

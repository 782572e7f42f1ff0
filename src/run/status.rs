//! `everstep run status`: how the newest run does, and what it waits for.

use everstep_transport::protocol::question::RunView;
use serde_json::json;

use super::sentence;
use crate::cli::AskFlags;
use crate::failure::Failure;
use crate::operator::Place;
use crate::output;

pub(super) fn run(flags: &AskFlags) -> Result<(), Failure> {
    let runs = Place::find(&flags.cluster)?.ask(async |operator| operator.runs().await)?;
    let newest = runs.last();
    if flags.json {
        return output::print(json!(newest));
    }
    let nothing = || "waiting for a run; `everstep run submit FILE` gives the cluster one".into();
    output::print(newest.map_or_else(nothing, with_reason))
}

/// The sentence, and why another such run may have other bits.
fn with_reason(run: &RunView) -> String {
    let reason = run.divergence.as_ref();
    sentence(run) + &reason.map_or(String::new(), |reason| format!("\nnot bitwise: {reason}"))
}

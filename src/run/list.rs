//! `everstep run ls`: the runs of a cluster, oldest first.

use serde_json::json;

use super::ended::EndedRun;
use crate::cli::AskFlags;
use crate::failure::Failure;
use crate::operator::ClusterHandle;
use crate::output::{self, table};

pub(super) fn run(flags: &AskFlags) -> Result<(), Failure> {
    let head = ["id", "name", "state", "step", "status"].map(str::to_string);
    if let Some(ended) = EndedRun::find(&flags.cluster)? {
        return match flags.json {
            true => output::print(json!([ended.json()])),
            false => output::print(table(&[head, ended.row()])),
        };
    }
    let runs = ClusterHandle::find(&flags.cluster)?.ask(async |operator| operator.runs().await)?;
    if flags.json {
        return output::print(json!(runs));
    }
    if runs.is_empty() {
        return output::print("no run was submitted yet. `everstep run submit FILE` does so");
    }
    let rows = runs
        .into_iter()
        .map(|run| [run.id.to_string(), run.name, run.state, run.step.to_string(), run.status]);
    let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
    output::print(table(&rows))
}

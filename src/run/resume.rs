//! `everstep run resume`: lets a paused run go on.

use everstep_transport::protocol::OperatorCommand;
use serde_json::json;

use super::sentence;
use crate::cli::AskFlags;
use crate::failure::Failure;
use crate::operator::ClusterHandle;
use crate::output;

pub(super) fn run(flags: &AskFlags) -> Result<(), Failure> {
    let runs = ClusterHandle::find(&flags.cluster)?.ask(async |operator| {
        // The command names the run of this answer, so it means no other one that began meanwhile.
        let run = operator.runs().await?.last().map_or(0, |run| run.id);
        operator.command(OperatorCommand::Resume(run)).await?;
        operator.runs().await
    })?;
    let resumed = runs.last();
    if flags.json {
        return output::print(json!(resumed));
    }
    output::print(resumed.map_or("it goes on".into(), sentence))
}

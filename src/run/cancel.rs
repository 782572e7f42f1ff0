//! `everstep run cancel`: ends the run under way.

use everstep_transport::protocol::OperatorCommand;
use serde_json::json;

use super::sentence;
use crate::cli::AskFlags;
use crate::failure::Failure;
use crate::operator::ClusterHandle;
use crate::output;

pub(super) fn run(flags: &AskFlags) -> Result<(), Failure> {
    let runs = ClusterHandle::find(&flags.cluster)?.ask(async |operator| {
        // The command names the run of this answer, so it cannot end another one that began
        // meanwhile.
        let run = operator.runs().await?.last().map_or(0, |run| run.id);
        operator.command(OperatorCommand::Cancel(run)).await?;
        operator.runs().await
    })?;
    let cancelled = runs.last();
    if flags.json {
        return output::print(json!(cancelled));
    }
    output::print(cancelled.map_or("it was cancelled".into(), sentence))
}

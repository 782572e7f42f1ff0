//! `everstep run rollback`: lets the run go back to a checkpoint.

use everstep_transport::protocol::{Generation, OperatorCommand, Step};
use serde_json::json;

use crate::cli::RollbackFlags;
use crate::failure::Failure;
use crate::operator::ClusterHandle;
use crate::output;

pub(super) fn run(flags: &RollbackFlags) -> Result<(), Failure> {
    let step = Step(flags.step);
    let run = ClusterHandle::find(&flags.ask.cluster)?.ask(async |operator| {
        // The command names the run of this answer, so no other one that began meanwhile goes back.
        let shown = operator.runs().await?.pop();
        let (run, generation) = shown.map_or((0, Generation(0)), |run| (run.id, run.generation));
        operator.command(OperatorCommand::Rollback { run, step, generation }).await?;
        Ok(run)
    })?;
    if flags.ask.json {
        return output::print(json!({ "run": run, "step": step }));
    }
    output::print(format!("run {run} goes back to step {step}"))
}

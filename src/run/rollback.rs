//! `everstep run rollback`: lets the run go back to a checkpoint.
//!
//! A rollback deletes the later checkpoints. So a worker first reads the one to go back to, and
//! damage is an error that undoes nothing.

use everstep_transport::protocol::{Generation, OperatorCommand, RunId, Step, Verification};
use serde_json::json;

use crate::checkpoint::by_workers;
use crate::cli::RollbackFlags;
use crate::failure::Failure;
use crate::operator::{ClusterHandle, Operator, OperatorError};
use crate::output;

pub(super) fn run(flags: &RollbackFlags) -> Result<(), Failure> {
    let step = Step(flags.step);
    let run = ClusterHandle::find(&flags.ask.cluster)?.ask(async |operator| {
        // The command names the run of this answer, so no other one that began meanwhile goes back.
        let shown = operator.runs().await?.pop();
        let (run, generation) =
            shown.map_or((RunId(0), Generation(0)), |run| (run.id, run.generation));
        if step > Step(0) {
            must_be_whole(operator, step).await?;
        }
        operator.command(OperatorCommand::Rollback { run, step, generation }).await?;
        Ok(run)
    })?;
    if flags.ask.json {
        return output::print(json!({ "run": run, "step": step }));
    }
    output::print(format!("run {run} goes back to step {step}"))
}

/// Waits until a worker has read the checkpoint of a step, and found it whole.
async fn must_be_whole(operator: &mut Operator, step: Step) -> Result<(), OperatorError> {
    let why = match by_workers::verdict(operator, step).await? {
        Verification::NotListed => None, // the cluster itself refuses the step, and says so
        verdict => by_workers::reason(verdict),
    };
    why.map_or(Ok(()), |why| {
        let words = format!(
            "nothing was undone: the checkpoint of step {step} {why}. `everstep checkpoint ls` \
             lists the others"
        );
        Err(OperatorError::Refused(words))
    })
}

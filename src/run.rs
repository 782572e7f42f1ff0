//! `everstep run`: an operator's commands for runs. One file a verb, but for `cancel` and `resume`.

mod ended;
mod list;
mod pause;
mod rollback;
mod status;
mod submit;
mod watch;

use everstep_transport::protocol::question::RunView;
use everstep_transport::protocol::{OperatorCommand, RunId};
use everstep_worker::registry::Registry;
use serde_json::json;

use crate::cli::{AskFlags, RunTask};
use crate::failure::Failure;
use crate::operator::ClusterHandle;
use crate::{logging, output};

pub(crate) fn run(task: &RunTask, registry: &Registry) -> Result<(), Failure> {
    logging::start("warn")?;
    match task {
        RunTask::Submit(flags) => submit::run(flags, registry),
        RunTask::Ls(flags) => list::run(flags),
        RunTask::Status(flags) => status::run(flags),
        RunTask::Watch(flags) => watch::run(flags),
        RunTask::Cancel(flags) => change(flags, OperatorCommand::Cancel, "it was cancelled"),
        RunTask::Pause(flags) => pause::run(flags),
        RunTask::Resume(flags) => change(flags, OperatorCommand::Resume, "it goes on"),
        RunTask::Rollback(flags) => rollback::run(flags),
    }
}

/// Changes the run under way, and says how it stands then, or that it is `done`.
fn change(
    flags: &AskFlags,
    command: fn(RunId) -> OperatorCommand,
    done: &str,
) -> Result<(), Failure> {
    let runs = ClusterHandle::find(&flags.cluster)?.ask(async |operator| {
        // The command names the run of this answer, so it means no other one that began meanwhile.
        let run = operator.runs().await?.last().map_or(RunId(0), |run| run.id);
        operator.command(command(run)).await?;
        operator.runs().await
    })?;
    let changed = runs.last();
    if flags.json {
        return output::print(json!(changed));
    }
    output::print(changed.map_or(done.into(), sentence))
}

/// The state of a run, in a sentence.
fn sentence(run: &RunView) -> String {
    output::plain(&format!("run {} \"{}\": {}", run.id, run.name, run.status))
}

//! `everstep run`: what an operator does with runs. One file a verb.

mod cancel;
mod list;
mod status;
mod submit;

use everstep_transport::protocol::question::RunView;
use everstep_worker::registry::Registry;

use crate::cli::RunTask;
use crate::failure::Failure;
use crate::logging;

pub(crate) fn run(task: &RunTask, registry: &Registry) -> Result<(), Failure> {
    logging::start("warn")?;
    match task {
        RunTask::Submit(flags) => submit::run(flags, registry),
        RunTask::Ls(flags) => list::run(flags),
        RunTask::Status(flags) => status::run(flags),
        RunTask::Cancel(flags) => cancel::run(flags),
    }
}

/// How a run stands, in a sentence.
fn sentence(run: &RunView) -> String {
    format!("run {} \"{}\": {}", run.id, run.name, run.status)
}

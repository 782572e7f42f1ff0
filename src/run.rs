//! `everstep run`: an operator's commands for runs. One file a verb.

mod cancel;
mod ended;
mod list;
mod pause;
mod resume;
mod rollback;
mod status;
mod submit;
mod watch;

use everstep_transport::protocol::question::RunView;
use everstep_worker::registry::Registry;

use crate::cli::RunTask;
use crate::failure::Failure;
use crate::{logging, output};

pub(crate) fn run(task: &RunTask, registry: &Registry) -> Result<(), Failure> {
    logging::start("warn")?;
    match task {
        RunTask::Submit(flags) => submit::run(flags, registry),
        RunTask::Ls(flags) => list::run(flags),
        RunTask::Status(flags) => status::run(flags),
        RunTask::Watch(flags) => watch::run(flags),
        RunTask::Cancel(flags) => cancel::run(flags),
        RunTask::Pause(flags) => pause::run(flags),
        RunTask::Resume(flags) => resume::run(flags),
        RunTask::Rollback(flags) => rollback::run(flags),
    }
}

/// The state of a run, in a sentence.
fn sentence(run: &RunView) -> String {
    output::plain(&format!("run {} \"{}\": {}", run.id, run.name, run.status))
}

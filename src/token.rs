//! `everstep token`: an operator's commands for the tokens that admit nodes. One file a verb.

mod create;
mod list;
mod revoke;

use crate::cli::TokenTask;
use crate::failure::Failure;
use crate::logging;

pub(crate) use create::{until, with_addresses};

pub(crate) fn run(task: &TokenTask) -> Result<(), Failure> {
    logging::start("warn")?;
    match task {
        TokenTask::Create(flags) => create::run(flags),
        TokenTask::Ls(flags) => list::run(flags),
        TokenTask::Revoke(flags) => revoke::run(flags),
    }
}

//! `everstep checkpoint`: an operator's commands for the checkpoints of a run. One file a verb.
//!
//! The verbs read the store itself, so they need no cluster, but for `now`. Only the coordinators
//! of daemons know where the store of their run is. Where their workers alone see it, a worker
//! reads for `verify`.

pub(crate) mod by_workers;
#[cfg(test)]
mod deleting_store;
mod export;
mod list;
mod now;
mod read_progress;
mod remove;
mod replay;
mod source;
mod state;
mod verify;

use everstep_checkpoint::choose::ChooseError;
use everstep_checkpoint::store::{ErrorKind, Store, StoreError};
use everstep_transport::protocol::Step;
use everstep_worker::registry::Registry;

use crate::cli::CheckpointTask;
use crate::failure::{Exit, Failure};
use crate::logging;
pub(crate) use read_progress::ReadProgress;
pub(crate) use source::{open, place_of_run};
pub use state::{StoredState, read_state};
pub(crate) use verify::must_be_whole;

pub(crate) fn run(task: &CheckpointTask, registry: &Registry) -> Result<(), Failure> {
    logging::start("warn")?;
    match task {
        CheckpointTask::Ls(flags) => list::run(flags),
        CheckpointTask::Now(flags) => now::run(flags),
        CheckpointTask::Verify(flags) => match flags.replay {
            Some(steps) => replay::run(flags, steps, registry),
            None => verify::run(flags),
        },
        CheckpointTask::Export(flags) => export::run(flags),
        CheckpointTask::Rm(flags) => remove::run(flags),
    }
}

/// An error of a store in words for the user.
pub(crate) fn store_failure(error: StoreError) -> Failure {
    let (exit, next) = match error.kind {
        ErrorKind::Retry => (Exit::Failed, "see that the store can be reached, and try again"),
        ErrorKind::Refuse => (Exit::Usage, "change what it names, and try again"),
        ErrorKind::Damaged | ErrorKind::Missing => {
            (Exit::Failed, "`everstep checkpoint ls` lists the checkpoints")
        }
    };
    let place = format!("{}: {}", error.place, error.object);
    Failure::new(exit, "the store does not do what was asked for")
        .at(place)
        .because(error.why)
        .next(next)
}

/// Why no checkpoint was chosen, in words for the user.
pub(crate) fn choose_failure(error: ChooseError) -> Failure {
    let unusable = Failure::new(Exit::Failed, "the checkpoint cannot be used");
    match error {
        ChooseError::Store(error) => store_failure(error),
        ChooseError::Missing { .. } => Failure::new(Exit::Usage, "there is no such checkpoint")
            .because(error)
            .next("`everstep checkpoint ls` lists the checkpoints"),
        ChooseError::Refused { .. } => unusable
            .because(error)
            .next("or name an older checkpoint with --step, if the steps since may be done again"),
        ChooseError::Damaged { .. } => unusable
            .because(error)
            .next("leave --step out to have the newest one that is not damaged"),
    }
}

/// Why a checkpoint was not read to its end: the run has deleted it meanwhile.
pub(crate) fn deleted(store: &dyn Store, step: Step) -> Failure {
    let what = format!("the checkpoint of step {step} was deleted while it was read");
    Failure::new(Exit::Failed, what)
        .at(store.place())
        .because(
            "a run under way keeps its newest checkpoints alone, and drops later ones when it goes \
             back",
        )
        .next(
            "try again with a newer one, which `everstep checkpoint ls` lists, or copy one first. \
             A larger checkpoint.keep leaves the next run's readers more time",
        )
}

//! `everstep checkpoint rm`: deletes a checkpoint.
//!
//! The manifest goes first, so an interrupted deletion leaves nothing that looks complete.

use everstep_checkpoint::choose::{self, Wanted};
use everstep_checkpoint::retention;
use everstep_checkpoint::store::StoredObject;
use everstep_transport::protocol::Step;
use serde_json::json;

use super::source::CheckpointSource;
use super::{choose_failure, store_failure};
use crate::cli::RemoveCheckpointFlags;
use crate::failure::{Exit, Failure};
use crate::output;

pub(super) fn run(flags: &RemoveCheckpointFlags) -> Result<(), Failure> {
    let store = CheckpointSource::find(&flags.store)?.open()?;
    let step = Step(flags.step);
    let listing = store.list().map_err(store_failure)?;
    if !choose::steps(&listing).contains(&step) {
        return Err(Failure::new(Exit::Usage, format!("there is no checkpoint of step {step}"))
            .at(store.place())
            .next("`everstep checkpoint ls` lists the checkpoints"));
    }
    if !flags.force {
        let newest = choose::newest(&*store, Wanted::default()).map_err(choose_failure)?;
        if newest.manifest.is_some_and(|manifest| manifest.step == step) {
            return Err(refused(step, store.place()));
        }
    }
    for object in retention::deletion_order(&listing, step) {
        store.delete(&object).map_err(store_failure)?;
    }
    let bytes = bytes(&listing, step);
    if flags.store.json {
        return output::print(json!({ "step": step, "bytes": bytes, "state": "deleted" }));
    }
    output::print(format_args!("step {step}: deleted, {:.1} MB", bytes as f64 / 1e6))
}

fn refused(step: Step, place: &str) -> Failure {
    Failure::new(Exit::Usage, format!("the checkpoint of step {step} stays"))
        .at(place)
        .because("it is the newest that can be restored: without it the run would lose steps")
        .next("pass --force to delete it all the same")
}

fn bytes(listing: &[StoredObject], step: Step) -> u64 {
    let of_step = listing.iter().filter(|object| object.name.step() == Some(step));
    of_step.map(|object| object.bytes).sum()
}

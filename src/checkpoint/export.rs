//! `everstep checkpoint export`: the weights of a checkpoint, in a folder that `transformers`
//! loads.

use everstep_checkpoint::choose::{self, Choice, Wanted};
use everstep_checkpoint::export::{ExportError, Exported, export};
use everstep_checkpoint::manifest::Manifest;
use everstep_checkpoint::part::reader::{Damage, ReadError};
use everstep_checkpoint::store::Store;
use everstep_transport::protocol::Step;
use serde_json::json;

use super::read_progress::ReadProgress;
use super::source::CheckpointSource;
use super::{choose_failure, deleted, store_failure};
use crate::cli::ExportFlags;
use crate::failure::{Exit, Failure};
use crate::output;

pub(super) fn run(flags: &ExportFlags) -> Result<(), Failure> {
    let store = CheckpointSource::find(&flags.store)?.open()?;
    let (step, exported) = match flags.step {
        Some(step) => (Step(step), write_step(&*store, Step(step), flags)?),
        None => write_newest(&*store, flags)?,
    };
    let Exported { weights, config } = exported;
    if flags.store.json {
        return output::print(json!({ "step": step, "weights": weights, "config": config }));
    }
    let config = config.map_or(String::new(), |config| format!("\n{}", config.display()));
    output::say(format_args!("the weights after step {step}:"));
    output::print(format_args!("{}{config}", weights.display()))
}

/// Writes the checkpoint of this step.
fn write_step(store: &dyn Store, step: Step, flags: &ExportFlags) -> Result<Exported, Failure> {
    let manifest = choose::exactly(store, step, None).map_err(choose_failure)?;
    match write(store, &manifest, flags) {
        Err(error) if is_gone(store, &manifest, &error)? => Err(deleted(store, step)),
        written => written.map_err(|error| failure(flags, error)),
    }
}

/// Writes the newest checkpoint that is not damaged. The user hears of each newer one.
fn write_newest(store: &dyn Store, flags: &ExportFlags) -> Result<(Step, Exported), Failure> {
    let mut wanted = Wanted::default();
    loop {
        let Choice { manifest, passed_over } =
            choose::newest(store, wanted).map_err(choose_failure)?;
        for passed in &passed_over {
            pass_over(passed.step, &passed.damage);
        }
        let manifest = manifest.ok_or_else(|| {
            Failure::new(Exit::Usage, "there is no checkpoint to export")
                .at(store.place())
                .because("the store has none that is complete and not damaged")
        })?;
        match write(store, &manifest, flags) {
            Ok(exported) => return Ok((manifest.step, exported)),
            Err(error) if is_gone(store, &manifest, &error)? => {
                let step = manifest.step;
                output::say(format_args!(
                    "note: the checkpoint of step {step} was deleted while it was read: the newest \
                     one is taken"
                ));
                wanted = Wanted::default();
            }
            Err(ExportError::Read(ReadError::Damaged(damage))) => {
                pass_over(manifest.step, &damage);
                wanted.below = Some(manifest.step);
            }
            Err(error) => return Err(failure(flags, error)),
        }
    }
}

/// Whether the checkpoint was deleted while it was read.
fn is_gone(store: &dyn Store, manifest: &Manifest, error: &ExportError) -> Result<bool, Failure> {
    match error {
        ExportError::Read(ReadError::Damaged(_)) => {
            choose::is_gone(store, manifest).map_err(store_failure)
        }
        _ => Ok(false),
    }
}

fn pass_over(step: Step, damage: &Damage) {
    let damage = output::plain(&damage.to_string());
    output::say(format_args!("note: the checkpoint of step {step} is passed over: {damage}"));
}

fn write(
    store: &dyn Store,
    manifest: &Manifest,
    flags: &ExportFlags,
) -> Result<Exported, ExportError> {
    let mut progress = ReadProgress::of_bytes(format!("step {}", manifest.step), manifest.bytes());
    let mut read = |parameters| progress.add(parameters * manifest.slots.bytes_per_parameter());
    export(store, manifest, &flags.folder, flags.dtype.into(), &mut read)
}

fn failure(flags: &ExportFlags, error: ExportError) -> Failure {
    let failed = Failure::new(Exit::Failed, "the weights are not exported");
    match error {
        ExportError::Occupied(path) => Failure::new(Exit::Usage, "the folder has a model already")
            .at(path.display())
            .next("name another folder, or move the model away"),
        ExportError::Write { path, error } => {
            failed.at(path.display()).because(error).next("make room, or name another folder")
        }
        ExportError::Read(ReadError::Store(error)) => store_failure(error),
        error => failed.at(flags.folder.display()).because(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::deleting_store::{DeletingStore, STEP};
    use crate::cli::{ExportType, StoreFlags};

    fn flags(folder: &std::path::Path, step: Option<u64>) -> ExportFlags {
        let (folder, store) = (folder.join("weights"), StoreFlags::default());
        ExportFlags { folder, step, dtype: ExportType::F32, store }
    }

    #[test]
    fn a_checkpoint_that_its_run_deletes_meanwhile_is_named_and_a_newer_one_is_looked_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let asked = flags(folder.path(), Some(STEP.0));
        let store = DeletingStore::new();
        let told = write_step(&store, STEP, &asked).expect_err("it is gone").to_string();
        assert!(told.contains("step 5 was deleted while it was read"), "{told}");
        assert!(told.contains("try again with a newer one"), "{told}");
        let store = DeletingStore::new();
        let told = write_newest(&store, &flags(folder.path(), None)).expect_err("none is left");
        assert!(told.to_string().contains("there is no checkpoint to export"), "{told}");
        assert!(write_step(DeletingStore::new().quiet(), STEP, &asked).is_ok());
    }
}

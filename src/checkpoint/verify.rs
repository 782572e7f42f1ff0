//! `everstep checkpoint verify`: reads all of the checkpoints, and names each damage by file and
//! shard.

use everstep_checkpoint::choose::{self, ChooseError};
use everstep_checkpoint::manifest::Manifest;
use everstep_checkpoint::names::ObjectName;
use everstep_checkpoint::part::reader::{self, Damage};
use everstep_checkpoint::store::{Store, StoredObject};
use everstep_transport::protocol::Step;
use serde_json::{Value, json};

use super::read_progress::ReadProgress;
use super::source::CheckpointSource;
use super::{by_workers, choose_failure, deleted, store_failure};
use crate::cli::VerifyFlags;
use crate::failure::{Exit, Failure};
use crate::output;

/// A checkpoint that was read.
struct Verified {
    step: Step,
    manifest: Option<Manifest>,
    damage: Vec<Damage>,
}

pub(super) fn run(flags: &VerifyFlags) -> Result<(), Failure> {
    let source = CheckpointSource::find(&flags.store)?;
    if let Some(cluster) = source.elsewhere()? {
        return by_workers::verify(cluster, flags);
    }
    let store = source.open()?;
    let listing = store.list().map_err(store_failure)?;
    let verified = match flags.step {
        Some(step) => vec![verify_one(&*store, Step(step))?],
        None => verify_all(&*store, &complete(&listing))?,
    };
    match flags.store.json {
        true => output::print(json!(verified.iter().map(Verified::json).collect::<Vec<_>>()))?,
        false if verified.is_empty() => output::print("there are no checkpoints")?,
        false => verified.iter().try_for_each(|it| output::print(it.words()))?,
    }
    let damaged: Vec<_> = verified.iter().filter(|it| !it.damage.is_empty()).collect();
    if damaged.is_empty() {
        return Ok(());
    }
    let steps: Vec<_> = damaged.iter().map(|it| it.step.to_string()).collect();
    Err(Failure::new(Exit::Failed, "a checkpoint is damaged")
        .at(store.place())
        .because(format!("the checkpoint of step {} is not as it was written", steps.join(", ")))
        .next(
            "a run goes on from the newest one that is not damaged, and `checkpoint rm --step N \
             --force` removes this one",
        ))
}

/// The steps that have a manifest. The user hears of the others.
fn complete(listing: &[StoredObject]) -> Vec<Step> {
    let has_manifest =
        |step: &Step| listing.iter().any(|object| object.name == ObjectName::Manifest(*step));
    let (complete, others): (Vec<_>, Vec<_>) =
        choose::steps(listing).into_iter().partition(has_manifest);
    for step in others {
        output::say(format_args!("note: the checkpoint of step {step} is not complete"));
    }
    complete
}

/// Checks that a checkpoint is as it was written.
pub(crate) fn must_be_whole(store: &dyn Store, step: Step) -> Result<(), Failure> {
    let verified = verify_one(store, step)?;
    if verified.damage.is_empty() {
        return Ok(());
    }
    Err(Failure::new(Exit::Failed, format!("the checkpoint of step {step} is damaged"))
        .at(store.place())
        .because(verified.words())
        .next("name another step, or none for the newest checkpoint that is not damaged"))
}

fn verify_one(store: &dyn Store, step: Step) -> Result<Verified, Failure> {
    verify(store, step)?.ok_or_else(|| deleted(store, step))
}

/// Verifies checkpoints that were complete. The user hears of those that are deleted meanwhile.
fn verify_all(store: &dyn Store, steps: &[Step]) -> Result<Vec<Verified>, Failure> {
    let mut all = Vec::new();
    for &step in steps {
        let found = match verify(store, step) {
            // It may have been deleted before anything of it was read.
            Ok(Some(Verified { manifest: None, .. })) | Err(_) if !is_there(store, step)? => None,
            found => found?,
        };
        if found.is_none() {
            output::say(format_args!(
                "note: the checkpoint of step {step} was deleted before it was read to its end"
            ));
        }
        all.extend(found);
    }
    Ok(all)
}

fn is_there(store: &dyn Store, step: Step) -> Result<bool, Failure> {
    match store.size(&ObjectName::Manifest(step)) {
        Ok(_) => Ok(true),
        Err(error) if error.is_missing() => Ok(false),
        Err(error) => Err(store_failure(error)),
    }
}

/// Reads all of a checkpoint. None if it was deleted meanwhile.
fn verify(store: &dyn Store, step: Step) -> Result<Option<Verified>, Failure> {
    let manifest = match choose::exactly(store, step, None) {
        Ok(manifest) => manifest,
        Err(ChooseError::Damaged { damage, .. }) => {
            return Ok(Some(Verified { step, manifest: None, damage: vec![damage] }));
        }
        Err(error) => return Err(choose_failure(error)),
    };
    let mut progress = ReadProgress::of_bytes(format!("step {step}"), manifest.bytes());
    let damage = reader::verify(store, &manifest, &mut |bytes| progress.add(bytes));
    let damage = damage.map_err(store_failure)?;
    if !damage.is_empty() && choose::is_gone(store, &manifest).map_err(store_failure)? {
        return Ok(None);
    }
    Ok(Some(Verified { step, manifest: Some(manifest), damage }))
}

impl Verified {
    fn json(&self) -> Value {
        let damage = self.damage.iter().map(|damage| {
            let Damage { file, shard, why } = damage;
            json!({ "file": file.to_string(), "shard": shard, "why": why })
        });
        let manifest = self.manifest.as_ref();
        json!({
            "step": self.step,
            "bytes": manifest.map(Manifest::bytes),
            "state_hash": manifest.map(|manifest| manifest.state_hash.to_string()),
            "damage": damage.collect::<Vec<_>>(),
        })
    }

    fn words(&self) -> String {
        let Self { step, manifest, damage } = self;
        match manifest {
            Some(manifest) if damage.is_empty() => {
                let (bytes, hash) = (manifest.bytes(), manifest.state_hash);
                format!("step {step}: {:.1} MB as written, state hash {hash}", bytes as f64 / 1e6)
            }
            _ => {
                let damage = damage.iter().map(|it| output::plain(&format!("\n  {it}")[1..]));
                format!("step {step}: damaged\n{}", damage.collect::<Vec<_>>().join("\n"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::Shard;

    use super::*;
    use crate::checkpoint::deleting_store::{DeletingStore, STEP};

    #[test]
    fn a_checkpoint_that_its_run_deletes_meanwhile_is_not_taken_for_a_damaged_one() {
        let store = DeletingStore::new();
        let all = verify_all(store.quiet(), &[STEP]).expect("an answer");
        assert!(matches!(&all[..], [one] if one.damage.is_empty()), "it is whole");
        let failure = must_be_whole(&store, STEP).expect_err("it is gone").to_string();
        for words in ["step 5 was deleted while it was read", "a newer one", "checkpoint.keep"] {
            assert!(failure.contains(words), "{failure}");
        }
        let store = DeletingStore::new();
        assert!(verify_all(&store, &[STEP]).expect("an answer").is_empty(), "a note tells of it");
        assert!(verify_all(&store, &[STEP]).expect("an answer").is_empty(), "it is gone before");
    }

    #[test]
    fn each_damage_is_named_by_file_and_shard() {
        let file = ObjectName::Manifest(Step(5));
        let damage = [None, Some(Shard(3))].map(|shard| Damage {
            file: file.clone(),
            shard,
            why: "it is gone".into(),
        });
        let verified = Verified { step: Step(5), manifest: None, damage: damage.into() };
        let told = "step 5: damaged\n  step-000005/manifest.json: it is gone\n  \
                    step-000005/manifest.json: parameter shard 3: it is gone";
        assert_eq!(verified.words(), told);
        let json = verified.json();
        let shards = [0, 1].map(|at| json["damage"][at]["shard"].as_u64());
        assert_eq!(shards, [None, Some(3)]);
        assert_eq!(json["damage"][1]["file"], "step-000005/manifest.json");
    }
}

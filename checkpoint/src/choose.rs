//! Which checkpoint a run restores: the newest whole one, or the one that was asked for.
//!
//! Input: the listing of a store, and a way to read manifests. Output: a manifest, and what was
//! wrong with each newer checkpoint. An error of the store is never taken for damage, and nothing
//! here ever decides to begin from scratch: the caller gets `None` and says so.
//!
//! The listing shows sizes alone. Bits that changed show when the shards are read. The caller then
//! chooses again below that step.

use std::collections::{BTreeMap, BTreeSet};

use everstep_transport::protocol::Step;

use crate::manifest::{MAX_MANIFEST_BYTES, Manifest, ManifestError};
use crate::names::ObjectName;
use crate::part::reader::Damage;
use crate::store::{ErrorKind, Store, StoreError, StoredObject};

/// Which checkpoints would do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted<'a> {
    /// Only checkpoints of this run. None: checkpoints of any run in the store.
    pub run: Option<&'a str>,
    /// Only those of steps before this one.
    pub below: Option<Step>,
}

/// The checkpoints that a search of the store found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// The newest usable checkpoint. None if there is none at all.
    pub manifest: Option<Manifest>,
    /// Newer checkpoints that are not usable, newest first.
    pub passed_over: Vec<PassedOver>,
}

/// A checkpoint that is not usable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedOver {
    /// The step that the checkpoint was made after.
    pub step: Step,
    /// What is wrong with it.
    pub damage: Damage,
}

/// Why no checkpoint was chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChooseError {
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A program of another version wrote it. An older one is not taken instead, since that would
    /// lose steps in silence.
    #[error("{file}: {error}")]
    Refused {
        /// The name of the manifest in the store.
        file: ObjectName,
        /// What is wrong with it.
        error: ManifestError,
    },
    /// The checkpoint that was asked for is damaged.
    #[error("the checkpoint of step {step} is damaged: {damage}")]
    Damaged {
        /// The step that the checkpoint was made after.
        step: Step,
        /// What is wrong with it.
        damage: Damage,
    },
    /// There is no such checkpoint.
    #[error("there is no checkpoint of step {step}: {there}")]
    Missing {
        /// The step that was asked for.
        step: Step,
        /// Which ones there are, in words.
        there: String,
    },
}

/// The newest usable checkpoint of a store.
///
/// # Errors
/// If the store does not answer, or a newer program wrote the newest checkpoint.
pub fn newest(store: &dyn Store, wanted: Wanted<'_>) -> Result<Choice, ChooseError> {
    newest_of(&store.list()?, wanted, &mut reads(store))
}

/// The checkpoint of one step.
///
/// # Errors
/// If the store does not answer, or there is no such checkpoint, or it is not usable.
pub fn exactly(store: &dyn Store, step: Step, run: Option<&str>) -> Result<Manifest, ChooseError> {
    exactly_of(&store.list()?, step, run, &mut reads(store))
}

/// Whether a checkpoint was deleted, or replaced, since its manifest was read. What is wrong with
/// it is then no damage: the run keeps its newest checkpoints, and goes back at times.
///
/// # Errors
/// If the store does not answer.
pub fn is_gone(store: &dyn Store, manifest: &Manifest) -> Result<bool, StoreError> {
    match reads(store)(manifest.step) {
        Ok(bytes) => {
            let id = |manifest: &Manifest| (manifest.run.clone(), manifest.generation);
            Ok(Manifest::parse(&bytes).is_ok_and(|there| id(&there) != id(manifest)))
        }
        Err(error) if error.is_missing() => Ok(true),
        Err(error) if error.kind == ErrorKind::Damaged => Ok(false),
        Err(error) => Err(error),
    }
}

/// How manifests are read: bytes, or an error of the store.
pub type ReadManifest<'a> = dyn FnMut(Step) -> Result<Vec<u8>, StoreError> + 'a;

fn reads(store: &dyn Store) -> impl FnMut(Step) -> Result<Vec<u8>, StoreError> {
    |step| store.read_whole(&ObjectName::Manifest(step), MAX_MANIFEST_BYTES)
}

/// [`newest`], as a pure function of a listing and of what is read.
///
/// # Errors
/// If reading fails, or a newer program wrote the newest checkpoint.
pub fn newest_of(
    listing: &[StoredObject],
    wanted: Wanted<'_>,
    read: &mut ReadManifest<'_>,
) -> Result<Choice, ChooseError> {
    let mut choice = Choice::default();
    let would_do = |step: &Step| wanted.below.is_none_or(|below| *step < below);
    for step in steps(listing).into_iter().rev().filter(would_do) {
        match whole(listing, step, wanted.run, read)? {
            Ok(manifest) => {
                choice.manifest = Some(manifest);
                break;
            }
            Err(damage) => choice.passed_over.push(PassedOver { step, damage }),
        }
    }
    Ok(choice)
}

/// [`exactly`], as a pure function of a listing and of what is read.
///
/// # Errors
/// As there.
pub fn exactly_of(
    listing: &[StoredObject],
    step: Step,
    run: Option<&str>,
    read: &mut ReadManifest<'_>,
) -> Result<Manifest, ChooseError> {
    let steps = steps(listing);
    if !steps.contains(&step) {
        let has_manifest =
            |step: &&Step| listing.iter().any(|object| object.name == ObjectName::Manifest(**step));
        let complete = steps.iter().filter(has_manifest);
        let near = complete.rev().take(8).map(Step::to_string).collect::<Vec<_>>().join(", ");
        let there = match near.is_empty() {
            true => "the store has none at all".to_string(),
            false => format!("the newest are those of steps {near}"),
        };
        return Err(ChooseError::Missing { step, there });
    }
    let found = whole(listing, step, run, read)?;
    found.map_err(|damage| ChooseError::Damaged { step, damage })
}

/// The steps of which the store has anything, a manifest or a part.
pub fn steps(listing: &[StoredObject]) -> BTreeSet<Step> {
    listing.iter().filter_map(|object| object.name.step()).collect()
}

/// The first file of a checkpoint that the listing lacks, or has in another size.
pub fn first_lack(listing: &[StoredObject], manifest: &Manifest) -> Option<Damage> {
    let of_step = |object: &&StoredObject| object.name.step() == Some(manifest.step);
    let there: BTreeMap<_, _> =
        listing.iter().filter(of_step).map(|object| (&object.name, object.bytes)).collect();
    let names = (0..manifest.files.len() as u32).map(|file| manifest.file_name(file));
    names.zip(&manifest.files).find_map(|(name, file)| {
        let why = match there.get(&name) {
            Some(bytes) if *bytes == file.bytes => return None,
            Some(bytes) => format!("it has {bytes} bytes, and had {} when written", file.bytes),
            None => "it is gone".into(),
        };
        Some(Damage { file: name, shard: None, why })
    })
}

/// The checkpoint of a step, or what is wrong with it.
fn whole(
    listing: &[StoredObject],
    step: Step,
    run: Option<&str>,
    read: &mut ReadManifest<'_>,
) -> Result<Result<Manifest, Damage>, ChooseError> {
    let file = ObjectName::Manifest(step);
    let damage = |why: String| Ok(Err(Damage { file: file.clone(), shard: None, why }));
    let missing = "it is not there: the checkpoint was never complete, or the file was deleted";
    if !listing.iter().any(|object| object.name == file) {
        return damage(missing.into());
    }
    let bytes = match read(step) {
        Ok(bytes) => bytes,
        Err(error) if error.kind == ErrorKind::Missing => return damage(missing.into()),
        Err(error) if error.kind == ErrorKind::Damaged => return damage(error.why),
        Err(error) => return Err(error.into()),
    };
    let manifest = match Manifest::parse(&bytes) {
        Ok(manifest) => manifest,
        Err(error) if error.is_damage() => return damage(error.to_string()),
        Err(error) => return Err(ChooseError::Refused { file, error }),
    };
    if manifest.step != step {
        return damage(format!("it is the manifest of another step, {}", manifest.step));
    }
    if run.is_some_and(|run| run != manifest.run) {
        return damage(format!("it is the manifest of another run, {}", manifest.run));
    }
    Ok(first_lack(listing, &manifest).map_or(Ok(manifest), Err))
}

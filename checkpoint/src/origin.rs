//! What a store tells of a run that another cluster is to go on with.
//!
//! Input: the listing of a store, the manifest of the checkpoint from which the run goes on, and a
//! way to read other manifests. Output: a [`RunOrigin`], which the new cluster's log begins with.
//! The listing must be newer than the new cluster's [claim](crate::claims): until then the earlier
//! cluster may write, and delete what a listing shows. Shards are not read here.

use std::collections::BTreeSet;

use everstep_transport::protocol::{
    CheckpointId, Commit, Decision, Generation, ListedCheckpoint, LossScale, MetricsLine,
    RunOrigin, Step,
};

use crate::choose::{self, ChooseError, ReadManifest, Wanted};
use crate::manifest::Manifest;
use crate::names::ObjectName;
use crate::store::{Store, StoreError, StoredObject};

/// Most checkpoints that a run knows when it goes on. Older ones stay in the store.
const MAX_LISTED: usize = 1_000;

/// Where the run of this manifest goes on. `falls_back` says whether an older checkpoint may take
/// its place. None for step 0, which needs no checkpoint.
///
/// # Errors
/// If the store does not answer.
pub fn of(
    listing: &[StoredObject],
    newest: &Manifest,
    falls_back: bool,
    read: &mut ReadManifest<'_>,
) -> Result<Option<RunOrigin>, StoreError> {
    let Some(last) = listed(newest) else { return Ok(None) };
    let mut checkpoints = older(listing, newest, read)?;
    checkpoints.push(last);
    let undone = undone(listing, newest.step, read);
    let of_parts = listing.iter().filter_map(generation);
    let of_manifests = checkpoints.iter().map(|listed| listed.commit.generation);
    let of_undone = undone.iter().map(|id| id.generation);
    let generation = of_parts.chain(of_manifests).chain(of_undone).max().unwrap_or_default();
    Ok(Some(RunOrigin { checkpoints, undone, generation, falls_back }))
}

/// Makes durable what a run goes on from. The earlier cluster may have ended before it did so: all
/// processes see an object then, and the next power failure takes it away.
///
/// # Errors
/// If the store does not answer.
pub fn make_durable(
    store: &dyn Store,
    listing: &[StoredObject],
    origin: &RunOrigin,
) -> Result<(), StoreError> {
    let steps: BTreeSet<Step> = origin.checkpoints.iter().map(|it| it.commit.step).collect();
    let is_needed = |name: &ObjectName| match name {
        ObjectName::Lines(_) | ObjectName::Events(_) => true,
        name => name.step().is_some_and(|step| steps.contains(&step)),
    };
    for object in listing.iter().filter(|object| is_needed(&object.name)) {
        match store.make_durable(&object.name) {
            // The earlier cluster has deleted it: it is of no checkpoint.
            Err(error) if error.is_missing() => {}
            done => done?,
        }
    }
    Ok(())
}

/// The usable checkpoints of the run before this one, ascending by step.
fn older(
    listing: &[StoredObject],
    newest: &Manifest,
    read: &mut ReadManifest<'_>,
) -> Result<Vec<ListedCheckpoint>, StoreError> {
    let (run, mut below, mut found) = (Some(newest.run.as_str()), newest.step, Vec::new());
    while found.len() < MAX_LISTED {
        let wanted = Wanted { run, below: Some(below) };
        let manifest = match choose::newest_of(listing, wanted, read) {
            Err(ChooseError::Store(error)) => return Err(error),
            // Another version wrote it. The run does not go on from it, and leaves it alone.
            Err(_) => None,
            Ok(choice) => choice.manifest,
        };
        let Some(listed) = manifest.as_ref().and_then(listed) else { break };
        below = listed.commit.step;
        found.push(listed);
    }
    found.reverse();
    Ok(found)
}

/// What the names of an object tell of the generation that wrote it.
fn generation(object: &StoredObject) -> Option<Generation> {
    match &object.name {
        ObjectName::Part(_, part) => Some(part.generation),
        ObjectName::Lines(id) | ObjectName::Events(id) => Some(id.generation),
        _ => None,
    }
}

/// What is in the store of later steps. A manifest that cannot be read counts for generation 0.
fn undone(listing: &[StoredObject], after: Step, read: &mut ReadManifest<'_>) -> Vec<CheckpointId> {
    let mut undone = BTreeSet::new();
    for object in listing {
        let Some(step) = object.name.step().filter(|step| *step > after) else { continue };
        let generation = match &object.name {
            ObjectName::Manifest(_) => read(step)
                .ok()
                .and_then(|bytes| Manifest::parse(&bytes).ok())
                .map_or(Generation(0), |manifest| manifest.generation),
            _ => generation(object).unwrap_or_default(),
        };
        undone.insert(CheckpointId { step, generation });
    }
    undone.into_iter().collect()
}

/// A checkpoint as the log lists it. None for step 0, which needs none.
fn listed(manifest: &Manifest) -> Option<ListedCheckpoint> {
    let Manifest { step, generation, .. } = *manifest;
    let said = manifest.commit?;
    let decision = if said.applied { Decision::Apply } else { Decision::Skip };
    let (loss, norm) = (said.loss, said.norm);
    let loss_scale = LossScale { exponent: said.loss_scale_exponent, good: said.loss_scale_good };
    // The manifest has no line: this is what is known of it.
    let line =
        MetricsLine { step, generation, loss, grad_norm: norm, decision, ..MetricsLine::default() };
    // The state has this update already, so no owner will multiply by the factor again.
    let (gradient_factor, updates, hold) = (1.0, said.updates, false);
    let commit = Commit {
        generation,
        step,
        norm,
        loss,
        decision,
        gradient_factor,
        updates,
        loss_scale,
        hold,
        line,
    };
    let (bytes, state_hash) = (manifest.bytes(), manifest.state_hash.0);
    Some(ListedCheckpoint { commit, bytes, write_ms: 0, state_hash, damage: None })
}

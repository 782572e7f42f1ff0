//! How a worker completes a checkpoint by its manifest, and deletes what is not needed any more.

use everstep_checkpoint::digest::Digest;
use everstep_checkpoint::history;
use everstep_checkpoint::manifest::{
    AssembleError, CommitRecord, Facts, MAX_MANIFEST_BYTES, Manifest,
};
use everstep_checkpoint::names::{ObjectName, PartName};
use everstep_checkpoint::part::PartSummary;
use everstep_checkpoint::retention;
use everstep_checkpoint::store::{Created, Store, StoreError, StoredObject};
#[cfg(feature = "planted")]
use everstep_transport::protocol::outcome::{WorkerResult, state_hash};
use everstep_transport::protocol::{
    CheckpointId, Commit, Decision, ManifestToWrite, Step, WorkerPart, WrittenManifest,
};

use super::claim::{ClusterClaim, Permit};
use super::{Attempt, pass_point};
use crate::device::checkpoint_facts::CheckpointFacts;

/// Deletes what is to be deleted, and writes the manifest, if the cluster may write and all parts
/// are in the store. Then sweeps the store.
pub(super) fn carry_out(
    order: &ManifestToWrite,
    store: &dyn Store,
    facts: &CheckpointFacts,
    claim: &mut ClusterClaim,
) -> Result<Attempt<WrittenManifest>, StoreError> {
    // A listing may take long, and so may the lines. What changes the store follows a look at the
    // claims at once.
    let listing = store.list_checkpoints()?;
    let number = match claim.ask(store)? {
        Permit::May(number) => number,
        Permit::MayNot(reason) => return Ok(Attempt::MayNot(reason)),
    };
    let ManifestToWrite { parts, bitwise, delete, sweep, lines, events, .. } = order;
    let Some(first) = parts.first() else {
        return Ok(Attempt::Refused("the checkpoint has no part".into()));
    };
    let commit = &first.part.commit;
    let manifest = match assemble(facts, commit, parts, number, *bitwise) {
        Ok(manifest) => manifest,
        Err(error) => return Ok(Attempt::Refused(error.to_string())),
    };
    if let Some(reason) = missing(store, parts, &listing, number)? {
        return Ok(Attempt::Refused(reason));
    }
    // A list may be long. Each is deleted only if no other cluster has claimed the store meanwhile.
    for id in delete {
        if let Permit::MayNot(reason) = claim.ask(store)? {
            return Ok(Attempt::MayNot(reason));
        }
        remove(store, &listing, *id)?;
    }
    history::write(store, CheckpointId::of(commit), lines, events)?;
    pass_point("manifest.due");
    if let Permit::MayNot(reason) = claim.ask(store)? {
        return Ok(Attempt::MayNot(reason));
    }
    if let Some(reason) = put(store, &manifest, &listing)? {
        return Ok(Attempt::Refused(reason));
    }
    pass_point("manifest.placed");
    // What is left over does no harm: a sweep that fails waits for the next one.
    if let Err(error) = sweep_up(store, &listing, *sweep) {
        tracing::debug!(%error, "the store of checkpoints was not swept");
    }
    Ok(Attempt::Done(WrittenManifest {
        id: CheckpointId::of(commit),
        bytes: manifest.bytes(),
        state_hash: manifest.state_hash.0,
        deleted: delete.clone(),
    }))
}

/// What is wrong with the first part that is not in the store as its worker wrote it. A part that
/// the listing lacks is looked for by its name: on a network's file system it may be too young.
fn missing(
    store: &dyn Store,
    parts: &[WorkerPart],
    listing: &[StoredObject],
    claim: u64,
) -> Result<Option<String>, StoreError> {
    for of in parts {
        let name = ObjectName::Part(of.part.commit.step, name_of(of, claim));
        let bytes = match listing.iter().find(|object| object.name == name) {
            Some(object) => object.bytes,
            None => match store.size(&name) {
                Ok(bytes) => bytes,
                Err(error) if error.is_missing() => {
                    return Ok(Some(gone(store, &name)));
                }
                Err(error) => return Err(error),
            },
        };
        let wanted = of.part.bytes;
        if bytes != wanted {
            return Ok(Some(format!("{name} has {bytes} bytes in the store, and not {wanted}")));
        }
    }
    Ok(None)
}

/// What is wrong if a part is not there that its worker has written.
fn gone(store: &dyn Store, name: &ObjectName) -> String {
    let place = store.place();
    match place.contains("://") {
        true => format!("{name} is gone from {place}"),
        false => format!(
            "{name} is not in {place} on this worker's machine: state a directory that all workers \
             see in checkpoint.path, or a URL, unless it was deleted"
        ),
    }
}

/// Deletes what nothing needs any more, of a store with this listing. The listing is from before
/// the manifest, whose step is later than `up_to`.
fn sweep_up(store: &dyn Store, listing: &[StoredObject], up_to: Step) -> Result<(), StoreError> {
    for name in retention::rubbish(listing, up_to) {
        // A listing of a network's file system may be older than a manifest.
        let manifest = name.step().map(ObjectName::Manifest);
        match manifest.map(|manifest| store.size(&manifest)) {
            Some(Ok(_)) => continue,
            Some(Err(error)) if !error.is_missing() => return Err(error),
            _ => store.delete(&name)?,
        }
    }
    store.sweep(retention::abandoned_before(listing)).map(drop)
}

fn name_of(of: &WorkerPart, claim: u64) -> PartName {
    PartName { generation: of.part.generation, worker: of.worker, claim }
}

/// The manifest of these parts, which the cluster with this claim wrote. An error if they are no
/// whole checkpoint.
fn assemble(
    facts: &CheckpointFacts,
    commit: &Commit,
    parts: &[WorkerPart],
    claim: u64,
    bitwise: bool,
) -> Result<Manifest, AssembleError> {
    let summary = |of: &WorkerPart| PartSummary {
        name: name_of(of, claim),
        bytes: of.part.bytes,
        head_bytes: of.part.head_bytes,
        head_blake3: Digest(of.part.head_digest),
        shards: of.part.shards.iter().map(|(shard, digest)| (*shard, Digest(*digest))).collect(),
    };
    let summaries: Vec<PartSummary> = parts.iter().map(summary).collect();
    let known = Facts {
        run: &facts.run_digest,
        spec: &facts.run,
        fingerprint: &facts.fingerprint,
        layout: &facts.layout,
        slots: &facts.slots,
        step: commit.step,
        generation: commit.generation,
        commit: Some(CommitRecord {
            norm: commit.norm,
            loss: commit.loss,
            applied: commit.decision == Decision::Apply,
            updates: commit.updates,
            loss_scale_exponent: commit.loss_scale.exponent,
            loss_scale_good: commit.loss_scale.good,
        }),
        bitwise,
    };
    Manifest::assemble(&known, &summaries)
}

/// What a manifest finds at its place.
enum ManifestPlace {
    /// Nothing, or the manifest of the same checkpoint: now it is there.
    Taken,
    /// The manifest of this checkpoint, which no log can list any more.
    Outdated(CheckpointId),
    /// The name is taken by another object, which stays.
    Occupied,
}

/// Puts the manifest in its place. Returns why it is not there, if it is not.
///
/// A manifest of the same run and step and of an older generation gives way, with its parts. All
/// processes ended, or the run went back, before the log listed it. Since then a newer generation
/// has committed the step again, so the older one is of no history that a log can list. A worker
/// that dies between the deletion and the new manifest leaves parts alone, and the leader orders
/// the manifest again. The checkpoints that the log lists are of other steps and stay.
fn put(
    store: &dyn Store,
    manifest: &Manifest,
    listing: &[StoredObject],
) -> Result<Option<String>, StoreError> {
    let mut place = put_new(store, manifest)?;
    if let ManifestPlace::Outdated(id) = place {
        remove(store, listing, id)?;
        place = put_new(store, manifest)?;
    }
    let step = manifest.step;
    let taken = || format!("another state of step {step} is in the store already");
    Ok((!matches!(place, ManifestPlace::Taken)).then(taken))
}

fn put_new(store: &dyn Store, manifest: &Manifest) -> Result<ManifestPlace, StoreError> {
    if store.put_new(&manifest.name(), &manifest.to_bytes())? == Created::Mine {
        return Ok(ManifestPlace::Taken);
    }
    let bytes = store.read_whole(&manifest.name(), MAX_MANIFEST_BYTES)?;
    let Ok(there) = Manifest::parse(&bytes) else { return Ok(ManifestPlace::Occupied) };
    let key = |of: &Manifest| (of.run.clone(), of.step, of.generation, of.state_hash);
    let (step, generation) = (there.step, there.generation);
    let is_older =
        there.run == manifest.run && step == manifest.step && generation < manifest.generation;
    Ok(match () {
        () if key(&there) == key(manifest) => ManifestPlace::Taken,
        () if is_older => ManifestPlace::Outdated(CheckpointId { step, generation }),
        () => ManifestPlace::Occupied,
    })
}

/// Deletes a checkpoint from a store with this listing: its manifest first, then its parts. What
/// another generation has written at the same step stays. A manifest that was cut or changed is of
/// no generation, and would be in the way of the next one.
fn remove(store: &dyn Store, listing: &[StoredObject], id: CheckpointId) -> Result<(), StoreError> {
    let name = ObjectName::Manifest(id.step);
    let mut listed = Vec::new();
    match store.read_whole(&name, MAX_MANIFEST_BYTES) {
        Ok(bytes) => {
            let is_its = match Manifest::parse(&bytes) {
                Ok(there) if there.generation == id.generation => {
                    listed.extend(there.files.iter().map(|file| file.name));
                    true
                }
                Ok(_) => false,
                Err(error) => error.is_damage(),
            };
            if is_its {
                store.delete(&name)?;
                pass_point("manifest.deleted");
            }
        }
        Err(error) if error.is_missing() => {}
        Err(error) => return Err(error),
    }
    for object in listing {
        match &object.name {
            ObjectName::Part(step, part)
                if *step == id.step
                    && (part.generation == id.generation || listed.contains(part)) =>
            {
                store.delete(&object.name)?;
                pass_point("part.swept");
            }
            _ => {}
        }
    }
    Ok(())
}

/// A planted bug: what the leader expects to hear of a manifest.
#[cfg(feature = "planted")]
pub(super) fn believed(order: &ManifestToWrite) -> WrittenManifest {
    let id = order.parts.first().map(|of| CheckpointId::of(&of.part.commit)).unwrap_or_default();
    let digests = order.parts.iter().flat_map(|of| of.part.shards.iter().copied()).collect();
    let whole = WorkerResult { digests, ..WorkerResult::default() };
    let state_hash = state_hash(id.step.0, &[whole]).unwrap_or_default();
    WrittenManifest { id, bytes: 1, state_hash, deleted: order.delete.clone() }
}

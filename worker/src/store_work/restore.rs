//! How a worker reads shards of a checkpoint.
//!
//! Damage is what the bytes of a store show. A store that is empty shows none: its disk may not be
//! mounted, or its path may be that of another place. Neither does a manifest that this program
//! cannot read. In both cases the store is asked again, until it has the checkpoint, or an operator
//! says otherwise.

use everstep_checkpoint::manifest::{MAX_MANIFEST_BYTES, Manifest};
use everstep_checkpoint::names::ObjectName;
use everstep_checkpoint::part::reader::{CheckpointReader, ReadError};
use everstep_checkpoint::store::{ErrorKind, Store, StoreError};
use everstep_kernels::buffer::Buffer;
use everstep_kernels::optimizer::ShardState;
use everstep_transport::protocol::{CheckpointId, Generation, Shard};

use crate::device::checkpoint_facts::CheckpointFacts;
use crate::step::event::StoreReport;

/// Why a shard or a manifest was not read.
pub(super) enum Unread {
    /// The bytes are not those that were written.
    Damaged(Damage),
    /// The store did not answer.
    Store(StoreError),
}

impl From<StoreError> for Unread {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// What is wrong with the bytes of a checkpoint, and in which of its files.
pub(super) struct Damage(pub(super) String);

/// Damage as a result, and errors of the store as errors.
pub(super) fn settle<T>(read: Result<T, Unread>) -> Result<Result<T, Damage>, StoreError> {
    match read {
        Ok(read) => Ok(Ok(read)),
        Err(Unread::Damaged(damage)) => Ok(Err(damage)),
        Err(Unread::Store(error)) => Err(error),
    }
}

/// Whether clusters have used this store: each of them claims it before it writes anything else.
fn is_used(store: &dyn Store) -> Result<bool, StoreError> {
    Ok(!store.list_claims()?.is_empty())
}

/// Checks that the store has the manifest of a checkpoint, or at least is the store that had it.
///
/// # Errors
/// If the store does not answer, or no cluster has used it.
pub(super) fn find(store: &dyn Store, id: CheckpointId) -> Result<(), StoreError> {
    let name = ObjectName::Manifest(id.step);
    match store.size(&name) {
        Ok(_) => Ok(()),
        Err(error) if error.is_missing() && is_used(store)? => Ok(()),
        Err(error) if error.is_missing() => {
            let why = "it is not there, and neither is anything else of a run: is this the right \
                       store, and is its disk mounted?";
            Err(StoreError::new(ErrorKind::Retry, store.place(), &name, why))
        }
        Err(error) => Err(error),
    }
}

pub(super) fn read_manifest(
    store: &dyn Store,
    facts: &CheckpointFacts,
    id: CheckpointId,
) -> Result<Manifest, Unread> {
    let name = ObjectName::Manifest(id.step);
    let damaged = |why: String| Unread::Damaged(Damage(format!("{name}: {why}")));
    let bytes = match store.read_whole(&name, MAX_MANIFEST_BYTES) {
        Err(error) if error.is_missing() => return Err(damaged("it is gone".into())),
        read => read?,
    };
    let manifest = Manifest::parse(&bytes).map_err(|error| match error.is_damage() {
        true => damaged(error.to_string()),
        // A program of another version wrote it. An older checkpoint would lose steps.
        false => {
            let why = error.to_string();
            Unread::Store(StoreError::new(ErrorKind::Refuse, store.place(), &name, why))
        }
    })?;
    if manifest.run != facts.run_digest {
        return Err(damaged(format!("it is the manifest of another run, {}", manifest.run)));
    }
    if (manifest.step, manifest.generation) != (id.step, id.generation) {
        let (step, generation) = (manifest.step, manifest.generation);
        return Err(damaged(format!("it is of step {step}, committed by generation {generation}")));
    }
    manifest.check_layout(&facts.layout).map_err(|error| damaged(error.to_string()))?;
    Ok(manifest)
}

pub(super) fn read_shard(
    store: &dyn Store,
    reader: &mut CheckpointReader<'_>,
    generation: Generation,
    id: CheckpointId,
    shard: Shard,
) -> Result<StoreReport, Unread> {
    let state = read_state(store, reader, id, shard)?;
    let digest = state.digest(id.step.0);
    let slots = std::iter::once(state.master).chain(state.moments);
    let parts = slots.map(Buffer::detached).collect();
    Ok(StoreReport::Restored { generation, shard, digest, parts })
}

/// The state of a shard, exactly as it was written.
pub(super) fn read_state(
    store: &dyn Store,
    reader: &mut CheckpointReader<'_>,
    id: CheckpointId,
    shard: Shard,
) -> Result<ShardState, Unread> {
    reader.read(shard).map_err(|error| match error {
        // The disk may have been unmounted while it was read.
        ReadError::Damaged(damage) => match find(store, id) {
            Ok(()) => Unread::Damaged(Damage(damage.to_string())),
            Err(error) => Unread::Store(error),
        },
        ReadError::Store(error) => Unread::Store(error),
    })
}

/// A planted bug: zeros in place of a shard whose bytes are not those that were written.
#[cfg(feature = "planted")]
pub(super) fn zeros(
    unread: Unread,
    manifest: &Manifest,
    generation: Generation,
    shard: Shard,
) -> Result<StoreReport, Unread> {
    let Unread::Damaged(_) = unread else { return Err(unread) };
    let slot = vec![0.0; manifest.shard_range(shard).len()];
    let mut slots = vec![slot; manifest.slots.count()];
    let master = slots.remove(0);
    let state = ShardState { master, moments: slots };
    let digest = state.digest(manifest.step.0);
    let slots = std::iter::once(state.master).chain(state.moments);
    let parts = slots.map(Buffer::detached).collect();
    Ok(StoreReport::Restored { generation, shard, digest, parts })
}

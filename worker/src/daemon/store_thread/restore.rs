//! How a worker reads shards of a checkpoint.

use everstep_checkpoint::manifest::{MAX_MANIFEST_BYTES, Manifest};
use everstep_checkpoint::names::ObjectName;
use everstep_checkpoint::part::reader::{CheckpointReader, ReadError};
use everstep_checkpoint::store::{Store, StoreError};
use everstep_kernels::buffer::Buffer;
use everstep_transport::protocol::{CheckpointId, Generation, Shard};

use crate::device::checkpoint_facts::CheckpointFacts;
use crate::step::event::StoreReport;

/// Why a shard or a manifest was not read.
pub(super) enum Unread {
    /// The bytes are not those that were written.
    Damaged(String),
    /// The store did not answer.
    Store(StoreError),
}

impl From<StoreError> for Unread {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Damage as a result, and errors of the store as errors.
pub(super) fn settle<T>(read: Result<T, Unread>) -> Result<Result<T, String>, StoreError> {
    match read {
        Ok(read) => Ok(Ok(read)),
        Err(Unread::Damaged(reason)) => Ok(Err(reason)),
        Err(Unread::Store(error)) => Err(error),
    }
}

pub(super) fn read_manifest(
    store: &dyn Store,
    facts: &CheckpointFacts,
    id: CheckpointId,
) -> Result<Manifest, Unread> {
    let name = ObjectName::Manifest(id.step);
    let damaged = |why: String| Unread::Damaged(format!("{name}: {why}"));
    let bytes = match store.read_whole(&name, MAX_MANIFEST_BYTES) {
        Err(error) if error.is_missing() => return Err(damaged("it is gone".into())),
        read => read?,
    };
    let manifest = Manifest::parse(&bytes).map_err(|error| damaged(error.to_string()))?;
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
    reader: &mut CheckpointReader<'_>,
    (generation, id): (Generation, CheckpointId),
    shard: Shard,
) -> Result<StoreReport, Unread> {
    let state = reader.read(shard).map_err(|error| match error {
        ReadError::Damaged(damage) => Unread::Damaged(damage.to_string()),
        ReadError::Store(error) => Unread::Store(error),
    })?;
    let digest = state.digest(id.step.0);
    let slots = std::iter::once(state.master).chain(state.moments);
    let parts = slots.map(Buffer::detached).collect();
    Ok(StoreReport::Restored { generation, shard, digest, parts })
}

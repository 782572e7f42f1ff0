//! A checkpoint that is read whole, shard by shard, to see whether it is damaged.

use everstep_checkpoint::manifest::Manifest;
use everstep_checkpoint::part::reader::CheckpointReader;
use everstep_checkpoint::store::Store;
use everstep_transport::protocol::{CheckpointId, Shard};

use super::restore::{self, Unread};
use crate::device::checkpoint_facts::CheckpointFacts;

/// A checkpoint, and how far it is read.
pub struct CheckpointReading {
    /// The checkpoint that is read whole.
    pub id: CheckpointId,
    /// None before it was read.
    manifest: Option<Manifest>,
    next: Shard,
    /// The bytes of state that were read.
    bytes: u64,
}

impl CheckpointReading {
    /// Nothing of the checkpoint is read yet.
    pub fn of(id: CheckpointId) -> Self {
        Self { id, manifest: None, next: Shard(0), bytes: 0 }
    }

    /// Returns whether all is read. `goes_on` takes the bytes that are read, and those of all
    /// shards.
    pub(super) fn read(
        &mut self,
        store: &dyn Store,
        facts: &CheckpointFacts,
        goes_on: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<bool, Unread> {
        let manifest = match self.manifest.take() {
            Some(manifest) => manifest,
            None => {
                restore::find(store, self.id)?;
                restore::read_manifest(store, facts, self.id)?
            }
        };
        let is_done = self.read_shards(store, &manifest, goes_on);
        self.manifest = Some(manifest);
        is_done
    }

    fn read_shards(
        &mut self,
        store: &dyn Store,
        manifest: &Manifest,
        goes_on: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<bool, Unread> {
        let mut reader = CheckpointReader::new(store, manifest);
        while (self.next.0 as usize) < manifest.shards.len() {
            if !goes_on(self.bytes, manifest.bytes()) {
                return Ok(false);
            }
            restore::read_state(store, &mut reader, self.id, self.next)?;
            let length = manifest.shard_range(self.next).len() as u64;
            self.bytes += length * manifest.slots.bytes_per_parameter();
            self.next = Shard(self.next.0 + 1);
        }
        Ok(true)
    }
}

//! I19: every member computes with the parameters that a primary of the version has made.

use std::collections::BTreeMap;

use everstep_transport::protocol::{Shard, Step, WorkerId};

use super::{Breach, Invariant, ShardCopy};

/// The parameters of every version, as primaries have made them.
#[derive(Debug, Default)]
pub(super) struct Parameters {
    /// The parameters that primaries made of each version of each shard. A joiner may load any of
    /// them.
    made: BTreeMap<(Shard, Step), Vec<Vec<f32>>>,
}

impl Parameters {
    /// A primary hands out a version. If another primary has made it before, both must be equal, as
    /// long as no worker's memory was corrupted.
    pub(super) fn announced(
        &mut self,
        worker: WorkerId,
        copy: ShardCopy<'_>,
        trusted: bool,
    ) -> Result<(), Breach> {
        let (version, shard) = (copy.version, copy.shard);
        let Some(values) = copy.parameters else { return Ok(()) };
        let made = self.made.entry((shard, version)).or_default();
        if made.iter().any(|known| same_bits(known, values)) {
            return Ok(());
        }
        if trusted && !made.is_empty() {
            let seen = format!("worker {worker} hands out another version {version} of {shard}");
            return Err((Invariant::I19, seen));
        }
        made.push(values.to_vec());
        Ok(())
    }

    /// A worker computes with the parameters of a version.
    pub(super) fn loaded(&self, worker: WorkerId, copy: ShardCopy<'_>) -> Result<(), Breach> {
        let (version, shard) = (copy.version, copy.shard);
        let mut made = self.made.get(&(shard, version)).into_iter().flatten();
        if copy.parameters.is_some_and(|loaded| made.any(|known| same_bits(known, loaded))) {
            return Ok(());
        }
        let seen = format!(
            "worker {worker} computes with shard {shard} at version {version}, whose primary has \
             not made these values"
        );
        Err((Invariant::I19, seen))
    }
}

fn same_bits(one: &[f32], other: &[f32]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(a, b)| a.to_bits() == b.to_bits())
}

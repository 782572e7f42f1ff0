//! I19: everyone computes with the parameters that the primary of a version has made.

use std::collections::BTreeMap;

use everstep_transport::protocol::{Shard, Step, WorkerId};

use super::{Copy, Found, Invariant};

#[derive(Debug, Default)]
pub(super) struct Parameters {
    /// What the primary made of the newest versions of each shard.
    made: BTreeMap<(Shard, Step), Vec<f32>>,
}

/// Versions that anyone may still load.
const KEPT: u64 = 2;

impl Parameters {
    pub(super) fn announced(&mut self, copy: Copy<'_>) {
        let Some(values) = copy.parameters else { return };
        self.made.insert((copy.shard, copy.version), values.to_vec());
        let oldest = Step(copy.version.0.saturating_sub(KEPT));
        self.made.remove(&(copy.shard, oldest));
    }

    pub(super) fn loaded(&self, worker: WorkerId, copy: Copy<'_>) -> Result<(), Found> {
        let (version, shard) = (copy.version, copy.shard);
        let made = self.made.get(&(shard, version));
        if made.zip(copy.parameters).is_some_and(|(made, loaded)| same_bits(made, loaded)) {
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

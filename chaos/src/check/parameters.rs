//! I19: everyone computes with the parameters that the primary of a version has made.

use std::collections::BTreeMap;

use everstep_transport::protocol::{Shard, Step, WorkerId};

use super::{Copy, Found, Invariant};

#[derive(Debug, Default)]
pub(super) struct Parameters {
    /// What the primary made of each version of each shard.
    made: BTreeMap<(Step, Shard), [u8; 32]>,
}

impl Parameters {
    pub(super) fn announced(&mut self, copy: Copy<'_>) {
        if let Some(values) = copy.parameters {
            self.made.insert((copy.version, copy.shard), digest(values));
        }
    }

    pub(super) fn loaded(&self, worker: WorkerId, copy: Copy<'_>) -> Result<(), Found> {
        let (version, shard) = (copy.version, copy.shard);
        let found = copy.parameters.map(digest);
        if found.as_ref() == self.made.get(&(version, shard)) {
            return Ok(());
        }
        let seen = format!(
            "worker {worker} computes with shard {shard} at version {version}, whose primary has \
             not made these values"
        );
        Err((Invariant::I19, seen))
    }
}

fn digest(values: &[f32]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for value in values {
        hasher.update(&value.to_le_bytes());
    }
    *hasher.finalize().as_bytes()
}

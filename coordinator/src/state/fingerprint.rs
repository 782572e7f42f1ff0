//! What all workers of a run must agree on: the first worker to register fixes it.
//!
//! The user is told of a difference in words that name both workers and both values. This module
//! does not know how a digest is made.

use everstep_transport::protocol::NodeName;
use everstep_transport::protocol::message::{Fingerprint, Registration};
use rkyv::{Archive, Deserialize, Serialize};

/// The most parameter shards that a worker may state: 2^36 parameters in the longest shards there
/// are.
const MAX_SHARDS: u32 = 1 << 16;

/// What the first worker stated.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub(super) struct Foundation {
    name: NodeName,
    fingerprint: Fingerprint,
}

impl Foundation {
    /// Takes the first worker's statement, or says in words why it cannot be.
    pub(super) fn lay(name: &NodeName, first: &Registration) -> Result<Self, String> {
        let Fingerprint { parameters, shards, samples, .. } = first.fingerprint;
        if !(1..=MAX_SHARDS).contains(&shards) || u64::from(shards) > parameters || samples == 0 {
            return Err(format!(
                "{name} states {parameters} parameters in {shards} shards and {samples} samples; \
                 there must be 1 to {MAX_SHARDS} shards, none of them empty, and samples"
            ));
        }
        let fingerprint = first.fingerprint.clone();
        Ok(Self { name: name.clone(), fingerprint })
    }

    /// Refuses another statement, and names everything that differs.
    pub(super) fn check(&self, name: &NodeName, other: &Registration) -> Result<(), String> {
        let (ours, theirs) = (&self.fingerprint, &other.fingerprint);
        if ours == theirs {
            return Ok(());
        }
        let rows = [
            ("model", short(&theirs.model), short(&ours.model)),
            ("data", short(&theirs.data), short(&ours.data)),
            ("parameters", theirs.parameters.to_string(), ours.parameters.to_string()),
            ("parameter shards", theirs.shards.to_string(), ours.shards.to_string()),
            ("samples", theirs.samples.to_string(), ours.samples.to_string()),
        ];
        let differences = rows.iter().filter(|(_, theirs, ours)| theirs != ours);
        let words = differences.map(|(what, theirs, ours)| format!("{what} {theirs}, not {ours}"));
        let words = words.collect::<Vec<_>>().join("; ");
        Err(format!("{name} differs from {}, which registered first: {words}", self.name))
    }

    pub(super) fn shards(&self) -> u32 {
        self.fingerprint.shards
    }
}

/// The first six bytes of a digest, in hexadecimal. Digests that differ only later look alike, but
/// no process can make such a pair.
fn short(digest: &[u8; 32]) -> String {
    digest[..6].iter().map(|byte| format!("{byte:02x}")).collect()
}

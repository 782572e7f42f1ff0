//! What all workers of a run must agree on: the first worker to register fixes it. If all workers
//! go before the run begins, the next one to register is the first.
//!
//! A difference is refused with both workers and both statements. This module does not know how a
//! digest is made.

use everstep_transport::protocol::NodeName;
use everstep_transport::protocol::message::{Fingerprint, Registration};
use everstep_transport::protocol::rejection::Rejection;
use rkyv::{Archive, Deserialize, Serialize};

/// The most parameter shards that a worker may state: 2^36 parameters in the longest shards there
/// are.
const MAX_SHARDS: u32 = 1 << 16;

/// What the first worker stated.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub(super) struct RunFingerprint {
    name: NodeName,
    fingerprint: Fingerprint,
}

impl RunFingerprint {
    /// Takes the first worker's statement, or refuses sizes that cannot be.
    pub(super) fn first(name: &NodeName, first: &Registration) -> Result<Self, Rejection> {
        let Fingerprint { parameters, shards, samples, .. } = first.fingerprint;
        if !(1..=MAX_SHARDS).contains(&shards) || u64::from(shards) > parameters || samples == 0 {
            let (name, most) = (name.clone(), MAX_SHARDS);
            return Err(Rejection::Sizes { name, parameters, shards, samples, most });
        }
        let fingerprint = first.fingerprint.clone();
        Ok(Self { name: name.clone(), fingerprint })
    }

    /// Refuses a worker with another model, other data or another text than the run has.
    pub(super) fn check(&self, name: &NodeName, other: &Registration) -> Result<(), Rejection> {
        match self.fingerprint == other.fingerprint {
            true => Ok(()),
            false => Err(Rejection::OtherFingerprint {
                name: name.clone(),
                first: self.name.clone(),
                theirs: Box::new(other.fingerprint.clone()),
                ours: Box::new(self.fingerprint.clone()),
            }),
        }
    }

    pub(super) fn shards(&self) -> u32 {
        self.fingerprint.shards
    }
}

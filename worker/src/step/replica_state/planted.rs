//! What a planted bug changes in the worker's state.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::BTreeMap;

use everstep_transport::protocol::Shard;
use everstep_transport::protocol::step::Status;

use super::{ReducedShard, ReplicaState};
use crate::plant::Plant;
use crate::step::version::Version;

impl ReplicaState {
    pub(in crate::step) fn has_plant(&self, plant: Plant) -> bool {
        self.plant == Some(plant)
    }

    /// The bug keeps, on entering, state that the true code drops.
    pub(super) fn keep_too_much(&mut self, stale: BTreeMap<Shard, ReducedShard>, resume: Version) {
        if self.has_plant(Plant::StaleReduced) {
            self.prepared = stale;
        }
        if self.has_plant(Plant::RedoOtherSamples) {
            self.gradients.mistake_for(resume);
        }
    }

    /// The bug names the wrong generation of the last commit. The true one is the generation that
    /// made it.
    pub(super) fn misstate(&self, mut status: Status) -> Status {
        if let Some(commit) =
            status.commit.as_mut().filter(|_| self.has_plant(Plant::OldRecordCommit))
        {
            commit.generation = self.generation;
        }
        status
    }
}

//! From updated shards to the new parameters of every member.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::BTreeSet;

use everstep_kernels::buffer::{Buffer, Shared};
use everstep_transport::protocol::{ChunkKind, Commit, Message, Shard, Step, WorkerId};

use super::Member;
use crate::step::event::{Job, Lane, Parcel};

impl Member {
    /// Begins each stream of parameters with the commit that made them.
    pub(super) fn head_streams(&mut self, commit: &Commit) {
        let primaries = self.plan.owned().iter().filter(|(_, primary)| **primary);
        let receivers: BTreeSet<_> =
            primaries.flat_map(|(shard, _)| self.gatherers(*shard, commit)).collect();
        for to in receivers {
            let parcel = Parcel::Message(Message::Commit(commit.clone()).into());
            self.put(to, Lane::Parameters, commit.step, parcel);
        }
    }

    /// The device has a new version of a shard.
    pub(super) fn updated(
        &mut self,
        (shard, version): (Shard, Step),
        digest: u64,
        parameters: Option<Shared>,
    ) {
        if !self.plan.owned().contains_key(&shard) {
            return; // a shard that this member learns
        }
        assert_eq!(version, self.committed(), "the device updates to the last commit");
        self.updating.remove(&shard);
        self.digests.insert(shard, digest);
        let Some(values) = parameters else { return };
        let Some(last) = self.commit() else { return };
        let receivers: Vec<_> = self.gatherers(shard, last).collect();
        let chunk = self.chunk(ChunkKind::Parameters, shard);
        for to in receivers {
            self.stream(to, Lane::Parameters, chunk, values.clone());
        }
    }

    /// The workers that get a shard's parameters of a commit's version from its primary. A learner
    /// gets them only of a step that holds, since it may become a member with them. Parameters of
    /// an earlier step would be replaced before they are of use, and would delay the states that it
    /// lacks.
    fn gatherers(&self, shard: Shard, commit: &Commit) -> impl Iterator<Item = WorkerId> {
        let holds = commit.hold;
        let learners = self.feeds.strangers(commit.step).filter(move |_| holds);
        self.plan.gatherers(shard).chain(learners)
    }

    /// Parameters have arrived.
    pub(super) fn gather(&mut self, shard: Shard, values: Buffer) {
        self.gathering.remove(&shard);
        self.holdings.computing[shard.0 as usize] = self.holdings.version();
        self.device(Job::Load { shard, version: self.committed(), values });
    }
}

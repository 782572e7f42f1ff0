//! From updated shards to the new parameters of every member.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::{BTreeMap, BTreeSet};

use everstep_kernels::buffer::{Buffer, Shared};
use everstep_transport::protocol::{ChunkKind, Commit, Message, Shard, Step, WorkerId};

use super::Member;
use crate::step::event::{Job, Lane, StreamItem};

/// The all-gather of the last commit's version: what is not here yet, and what the owners vote
/// with.
#[derive(Debug)]
pub(super) struct AllGather {
    /// Owned shards that the device has not yet reported at the version of the last commit.
    updating: BTreeSet<Shard>,
    /// Shards of other owners for which the parameters of the last commit have not arrived.
    gathering: BTreeSet<Shard>,
    /// Digests of the owned shards, each of its newest version.
    digests: BTreeMap<Shard, u64>,
}

impl AllGather {
    /// A generation begins: the device has reported none of the owned shards.
    pub fn new(owned: impl Iterator<Item = Shard>) -> Self {
        Self { updating: owned.collect(), gathering: BTreeSet::new(), digests: BTreeMap::new() }
    }

    /// A commit makes a new version of the owned shards. The parameters of `others` will arrive.
    pub fn begin(
        &mut self,
        owned: impl Iterator<Item = Shard>,
        others: impl Iterator<Item = Shard>,
    ) {
        self.updating = owned.collect();
        self.gathering = others.collect();
    }

    /// The parameters of another owner's shard will arrive.
    pub fn expect(&mut self, shard: Shard) {
        self.gathering.insert(shard);
    }

    /// The device has the newest version of an owned shard.
    pub fn updated(&mut self, shard: Shard, digest: u64) {
        self.updating.remove(&shard);
        self.digests.insert(shard, digest);
    }

    /// The parameters of a shard have arrived.
    pub fn arrived(&mut self, shard: Shard) {
        self.gathering.remove(&shard);
    }

    /// Whether the parameters of a shard are still to arrive.
    pub fn expects(&self, shard: Shard) -> bool {
        self.gathering.contains(&shard)
    }

    /// Whether the parameters of all other owners are here.
    pub fn has_others(&self) -> bool {
        self.gathering.is_empty()
    }

    /// Whether the device has the version of all owned shards.
    pub fn is_updated(&self) -> bool {
        self.updating.is_empty()
    }

    /// Whether the version is here as a whole.
    pub fn is_complete(&self) -> bool {
        self.updating.is_empty() && self.has_others()
    }

    /// The digest of each owned shard, ascending by shard.
    pub fn digests(&self) -> impl Iterator<Item = (Shard, u64)> {
        self.digests.iter().map(|(shard, digest)| (*shard, *digest))
    }
}

impl Member {
    /// Begins each stream of parameters with the commit that made them.
    pub(super) fn head_streams(&mut self, commit: &Commit) {
        let primaries = self.plan.owned().iter().filter(|(_, primary)| **primary);
        let receivers: BTreeSet<_> =
            primaries.flat_map(|(shard, _)| self.gatherers(*shard, commit)).collect();
        for to in receivers {
            let item = StreamItem::Message(Message::Commit(commit.clone()).into());
            self.put(to, Lane::Parameters, commit.step, item);
        }
    }

    /// The device has a new version of a shard.
    pub(super) fn updated(
        &mut self,
        shard: Shard,
        version: Step,
        digest: u64,
        parameters: Option<Shared>,
    ) {
        if !self.plan.owned().contains_key(&shard) {
            return; // a shard that this member syncs
        }
        assert_eq!(version, self.committed(), "the device updates to the last commit");
        self.all_gather.updated(shard, digest);
        self.save_if_due();
        let Some(values) = parameters else { return };
        let Some(last) = self.commit() else { return };
        let receivers: Vec<_> = self.gatherers(shard, last).collect();
        let chunk = self.chunk(ChunkKind::Parameters, shard);
        for to in receivers {
            self.stream(to, Lane::Parameters, chunk, values.clone());
        }
    }

    /// The workers that get a shard's parameters of a commit's version from its primary. A joiner
    /// gets them only of a step that holds, since it may become a member with them. Parameters of
    /// an earlier step would be replaced before they are of use, and would delay the states that it
    /// lacks.
    fn gatherers(&self, shard: Shard, commit: &Commit) -> impl Iterator<Item = WorkerId> {
        let holds = commit.hold;
        let joiners = self.serving.feeds.joiners(commit.step).filter(move |_| holds);
        self.plan.gatherers(shard).chain(joiners)
    }

    /// The new parameters of a shard have arrived from its primary.
    pub(super) fn gather(&mut self, shard: Shard, values: Buffer) {
        self.all_gather.arrived(shard);
        self.replica.computing[shard.0 as usize] = self.replica.version();
        self.device(Job::Load { shard, version: self.committed(), values });
    }
}

//! The workers that this member feeds, beyond what the plan says.
//!
//! A joiner that is not a member gets three things: commits from the next one on, new parameters
//! of all shards with those commits that hold, and the reduced gradients of the shards that it
//! syncs from the next round on. A member that catches up gets only the gradients. A feed lasts as
//! long as the generation, or the link.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::net::SocketAddr;

use everstep_transport::protocol::{NodeName, Shard, Step, WorkerId};

use super::Member;
use crate::step::event::Effect;

/// A leader's order: which worker syncs which shards.
#[derive(Clone, Debug)]
pub struct Feed {
    /// The worker to feed.
    pub joiner: WorkerId,
    /// The name in its certificate.
    pub name: NodeName,
    /// The address on which it listens.
    pub address: SocketAddr,
    /// The shards to sync, ascending.
    pub shards: Vec<Shard>,
}

/// All workers that this member feeds.
#[derive(Debug, Default)]
pub(super) struct Feeds {
    feeds: BTreeMap<WorkerId, FeedState>,
}

/// A worker that this member feeds.
#[derive(Debug)]
struct FeedState {
    /// The first commit that it gets. None if the worker is a member.
    joins_from: Option<Step>,
    /// The shards that it syncs, each with the first step of which it gets the reduced gradient.
    shards: BTreeMap<Shard, Step>,
}

impl Feeds {
    /// Whether this member feeds a worker.
    pub fn has(&self, joiner: WorkerId) -> bool {
        self.feeds.contains_key(&joiner)
    }

    /// The joiners beside the generation that get a commit and its parameters.
    pub fn joiners(&self, step: Step) -> impl Iterator<Item = WorkerId> {
        let due = move |fed: &FeedState| fed.joins_from.is_some_and(|from| from <= step);
        self.feeds.iter().filter(move |(_, fed)| due(fed)).map(|(joiner, _)| *joiner)
    }

    /// The joiners that get the reduced gradient of a shard.
    pub fn reduced(&self, shard: Shard, step: Step) -> impl Iterator<Item = WorkerId> {
        let due = move |fed: &FeedState| fed.shards.get(&shard).is_some_and(|from| *from <= step);
        self.feeds.iter().filter(move |(_, fed)| due(fed)).map(|(joiner, _)| *joiner)
    }

    /// Ends the feed of a worker. Returns whether there was one.
    pub fn end(&mut self, joiner: WorkerId) -> bool {
        self.feeds.remove(&joiner).is_some()
    }

    /// Feeds a joiner. New items begin with the next commit or round.
    fn insert(&mut self, joiner: WorkerId, is_joiner: bool, shards: Vec<Shard>, step: Step) {
        let before = self.feeds.remove(&joiner);
        let joins_from = before.as_ref().and_then(|before| before.joins_from);
        let first = |shard: &Shard| {
            let known = before.as_ref().and_then(|before| before.shards.get(shard));
            known.copied().unwrap_or(step.next())
        };
        let fed = FeedState {
            joins_from: is_joiner.then(|| joins_from.unwrap_or(step)),
            shards: shards.iter().map(|shard| (*shard, first(shard))).collect(),
        };
        self.feeds.insert(joiner, fed);
    }
}

impl Member {
    /// The members feed a worker from now on, which may be this member itself.
    pub(in crate::step) fn feed(&mut self, feed: Feed) {
        let Feed { joiner, name, address, shards } = feed;
        if joiner == self.plan.worker() {
            self.catch_up.get_or_insert_default();
            self.with_catch_up(|catch_up, context| catch_up.feed(&shards, context));
            return;
        }
        let is_joiner = !self.plan.sized_record().lists(joiner);
        if is_joiner && !self.serving.feeds.has(joiner) {
            self.out.push_back(Effect::AcceptPeer { worker: joiner, name, address });
        }
        self.serving.feeds.insert(joiner, is_joiner, shards, self.step());
    }

    /// The link to a worker is gone: the member feeds it no more, and does not ask it. The loss of
    /// a member ends the generation anyway. Returns whether the member fed the worker.
    pub(in crate::step) fn lost(&mut self, peer: WorkerId) -> bool {
        self.with_catch_up(|catch_up, context| catch_up.lost(peer, context));
        self.serving.lost(peer)
    }
}

//! The workers that this member feeds, beyond what the plan says.
//!
//! A learner that is not a member gets three things: commits from the next one on, new parameters
//! of all shards with those commits that hold, and the reduced gradients of the shards that it
//! learns from the next round on. A member that learns gets only the gradients. A feed lasts as
//! long as the generation, or the link.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::net::SocketAddr;

use everstep_transport::protocol::{NodeName, Shard, Step, WorkerId};

use super::Member;
use crate::step::event::Effect;

/// A leader's order: which worker learns which shards.
#[derive(Clone, Debug)]
pub struct Feed {
    /// The worker to feed.
    pub learner: WorkerId,
    /// The name in its certificate.
    pub name: NodeName,
    /// The address on which it listens.
    pub address: SocketAddr,
    /// The shards to learn, ascending.
    pub shards: Vec<Shard>,
}

/// All workers that this member feeds.
#[derive(Debug, Default)]
pub(super) struct Feeds {
    feeds: BTreeMap<WorkerId, Fed>,
}

/// A worker that this member feeds.
#[derive(Debug)]
struct Fed {
    /// The first commit that it gets. None if the worker is a member.
    stranger_from: Option<Step>,
    /// The shards that it learns, each with the first step of which it gets the reduced gradient.
    shards: BTreeMap<Shard, Step>,
}

impl Feeds {
    /// Whether this member feeds a worker.
    pub fn has(&self, learner: WorkerId) -> bool {
        self.feeds.contains_key(&learner)
    }

    /// The learners beside the generation that get a commit and its parameters.
    pub fn strangers(&self, step: Step) -> impl Iterator<Item = WorkerId> {
        let due = move |fed: &Fed| fed.stranger_from.is_some_and(|from| from <= step);
        self.feeds.iter().filter(move |(_, fed)| due(fed)).map(|(learner, _)| *learner)
    }

    /// The learners that get the reduced gradient of a shard.
    pub fn reduced(&self, shard: Shard, step: Step) -> impl Iterator<Item = WorkerId> {
        let due = move |fed: &Fed| fed.shards.get(&shard).is_some_and(|from| *from <= step);
        self.feeds.iter().filter(move |(_, fed)| due(fed)).map(|(learner, _)| *learner)
    }

    /// Feeds a learner. New items begin with the next commit or round.
    fn insert(&mut self, learner: WorkerId, is_stranger: bool, shards: Vec<Shard>, step: Step) {
        let before = self.feeds.remove(&learner);
        let stranger_from = before.as_ref().and_then(|before| before.stranger_from);
        let first = |shard: &Shard| {
            let known = before.as_ref().and_then(|before| before.shards.get(shard));
            known.copied().unwrap_or(step.next())
        };
        let fed = Fed {
            stranger_from: is_stranger.then(|| stranger_from.unwrap_or(step)),
            shards: shards.iter().map(|shard| (*shard, first(shard))).collect(),
        };
        self.feeds.insert(learner, fed);
    }
}

impl Member {
    /// The members feed a worker from now on, which may be this member itself.
    pub(in crate::step) fn feed(&mut self, feed: Feed) {
        let Feed { learner, name, address, shards } = feed;
        if learner == self.plan.worker() {
            self.learning.get_or_insert_default();
            self.learn_with(|learning, scene| learning.feed(&shards, scene));
            return;
        }
        let is_stranger = !self.plan.roster().lists(learner);
        if is_stranger && !self.feeds.has(learner) {
            self.out.push_back(Effect::Meet { worker: learner, name, address });
        }
        self.feeds.insert(learner, is_stranger, shards, self.step());
    }

    /// The link to a worker is gone: the member feeds it no more, and does not ask it. The loss of
    /// a member ends the generation anyway. Returns whether the member fed the worker.
    pub(in crate::step) fn lost(&mut self, peer: WorkerId) -> bool {
        self.questions.forget(peer);
        self.learn_with(|learning, scene| learning.lost(peer, scene));
        self.feeds.feeds.remove(&peer).is_some()
    }
}

//! Who is fed by this member, beyond what the plan says.
//!
//! A learner that is no member gets commits from the next one on, everyone's parameters with those
//! that hold, and the reduced gradients of what it learns from the next round on; a member that
//! learns gets only these. A feed lasts as long as the generation, or the link.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::net::SocketAddr;

use everstep_transport::protocol::{NodeName, Shard, Step, WorkerId};

use super::Member;
use crate::step::event::Effect;

/// A leader's word on who learns what.
#[derive(Clone, Debug)]
pub struct Feed {
    /// Who.
    pub learner: WorkerId,
    /// The name in its certificate.
    pub name: NodeName,
    /// Where it listens.
    pub address: SocketAddr,
    /// What, ascending.
    pub shards: Vec<Shard>,
}

/// All who are fed.
#[derive(Debug, Default)]
pub(super) struct Feeds {
    feeds: BTreeMap<WorkerId, Fed>,
}

/// One who is fed.
#[derive(Debug)]
struct Fed {
    /// It is no member: the first commit that it gets.
    stranger_from: Option<Step>,
    /// The shards that it learns, each with the first step of which it gets the reduced gradient.
    shards: BTreeMap<Shard, Step>,
}

impl Feeds {
    /// Whether a worker is fed.
    pub fn has(&self, learner: WorkerId) -> bool {
        self.feeds.contains_key(&learner)
    }

    /// The learners, no members, that get a commit and its parameters.
    pub fn strangers(&self, step: Step) -> impl Iterator<Item = WorkerId> {
        let due = move |fed: &Fed| fed.stranger_from.is_some_and(|from| from <= step);
        self.feeds.iter().filter(move |(_, fed)| due(fed)).map(|(learner, _)| *learner)
    }

    /// The learners that get the reduced gradient of a shard.
    pub fn reduced(&self, shard: Shard, step: Step) -> impl Iterator<Item = WorkerId> {
        let due = move |fed: &Fed| fed.shards.get(&shard).is_some_and(|from| *from <= step);
        self.feeds.iter().filter(move |(_, fed)| due(fed)).map(|(learner, _)| *learner)
    }

    /// Feeds a learner, with what is new to it from the next commit or round on.
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
    /// Somebody is to be fed from now on, or this member itself.
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

    /// The link to a worker is gone: it is fed no more, and not asked; a member's loss ends the
    /// generation anyway. Says whether it was fed.
    pub(in crate::step) fn lost(&mut self, peer: WorkerId) -> bool {
        self.questions.forget(peer);
        self.learn_with(|learning, scene| learning.lost(peer, scene));
        self.feeds.feeds.remove(&peer).is_some()
    }
}

//! What a member hands out on request: parameters to compute with, states to sync, and in the end
//! master weights to write.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::BTreeSet;

use everstep_kernels::buffer::Shared;
use everstep_transport::protocol::{Chunk, ChunkKind, Message, Shard, Step, WorkerId};

use super::Member;
use super::feed::Feeds;
use crate::step::catch_up::StateHeader;
use crate::step::event::{Job, Lane, StreamItem};

/// The workers that get something of this member beyond the plan.
#[derive(Debug, Default)]
pub(super) struct Serving {
    /// The workers that this member feeds, and from which step on.
    pub feeds: Feeds,
    /// Questions of other workers.
    requests: PendingRequests,
}

impl Serving {
    /// The link to a worker is gone. Returns whether this member fed the worker.
    pub fn lost(&mut self, peer: WorkerId) -> bool {
        self.requests.forget(peer);
        self.feeds.end(peer)
    }
}

/// Questions of other workers that the device has not answered yet.
#[derive(Debug, Default)]
struct PendingRequests {
    parameters: BTreeSet<(WorkerId, Shard)>,
    /// Questions whose parameters are on their way already. The parameters do not change while
    /// workers may ask for them, so an impatient worker that asks again must not have them queued
    /// twice.
    answered: BTreeSet<(WorkerId, Shard)>,
    states: BTreeSet<(WorkerId, Shard)>,
}

impl PendingRequests {
    /// A worker asks for parameters. Returns whether the device is to hand them out.
    fn ask_parameters(&mut self, to: WorkerId, shard: Shard) -> bool {
        !self.answered.contains(&(to, shard)) && self.parameters.insert((to, shard))
    }

    /// The device hands parameters out. Returns whether they answer an open question.
    fn answer_parameters(&mut self, to: WorkerId, shard: Shard) -> bool {
        let asked = self.parameters.remove(&(to, shard));
        if asked {
            self.answered.insert((to, shard));
        }
        asked
    }

    /// A worker asks for a state. Returns whether the device is to hand it out.
    fn ask_state(&mut self, to: WorkerId, shard: Shard) -> bool {
        self.states.insert((to, shard))
    }

    /// The device hands a state out. Returns whether it answers an open question.
    fn answer_state(&mut self, to: WorkerId, shard: Shard) -> bool {
        self.states.remove(&(to, shard))
    }

    /// Drops the questions of a worker that no longer waits for answers.
    fn forget(&mut self, worker: WorkerId) {
        self.parameters.retain(|(to, _)| *to != worker);
        self.answered.retain(|(to, _)| *to != worker);
        self.states.retain(|(to, _)| *to != worker);
    }
}

impl Member {
    /// A worker asks for the parameters that the generation resumes with.
    pub(super) fn share(&mut self, to: WorkerId, mut shards: Vec<Shard>) {
        let primary = |shard: &Shard| self.plan.owned().get(shard) == Some(&true);
        let current = self.committed() == self.plan.record().resume;
        if !current || !self.serves(to) || !shards.iter().all(primary) {
            return self.refuse();
        }
        shards.retain(|shard| self.serving.requests.ask_parameters(to, *shard));
        if shards.is_empty() {
            return;
        }
        if let Some(shards) = self.restoring.put_off(to, shards) {
            self.device(Job::Share { to, shards });
        }
    }

    /// A worker asks for master weights and moments. It asks again for shards that this member
    /// still has to read from a checkpoint.
    pub(super) fn export(&mut self, to: WorkerId, mut shards: Vec<Shard>) {
        let owned = |shard: &Shard| self.plan.owned().contains_key(shard);
        if !self.serves(to) || !shards.iter().all(owned) {
            return self.refuse();
        }
        shards.retain(|shard| {
            !self.restoring.lacks(*shard) && self.serving.requests.ask_state(to, *shard)
        });
        self.device(Job::Export { to, shards });
    }

    /// A worker that writes the model's file asks for master weights. The member hands them out as
    /// soon as they are those of the last step.
    pub(super) fn hand_out_masters(&mut self, to: WorkerId) {
        if !self.serves(to) {
            return self.refuse();
        }
        if self.finish.ask(to) {
            self.device(Job::Masters { to });
        }
    }

    pub(in crate::step) fn serves(&self, to: WorkerId) -> bool {
        self.plan.sized_record().lists(to) || self.serving.feeds.has(to)
    }

    /// The device hands parameters out: sends them on, if they answer an open question.
    pub(super) fn shared(&mut self, to: WorkerId, shard: Shard, version: Step, values: Shared) {
        // An answer to a question of an earlier generation may come late, with an earlier version.
        let current = version == self.plan.record().resume && version == self.committed();
        if current && self.serving.requests.answer_parameters(to, shard) {
            let chunk = self.chunk(ChunkKind::Parameters, shard);
            self.stream(to, Lane::Resumed, chunk, values);
        }
    }

    /// The device hands a state out: sends it on, if it answers an open question.
    pub(super) fn exported(&mut self, to: WorkerId, header: StateHeader, parts: Vec<Shared>) {
        let StateHeader { shard, version, digest } = header;
        let current = (self.plan.record().resume..=self.committed()).contains(&version);
        if !current || !self.serving.requests.answer_state(to, shard) {
            return;
        }
        let generation = self.plan.generation();
        let head = Message::State { generation, shard, version, digest };
        self.put(to, Lane::States, version, StreamItem::Message(head.into()));
        for (index, values) in parts.into_iter().enumerate() {
            let state = self.chunk(ChunkKind::State, shard);
            let chunk = Chunk { step: version, index: index as u32, ..state };
            self.stream(to, Lane::States, chunk, values);
        }
    }
}

//! What a member hands out on request: parameters to compute with, states to learn, and in the end
//! master weights to write.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::BTreeSet;

use everstep_kernels::buffer::Shared;
use everstep_transport::protocol::{Chunk, ChunkKind, Message, Shard, Step, WorkerId};

use super::Member;
use crate::step::event::{Job, Lane, Parcel};

/// Questions of other workers that the device has not answered yet.
#[derive(Debug, Default)]
pub(super) struct Questions {
    parameters: BTreeSet<(WorkerId, Shard)>,
    /// Questions whose parameters are on their way already. The parameters do not change while
    /// workers may ask for them, so an impatient worker that asks again must not have them queued
    /// twice.
    answered: BTreeSet<(WorkerId, Shard)>,
    states: BTreeSet<(WorkerId, Shard)>,
}

impl Questions {
    /// Drops the questions of a worker that no longer waits for answers.
    pub fn forget(&mut self, worker: WorkerId) {
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
        shards.retain(|shard| {
            let question = (to, *shard);
            !self.questions.answered.contains(&question)
                && self.questions.parameters.insert(question)
        });
        if !shards.is_empty() {
            self.device(Job::Share { to, shards });
        }
    }

    /// A worker asks for master weights and moments.
    pub(super) fn export(&mut self, to: WorkerId, mut shards: Vec<Shard>) {
        let owned = |shard: &Shard| self.plan.owned().contains_key(shard);
        if !self.serves(to) || !shards.iter().all(owned) {
            return self.refuse();
        }
        shards.retain(|shard| self.questions.states.insert((to, *shard)));
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
        self.plan.roster().lists(to) || self.feeds.has(to)
    }

    /// The device hands parameters out: sends them on, if they answer an open question.
    pub(super) fn shared(&mut self, to: WorkerId, (shard, version): (Shard, Step), values: Shared) {
        // An answer to a question of an earlier generation may come late, with an earlier version.
        let current = version == self.plan.record().resume && version == self.committed();
        if current && self.questions.parameters.remove(&(to, shard)) {
            self.questions.answered.insert((to, shard));
            let chunk = self.chunk(ChunkKind::Parameters, shard);
            self.stream(to, Lane::Resumed, chunk, values);
        }
    }

    /// The device hands a state out: sends it on, if it answers an open question.
    pub(super) fn exported(
        &mut self,
        to: WorkerId,
        (shard, version, digest): (Shard, Step, u64),
        parts: Vec<Shared>,
    ) {
        let current = (self.plan.record().resume..=self.committed()).contains(&version);
        if !current || !self.questions.states.remove(&(to, shard)) {
            return;
        }
        let generation = self.plan.generation();
        let head = Message::State { generation, shard, version, digest };
        self.put(to, Lane::States, version, Parcel::Message(head.into()));
        for (index, values) in parts.into_iter().enumerate() {
            let state = self.chunk(ChunkKind::State, shard);
            let chunk = Chunk { step: version, index: index as u32, ..state };
            self.stream(to, Lane::States, chunk, values);
        }
    }
}

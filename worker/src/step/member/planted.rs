//! What a member with a planted bug does differently.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use everstep_kernels::reduce::Node;
use everstep_transport::protocol::{Rank, Shard};

use super::Member;
use crate::plant::Plant;
use crate::step::event::Job;

impl Member {
    /// From now on the member has this bug, or none.
    pub fn plant(&mut self, plant: Option<Plant>) {
        self.plant = plant;
    }

    pub(super) fn has_plant(&self, plant: Plant) -> bool {
        self.plant == Some(plant)
    }

    /// Where in the tree a partial is added: in truth at its own node.
    pub(super) fn place_of_partial(&mut self, shard: Shard, node: Node) -> Node {
        if !self.has_plant(Plant::ReduceAsTheyCome) {
            return node;
        }
        let mut nodes: Vec<Node> =
            (0..self.plan.record().world_size()).flat_map(|r| self.plan.sent_by(Rank(r))).collect();
        nodes.sort_by_key(|node| self.plan.tree().range(*node).start);
        let arrived = self.round.arrived.entry(shard).or_default();
        *arrived += 1;
        nodes.get(*arrived - 1).copied().unwrap_or(node)
    }

    /// Whether all votes are in but one of another member.
    pub(super) fn commits_early(&self) -> bool {
        let missing_one = |ballot: &crate::step::ballot::Ballot| {
            ballot.count() + 1 == self.plan.record().members.len()
        };
        self.has_plant(Plant::CommitEarly)
            && self.round.voted
            && !self.is_over()
            && self.ballot.as_ref().is_some_and(missing_one)
    }

    pub(super) fn update_early(&mut self) {
        if !self.has_plant(Plant::UpdateEarly) || self.is_over() {
            return;
        }
        let norm = self.round.squares.values().sum::<f64>().sqrt();
        let (step, update) = (self.round.step, self.round.step.0);
        for (shard, gradient) in self.round.reduced.clone() {
            self.device(Job::Update { shard, step, norm, update, gradient });
        }
    }
}

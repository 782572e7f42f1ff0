//! What a member with a planted bug does differently.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use everstep_kernels::buffer::{Buffer, Shared};
use everstep_kernels::reduce::TreeNode;
use everstep_transport::protocol::{Rank, Shard};

use super::Member;
use crate::plant::Plant;
use crate::step::event::Job;
use crate::step::progress::DeviceTask;

impl Member {
    pub(super) fn has_plant(&self, plant: Plant) -> bool {
        self.replica.has_plant(plant)
    }

    /// Whether the worker has promised nothing newer. A bug forgets that.
    pub(super) fn keeps_promise(&self) -> bool {
        !self.control.is_promised() || self.has_plant(Plant::BreakPromise)
    }

    /// Whether the step under way is the first of its generation, and the bug forgets its scale.
    pub(super) fn forgets_scale(&self) -> bool {
        self.has_plant(Plant::ForgetScale) && self.committed() == self.plan.record().resume
    }

    /// The bug forgets the usual time. The true code keeps it across generations.
    pub(super) fn measure_anew(&mut self) {
        if self.has_plant(Plant::MeasureAnew) {
            self.replica.progress = Default::default();
        }
    }

    /// Whether what the device has to do is timed. A bug leaves out what comes before a data shard.
    pub(super) fn times(&self, task: DeviceTask) -> bool {
        let is_first = matches!(task, DeviceTask::DataShard)
            || matches!(task, DeviceTask::Updates) && !self.replica.gradients.is_computed();
        is_first || !self.has_plant(Plant::IgnoreUpdates)
    }

    /// The bug states a wrong digest at times. The true digest is the gradient's.
    pub(super) fn misstated(&self, shard: Shard, digest: u64) -> u64 {
        let misstates = self.has_plant(Plant::MisstateDigest) && shard.0 == 0;
        if misstates && self.step().0.is_multiple_of(8) { digest ^ 1 } else { digest }
    }

    /// The bug adds a kept sum to itself. The true code takes it as it is.
    pub(super) fn add_into_kept(&self, sum: Shared) -> Shared {
        if !self.has_plant(Plant::AddIntoKept) {
            return sum;
        }
        Shared::new(Buffer::detached(sum.iter().map(|value| value + value).collect()))
    }

    /// Where in the tree to add a partial. The true place is its own node.
    pub(super) fn place_of_partial(&mut self, shard: Shard, node: TreeNode) -> TreeNode {
        if !self.has_plant(Plant::ReduceAsTheyCome) {
            return node;
        }
        let mut nodes: Vec<TreeNode> =
            (0..self.plan.record().world_size()).flat_map(|r| self.plan.sent_by(Rank(r))).collect();
        nodes.sort_by_key(|node| self.plan.tree().range(*node).start);
        let arrived = self.round.arrived.entry(shard).or_default();
        *arrived += 1;
        nodes.get(*arrived - 1).copied().unwrap_or(node)
    }

    /// Whether only the vote of one other member is missing, with the bug planted.
    pub(super) fn commits_early(&self) -> bool {
        let missing_one = |tally: &crate::step::vote_tally::VoteTally| {
            tally.count() + 1 == self.plan.record().members.len()
        };
        self.has_plant(Plant::CommitEarly)
            && self.round.voted.is_some()
            && !self.is_over()
            && self.voting.tally().is_some_and(missing_one)
    }

    pub(super) fn update_early(&mut self) {
        if !self.has_plant(Plant::UpdateEarly) || self.is_over() {
            return;
        }
        let norm = self.round.squares.values().sum::<f64>().sqrt();
        let (step, update) = (self.step(), self.step().0);
        for (shard, reduced) in self.replica.prepared.clone() {
            let gradient = Some(reduced.gradient);
            self.device(Job::Update { shard, step, norm, factor: 1.0, update, gradient });
        }
    }
}

//! The results of the step under way that a worker has computed, in any generation.
//!
//! The device computes data shards in passes, and reports sums of subtrees. A step that is done
//! again needs only the missing parts. A subtree that is still wholly this worker's stays, computed
//! or under way, with its data shards' contributions. Every other subtree no longer counts.
//! [`Merge`] adds kept and new sums up to the subtrees that the current plan sends.
//!
//! Input: assignments, the device's reports. Output: the work that is left to compute, and sums.
//! Parameters of another history void everything here (invariant I19). This module does not know
//! the receivers of the sums.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use everstep_kernels::buffer::{Pool, Shared};
use everstep_kernels::reduce::{Addend, Sum, Tree, TreeNode};
use everstep_transport::protocol::step::Contribution;
use everstep_transport::protocol::{DataShard, Shard, Step};

use super::event::Work;
use super::version::Version;

/// The gradients of one step, computed with one version of the parameters.
#[derive(Debug, Default)]
pub struct Gradients {
    base: Version,
    /// Passes that the device has got and has not finished, in order. Passes of older steps too.
    passes: VecDeque<DevicePass>,
    /// Subtrees that count, computed or to come from a pass. No two share a leaf.
    nodes: BTreeSet<TreeNode>,
    /// The sums of these subtrees, as the device made them.
    partials: BTreeMap<(Shard, TreeNode), Shared>,
    contributions: BTreeMap<DataShard, Contribution>,
    seconds: f64,
}

/// A job of the device, as far as it is not done.
#[derive(Debug)]
struct DevicePass {
    step: Step,
    /// Data shards that the device has not reported.
    left: BTreeSet<DataShard>,
    /// The subtrees of the pass that still count.
    nodes: BTreeSet<TreeNode>,
}

impl Gradients {
    /// Begins the step after `base` with nothing. Work that the device still does no longer counts.
    pub fn begin(&mut self, base: Version) {
        self.base = base;
        self.nodes.clear();
        self.partials.clear();
        self.contributions.clear();
        self.seconds = 0.0;
        for pass in &mut self.passes {
            pass.nodes.clear();
        }
    }

    /// As [`Gradients::begin`], if the device gives up the passes that it computes.
    pub fn begin_anew(&mut self, base: Version) {
        self.begin(base);
        self.passes.clear();
    }

    /// The version that the step computes with.
    pub fn base(&self) -> Version {
        self.base
    }

    /// The step under way.
    pub fn step(&self) -> Step {
        self.base.step.next()
    }

    /// Whether the device has a pass of this step to compute.
    pub fn is_computed(&self) -> bool {
        self.passes.iter().any(|pass| pass.step == self.step())
    }

    /// Whether the device may still be at a pass of an earlier step.
    pub fn has_earlier_pass(&self) -> bool {
        self.passes.iter().any(|pass| pass.step != self.step())
    }

    /// The step under way. None before its computing has begun.
    pub fn under_way(&self) -> Option<Step> {
        (!self.nodes.is_empty()).then(|| self.step())
    }

    /// Keeps only the results that a worker with these data shards needs. Returns the missing work,
    /// which counts as under way from now on.
    pub fn assign(&mut self, tree: Tree, assigned: &BTreeSet<u32>) -> Option<Work> {
        self.nodes.retain(|node| tree.range(*node).all(|leaf| assigned.contains(&leaf)));
        let covered: BTreeSet<u32> = self.nodes.iter().flat_map(|node| tree.range(*node)).collect();
        self.partials.retain(|(_, node), _| self.nodes.contains(node));
        self.contributions.retain(|data_shard, _| covered.contains(&data_shard.0));
        for pass in &mut self.passes {
            pass.nodes.retain(|node| self.nodes.contains(node));
        }
        let missing: BTreeSet<u32> = assigned.difference(&covered).copied().collect();
        if missing.is_empty() {
            return None;
        }
        let subtrees = tree.subtrees(&missing);
        let data_shards: Vec<_> = missing.into_iter().map(DataShard).collect();
        self.nodes.extend(&subtrees);
        self.passes.push_back(DevicePass {
            step: self.step(),
            left: data_shards.iter().copied().collect(),
            nodes: subtrees.iter().copied().collect(),
        });
        Some(Work { data_shards, subtrees })
    }

    /// The device has a sum. Returns whether it counts.
    pub fn partial(&mut self, step: Step, shard: Shard, node: TreeNode, sum: &Shared) -> bool {
        let counts = self.pass(step).nodes.contains(&node);
        if counts {
            let twice = self.partials.insert((shard, node), sum.clone());
            assert!(twice.is_none(), "I18: the device makes each sum once");
        }
        counts
    }

    /// The device has computed a data shard of `tree`.
    pub fn computed(&mut self, tree: Tree, step: Step, contribution: Contribution, seconds: f64) {
        let pass = self.pass(step);
        let data_shard = contribution.data_shard;
        assert!(pass.left.remove(&data_shard), "the device computes what it was told, and once");
        let counts = pass.nodes.iter().any(|node| tree.range(*node).contains(&data_shard.0));
        if pass.left.is_empty() {
            self.passes.pop_front();
        }
        if counts {
            self.seconds += seconds;
            self.contributions.insert(data_shard, contribution);
        }
    }

    /// The computed sums that count, in order.
    pub fn partials(&self) -> impl Iterator<Item = (Shard, TreeNode, &Shared)> {
        self.partials.iter().map(|((shard, node), sum)| (*shard, *node, sum))
    }

    /// Contributions of the computed data shards that belong to counting sums.
    pub fn contributions(&self) -> &BTreeMap<DataShard, Contribution> {
        &self.contributions
    }

    /// Seconds of compute that count.
    pub fn seconds(&self) -> f64 {
        self.seconds
    }

    /// A planted bug: takes the computed results for those of the step after `base`.
    #[cfg(feature = "planted")]
    pub fn mistake_for(&mut self, base: Version) {
        self.base = base;
    }

    /// The pass that reports. The device drops passes of a step that has committed without them.
    fn pass(&mut self, step: Step) -> &mut DevicePass {
        while self.passes.front().is_some_and(|pass| pass.step < step) {
            self.passes.pop_front();
        }
        let pass = self.passes.front_mut().filter(|pass| pass.step == step);
        pass.expect("the device computes what it was told, in order")
    }
}

/// A subtree of which a plan sends the sum.
#[derive(Clone, Copy, Debug)]
pub struct MergeTarget {
    /// The tree over all data shards.
    pub tree: Tree,
    /// The root of the subtree.
    pub node: TreeNode,
}

/// The sum of a subtree's gradients of one parameter shard. The worker keeps it for a redo.
#[derive(Clone, Debug)]
pub struct SubtreeKept {
    /// The parameter shard of whose gradients it is the sum.
    pub shard: Shard,
    /// The root of the subtree.
    pub node: TreeNode,
    /// The sum over the subtree's data shards.
    pub sum: Shared,
}

/// Sums on their way up to the subtrees that a plan sends.
#[derive(Debug, Default)]
pub struct Merge {
    sums: BTreeMap<(Shard, TreeNode), Sum>,
}

impl Merge {
    /// Adds a subtree's sum into that of the target, whose node is the subtree's or an ancestor of
    /// it. Returns the sum once it is complete. It never adds into a sum that the worker keeps for
    /// a redo.
    ///
    /// # Panics
    /// If a part of the subtree was added before (invariant I18), or is not under the target.
    pub fn add(
        &mut self,
        MergeTarget { tree, node: target }: MergeTarget,
        subtree: SubtreeKept,
        pool: &Pool,
    ) -> Option<Addend> {
        let SubtreeKept { shard, node, sum } = subtree;
        let place = (shard, target);
        let begin = || Sum::of(target, tree, sum.len(), pool.clone());
        let total = self.sums.entry(place).or_insert_with(begin).insert(node, Addend::Kept(sum));
        let total = total.expect("I18: each part of a subtree is added once");
        if total.is_some() {
            self.sums.remove(&place);
        }
        total
    }
}

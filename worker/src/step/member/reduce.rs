//! From the sums of this worker's data shards to reduced shards.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use everstep_kernels::buffer::Shared;
use everstep_kernels::reduce::{self, Addend, Sum, TreeNode};
use everstep_transport::protocol::{Chunk, ChunkKind, Shard, Step};

use super::Member;
use crate::step::event::{Gradient, Lane};
use crate::step::gradients::{MergeTarget, SubtreeKept};
use crate::step::replica_state::ReducedShard;

impl Member {
    /// The device has a sum. A worker that has promised another generation keeps it for that one.
    pub(super) fn partial(&mut self, step: Step, shard: Shard, node: TreeNode, sum: Shared) {
        let counts = self.replica.gradients.partial(step, shard, node, &sum);
        // In a generation that waits, the worker keeps the sum for the next one.
        if counts && !self.control.is_promised() && !self.plan.record().waiting {
            self.merge(shard, node, sum);
        }
    }

    /// Adds a sum up to the subtree that this member sends, and sends that once it is whole.
    pub(super) fn merge(&mut self, shard: Shard, node: TreeNode, sum: Shared) {
        let target = self.plan.target(node).expect("what counts is of this member's data shards");
        let place = MergeTarget { tree: self.plan.tree(), node: target };
        let subtree = SubtreeKept { shard, node, sum };
        let Some(total) = self.round.merge.add(place, subtree, &self.setup.pool) else { return };
        let primary = self.plan.primary(shard);
        if primary == self.plan.worker() {
            return self.add(shard, target, total);
        }
        let (level, index) = (target.level, target.index);
        let chunk = Chunk { level, index, ..self.chunk(ChunkKind::Partial, shard) };
        self.stream(primary, Lane::Partials, chunk, total.into_shared());
    }

    /// Adds a member's subtree into a shard of which this member is primary.
    pub(super) fn add(&mut self, shard: Shard, node: TreeNode, partial: Addend) {
        #[cfg(feature = "planted")]
        let node = self.place_of_partial(shard, node);
        let (tree, length) = (self.plan.tree(), self.plan.length(shard));
        let pool = &self.setup.pool;
        let sums = &mut self.round.sums;
        let sum = sums.entry(shard).or_insert_with(|| Sum::new(tree, length, pool.clone()));
        match sum.insert(node, partial) {
            Ok(None) => {}
            Ok(Some(total)) => self.reduced(shard, total.into_shared()),
            Err(_) => self.refuse(), // I18: a repeated part is an error, and added nowhere
        }
    }

    fn reduced(&mut self, shard: Shard, gradient: Shared) {
        // The norm is that of the gradient: statistics have no part in it.
        let start = reduce::shard_range(self.setup.parameters, shard.0 as usize).start;
        let trained = self.setup.trained.saturating_sub(start).min(gradient.len());
        let threads = &self.setup.threads;
        let (squares, digest) = threads.both(
            gradient.len(),
            || reduce::sum_of_squares_on(threads, &gradient[..trained]),
            || reduce::digest(0, &gradient),
        );
        let before = self.round.squares.insert(shard, squares);
        self.check_reduced(shard, before.is_some());
        #[cfg(feature = "planted")]
        let digest = self.misstated(shard, digest);
        let backups = self.plan.backups(shard).map(|to| (to, Lane::Reduced));
        let joiners = self.serving.feeds.reduced(shard, self.step()).map(|to| (to, Lane::CatchUp));
        let receivers: Vec<_> = backups.chain(joiners).collect();
        let chunk = Chunk { digest, ..self.chunk(ChunkKind::Reduced, shard) };
        for (to, lane) in receivers {
            self.stream(to, lane, chunk, gradient.clone());
        }
        let gradient = Gradient { values: gradient, digest };
        let reduced = ReducedShard { generation: self.plan.generation(), gradient };
        self.replica.prepared.insert(shard, reduced);
    }
}

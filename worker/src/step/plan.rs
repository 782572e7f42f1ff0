//! What a generation's record means for one member: its senders, its receivers, and their chunks.
//!
//! Input: the record, the worker, the number of parameters and data shards. Output: answers, all
//! pure. The plan is also the gate: a member refuses a chunk that the plan does not expect.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::{BTreeMap, BTreeSet};

use everstep_kernels::reduce::{Tree, TreeNode};
use everstep_transport::protocol::generation::RecordError;
use everstep_transport::protocol::{DataShard, Generation, Rank, Record, Shard, WorkerId};

use super::sized_record::SizedRecord;

/// A member's view of its generation.
#[derive(Debug)]
pub struct MemberPlan {
    sized_record: SizedRecord,
    worker: WorkerId,
    rank: Rank,
    tree: Tree,
    /// The subtrees that each rank sends, in rank order.
    subtrees: Vec<BTreeSet<TreeNode>>,
    /// The shards that this member owns, each with whether it is primary.
    owned: BTreeMap<Shard, bool>,
    /// Of how many of them it is the primary.
    primaries: usize,
}

/// Why this worker cannot take part in a record.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The record contradicts itself.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The record does not list the worker.
    #[error("the worker with id {worker} is not a member of generation {generation}")]
    NotMember {
        /// The worker that the record lacks.
        worker: WorkerId,
        /// The generation that the plan is for.
        generation: Generation,
    },
}

impl MemberPlan {
    /// The plan of `worker` in `record`, for a model of `parameters` and a batch of `data_shards`.
    pub fn new(
        record: Record,
        worker: WorkerId,
        parameters: usize,
        data_shards: u32,
    ) -> Result<Self, PlanError> {
        let sized_record = SizedRecord::new(record, parameters, data_shards)?;
        let (record, generation) = (sized_record.record(), sized_record.generation());
        let rank = record.rank(worker).ok_or(PlanError::NotMember { worker, generation })?;
        let tree = Tree::new(data_shards);
        let subtrees = record
            .members
            .iter()
            .map(|member| {
                let leaves = member.data_shards.iter().map(|shard| shard.0).collect();
                tree.subtrees(&leaves).into_iter().collect()
            })
            .collect();
        let owned: BTreeMap<Shard, bool> = record.owned_by(rank).into_iter().collect();
        let primaries = owned.values().filter(|primary| **primary).count();
        Ok(Self { sized_record, worker, rank, tree, subtrees, owned, primaries })
    }

    /// The record that the plan follows.
    pub fn record(&self) -> &Record {
        self.sized_record.record()
    }

    /// The record with the sizes of its shards.
    pub fn sized_record(&self) -> &SizedRecord {
        &self.sized_record
    }

    /// The number of the generation that the plan is of.
    pub fn generation(&self) -> Generation {
        self.sized_record.generation()
    }

    /// The id of this member.
    pub fn worker(&self) -> WorkerId {
        self.worker
    }

    /// The rank of this member. Rank 0 is the step leader.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Whether this member is the step leader.
    pub fn is_step_leader(&self) -> bool {
        self.rank == Rank(0)
    }

    /// The tree over the data shards.
    pub fn tree(&self) -> Tree {
        self.tree
    }

    /// The data shards that this member computes.
    pub fn data_shards(&self) -> &[DataShard] {
        &self.record().member(self.rank).data_shards
    }

    /// The subtrees that this member sends.
    pub fn subtrees(&self) -> impl Iterator<Item = TreeNode> {
        self.subtrees[self.rank.0 as usize].iter().copied()
    }

    /// The subtree that this member sends and that contains a node. None if no such subtree does.
    pub fn target(&self, node: TreeNode) -> Option<TreeNode> {
        let range = self.tree.range(node);
        let holds = |target: &TreeNode| {
            let whole = self.tree.range(*target);
            whole.start <= range.start && range.end <= whole.end
        };
        self.subtrees().find(holds)
    }

    /// The subtrees that a member sends.
    #[cfg(feature = "planted")]
    pub fn sent_by(&self, rank: Rank) -> impl Iterator<Item = TreeNode> {
        self.subtrees[rank.0 as usize].iter().copied()
    }

    /// The shards that this member owns, ascending, each with whether it is primary.
    pub fn owned(&self) -> &BTreeMap<Shard, bool> {
        &self.owned
    }

    /// Of how many shards this member is the primary.
    pub fn primaries(&self) -> usize {
        self.primaries
    }

    /// How many parameter shards there are.
    pub fn shards(&self) -> u32 {
        self.sized_record.shards()
    }

    /// The number of elements of a parameter shard. 0 if there is no such shard.
    pub fn length(&self, shard: Shard) -> usize {
        self.sized_record.length(shard)
    }

    /// All members but this worker, by rank.
    pub fn others(&self) -> impl Iterator<Item = WorkerId> {
        self.record()
            .members
            .iter()
            .map(|member| member.worker)
            .filter(|other| *other != self.worker)
    }

    /// The primary of a shard.
    pub fn primary(&self, shard: Shard) -> WorkerId {
        self.sized_record.primary(shard)
    }

    /// The backups of a shard.
    pub fn backups(&self, shard: Shard) -> impl Iterator<Item = WorkerId> {
        self.sized_record.owners(shard).skip(1)
    }

    /// The members that get a shard's new parameters from its primary: all but its owners. The
    /// order begins after this member's own rank, so that not all primaries send to the same member
    /// at once.
    pub fn gatherers(&self, shard: Shard) -> impl Iterator<Item = WorkerId> {
        let owners = self.record().owners_of(shard);
        let world = self.record().world_size();
        (1..world)
            .map(move |k| Rank((self.rank.0 + k) % world))
            .filter(|rank| !owners.contains(rank))
            .map(|rank| self.sized_record.id(rank))
    }

    /// Whether `from` sends this member the partial of `node` for `shard`.
    pub fn expects_partial(&self, from: WorkerId, shard: Shard, node: TreeNode) -> bool {
        let primary = self.owned.get(&shard) == Some(&true);
        let rank = self.record().rank(from).filter(|rank| *rank != self.rank);
        primary && rank.is_some_and(|rank| self.subtrees[rank.0 as usize].contains(&node))
    }

    /// Whether `from` sends this member the reduced gradient of `shard`.
    pub fn expects_reduced(&self, from: WorkerId, shard: Shard) -> bool {
        self.owned.get(&shard) == Some(&false) && self.primary(shard) == from
    }

    /// Whether `from` sends this member the new parameters of `shard`.
    pub fn expects_parameters(&self, from: WorkerId, shard: Shard) -> bool {
        shard.0 < self.shards() && !self.owned.contains_key(&shard) && self.primary(shard) == from
    }
}

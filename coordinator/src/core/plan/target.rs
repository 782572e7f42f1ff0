//! The assignment that should be, by worker instead of by rank.
//!
//! It does not know which worker holds which shard. Workers sync missing shards in the background.

use std::collections::BTreeMap;

use everstep_transport::protocol::{DataShard, Record, RunSpec, Shard, WorkerId};

use crate::assign::{Candidate, Demand, Occasion, assign, fewest_sums, sums};
use crate::core::pace::Paces;
use crate::state::Worker;

/// Neighbouring parameter shards with the same owners.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OwnedRange {
    first: Shard,
    count: u32,
    /// The owners, primary first.
    owners: Vec<WorkerId>,
}

/// These workers, with the zones that they have stated, and how fast they compute.
pub(in crate::core) fn candidates(
    known: &BTreeMap<WorkerId, Worker>,
    paces: &Paces,
    workers: impl Iterator<Item = WorkerId>,
) -> Vec<Candidate> {
    let zone = |worker| known.get(&worker).and_then(|known| known.registration.zone.clone());
    let candidate = |worker| Candidate { worker, zone: zone(worker), pace: paces.of(worker) };
    workers.map(candidate).collect()
}

#[derive(Debug)]
pub(in crate::core) struct Target {
    data_shards: BTreeMap<WorkerId, Vec<DataShard>>,
    runs: Vec<OwnedRange>,
}

impl Target {
    /// What these members should do, in this order, after the current generation.
    pub(in crate::core) fn new(
        run: &RunSpec,
        shards: u32,
        current: Option<&Record>,
        members: &[Candidate],
        occasion: Occasion,
    ) -> Self {
        let demand = Demand { data_shards: run.batch.data_shards, shards, copies: run.copies };
        let assignment = assign(demand, members, current, occasion);
        let data_shards =
            members.iter().map(|member| member.worker).zip(assignment.data_shards).collect();
        let runs = assignment.owners.into_iter().map(|runs| OwnedRange {
            first: runs.first,
            count: runs.count,
            owners: runs.owners.iter().map(|rank| members[rank.0 as usize].worker).collect(),
        });
        Self { data_shards, runs: runs.collect() }
    }

    /// The data shards that a worker should compute. None if it is to leave, or in excess.
    pub(in crate::core) fn data_shards(&self, worker: WorkerId) -> Vec<DataShard> {
        self.data_shards.get(&worker).cloned().unwrap_or_default()
    }

    /// Every parameter shard, ascending, with its wanted owners, primary first.
    pub(in crate::core) fn owners(&self) -> impl Iterator<Item = (Shard, &[WorkerId])> {
        self.runs.iter().flat_map(|run| {
            let shards = run.first.0..run.first.0 + run.count;
            shards.map(|shard| (Shard(shard), &run.owners[..]))
        })
    }

    /// Whether the record has everything as it should be, except that a worker may send one sum
    /// more than the shares take. Whether the shares are as they should be is another question.
    pub(in crate::core) fn is_met(&self, record: &Record) -> bool {
        let each = record.members.iter().map(|member| &member.data_shards);
        let shares: Vec<usize> = each.clone().map(Vec::len).collect();
        let count = shares.iter().sum::<usize>() as u32;
        let most = each.map(|shards| sums(count, shards)).max().unwrap_or(0);
        self.owners_are_met(record) && most <= 1 + fewest_sums(&shares)
    }

    fn owners_are_met(&self, record: &Record) -> bool {
        let owned = record.owners.iter().map(|owned| OwnedRange {
            first: owned.first,
            count: owned.count,
            owners: owned.owners.iter().map(|rank| record.member(*rank).worker).collect(),
        });
        owned.eq(self.runs.iter().cloned())
    }
}

//! A generation's record with the sizes of its shards: the questions that members and joiners
//! share.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use everstep_kernels::reduce;
use everstep_transport::protocol::generation::RecordError;
use everstep_transport::protocol::{Generation, Rank, Record, Shard, WorkerId};

/// A record that does not contradict itself.
#[derive(Debug)]
pub struct SizedRecord {
    record: Record,
    parameters: usize,
}

impl SizedRecord {
    /// The record `record` with its sizes, for a model of `parameters` and a batch of
    /// `data_shards`.
    ///
    /// # Errors
    /// If the record contradicts itself.
    pub fn new(record: Record, parameters: usize, data_shards: u32) -> Result<Self, RecordError> {
        record.validate(data_shards, reduce::shard_count(parameters) as u32)?;
        Ok(Self { record, parameters })
    }

    /// The record as the leader announced it.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The number of the record's generation.
    pub fn generation(&self) -> Generation {
        self.record.number
    }

    /// Whether a worker is a member.
    pub fn lists(&self, worker: WorkerId) -> bool {
        self.record.rank(worker).is_some()
    }

    /// How many parameter shards there are.
    pub fn shards(&self) -> u32 {
        self.record.shards()
    }

    /// How many elements all parameter shards have.
    pub fn parameters(&self) -> usize {
        self.parameters
    }

    /// The elements of a parameter shard. 0 if there is no such shard.
    pub fn length(&self, shard: Shard) -> usize {
        reduce::shard_range(self.parameters, shard.0 as usize).len()
    }

    /// The primary of a shard that exists.
    pub fn primary(&self, shard: Shard) -> WorkerId {
        self.id(self.record.owners_of(shard)[0])
    }

    /// The owners of a shard that exists, primary first.
    pub fn owners(&self, shard: Shard) -> impl Iterator<Item = WorkerId> {
        self.record.owners_of(shard).iter().map(|rank| self.id(*rank))
    }

    /// Whether `from` is the primary of a shard that exists.
    pub fn is_primary(&self, from: WorkerId, shard: Shard) -> bool {
        shard.0 < self.shards() && self.primary(shard) == from
    }

    pub(super) fn id(&self, rank: Rank) -> WorkerId {
        self.record.member(rank).worker
    }
}

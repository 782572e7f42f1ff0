//! The record of a generation: its members, with their data shards and parameter shards.

// The derive does not carry the docs of variants' fields over to the archived type.
#![allow(missing_docs)]

use std::collections::BTreeSet;
use std::net::SocketAddr;

use rkyv::{Archive, Deserialize, Serialize};

use super::checkpoint::CheckpointId;
use super::ids::{DataShard, Generation, NodeName, Rank, Shard, Step, Term, WorkerId};
use super::step::Commit;

/// One member. Its place in the list is its rank.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The id of its registration.
    pub worker: WorkerId,
    /// The name in its certificate.
    pub name: NodeName,
    /// The address where it listens.
    pub address: SocketAddr,
    /// The data shards that it computes, ascending. Empty for a spare.
    pub data_shards: Vec<DataShard>,
}

/// The owners of a run of neighbouring parameter shards.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// The first parameter shard.
    pub first: Shard,
    /// Number of shards in the run, the first included.
    pub count: u32,
    /// The owners: primary first, then the backups.
    pub owners: Vec<Rank>,
}

/// The cause of a generation.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The run began with its first members.
    Start,
    /// Workers of the generation before were lost.
    Lost,
    /// Workers joined the run as members.
    Join,
    /// Members left the run as planned.
    Leave,
    /// Data shards were moved to even out compute.
    Rebalance,
    /// All owners of a shard were lost. The run went back.
    Rollback,
    /// The run pauses: the generation starts no step.
    Pause,
    /// A paused run goes on.
    Resume,
    /// A checkpoint was asked for: the primaries save the state that the generation begins with.
    Checkpoint,
}

/// A generation, as the log has it: the only entry that changes the members.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Record {
    /// The generation's number, greater than all before it.
    pub number: Generation,
    /// The number of the generation before it.
    pub predecessor: Generation,
    /// The term of the leader that proposed it.
    pub term: Term,
    /// The cause of the change.
    pub cause: Cause,
    /// The members. A member's index is its rank.
    pub members: Vec<Member>,
    /// The owners of every parameter shard, in order, without gaps.
    pub owners: Vec<Ownership>,
    /// The last step that is part of history.
    pub resume: Step,
    /// The commit of that step. `None` for the initial state.
    pub commit: Option<Commit>,
    /// The generation starts no step: it has too few members, the run is paused, or all of its
    /// workers are to leave. Owners serve and joiners catch up.
    pub waiting: bool,
}

/// A record that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("generation {number} is malformed: {problem}")]
pub struct RecordError {
    /// The number of the malformed record.
    pub number: Generation,
    /// What is wrong with it.
    pub problem: RecordProblem,
}

/// What is wrong with a record that contradicts itself.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordProblem {
    /// It has no members.
    #[error("it has no members")]
    NoMembers,
    /// A worker is listed twice.
    #[error("a worker is listed twice")]
    WorkerTwice,
    /// Not each of this many data shards is assigned once.
    #[error("it does not assign each of {0} data shards once")]
    DataShards(u32),
    /// No greater number can follow it.
    #[error("nothing can follow it")]
    NothingFollows,
    /// The owners of this shard are none, repeated, or no members.
    #[error("the owners of parameter shard {0} are wrong")]
    WrongOwners(u32),
    /// Ownership does not go on at this shard.
    #[error("ownership has a gap at parameter shard {0}")]
    Gap(u32),
    /// Ownership goes on beyond the largest number at this shard.
    #[error("ownership goes on without end at parameter shard {0}")]
    Endless(u32),
    /// It owns another number of shards than there are.
    #[error("it owns {owned} of {shards} parameter shards")]
    Missing { owned: u32, shards: u32 },
}

impl Record {
    /// The checkpoint from which all owners take their state: the run begins with it, or goes back
    /// to it. `None` if owners hold their state, or if it follows from the specification.
    pub fn restores(&self) -> Option<CheckpointId> {
        self.commit.as_ref().filter(|_| self.begins_anew()).map(CheckpointId::of)
    }

    /// Whether no state that a worker holds counts in this generation.
    pub fn begins_anew(&self) -> bool {
        matches!(self.cause, Cause::Start | Cause::Rollback)
    }

    /// The rank of a worker. `None` if it is no member.
    pub fn rank(&self, worker: WorkerId) -> Option<Rank> {
        self.members.iter().position(|m| m.worker == worker).map(|rank| Rank(rank as u32))
    }

    /// The member with this rank.
    pub fn member(&self, rank: Rank) -> &Member {
        &self.members[rank.0 as usize]
    }

    /// The worker of rank 0.
    pub fn step_leader(&self) -> WorkerId {
        self.members[0].worker
    }

    /// How many members the generation has.
    pub fn world_size(&self) -> u32 {
        self.members.len() as u32
    }

    /// Whether the primaries save the state that the generation begins with, even if its step is
    /// not due.
    pub fn saves(&self) -> bool {
        self.cause == Cause::Checkpoint
    }

    /// Number of parameter shards.
    pub fn shards(&self) -> u32 {
        // A record that was not validated may claim more shards than there can be.
        self.owners.iter().fold(0, |shards, ownership| shards.saturating_add(ownership.count))
    }

    /// The owners of a parameter shard, primary first.
    ///
    /// # Panics
    /// If the shard is not part of the record.
    pub fn owners_of(&self, shard: Shard) -> &[Rank] {
        let after = self.owners.partition_point(|ownership| ownership.first <= shard);
        let ownership = self.owners[..after].last();
        let ownership = ownership.filter(|known| shard.0 - known.first.0 < known.count);
        &ownership.expect("a shard of the record").owners
    }

    /// The parameter shards that `rank` owns, ascending. The flag says whether it is the primary.
    pub fn owned_by(&self, rank: Rank) -> Vec<(Shard, bool)> {
        let mine = self.owners.iter().filter(|ownership| ownership.owners.contains(&rank));
        mine.flat_map(|ownership| {
            let primary = ownership.owners[0] == rank;
            let first = ownership.first.0;
            (first..first.saturating_add(ownership.count)).map(move |shard| (Shard(shard), primary))
        })
        .collect()
    }

    /// Checks what every core relies on: members, each data shard once, owners without gaps.
    pub fn validate(&self, data_shards: u32, shards: u32) -> Result<(), RecordError> {
        let problem = self.problem(data_shards, shards);
        problem.map_or(Ok(()), |problem| Err(RecordError { number: self.number, problem }))
    }

    fn problem(&self, data_shards: u32, shards: u32) -> Option<RecordProblem> {
        if self.members.is_empty() {
            return Some(RecordProblem::NoMembers);
        }
        let workers: BTreeSet<_> = self.members.iter().map(|m| m.worker).collect();
        if workers.len() != self.members.len() {
            return Some(RecordProblem::WorkerTwice);
        }
        let mut assigned: Vec<_> = self.members.iter().flat_map(|m| m.data_shards.iter()).collect();
        assigned.sort();
        if !self.waiting && !assigned.iter().map(|shard| shard.0).eq(0..data_shards) {
            return Some(RecordProblem::DataShards(data_shards));
        }
        if self.number.0 == u64::MAX || self.resume.0 == u64::MAX {
            return Some(RecordProblem::NothingFollows);
        }
        let mut next = 0_u32;
        for ownership in &self.owners {
            let distinct: BTreeSet<_> = ownership.owners.iter().collect();
            let known = ownership.owners.iter().all(|rank| rank.0 < self.world_size());
            if ownership.owners.is_empty() || distinct.len() != ownership.owners.len() || !known {
                return Some(RecordProblem::WrongOwners(next));
            }
            if ownership.first.0 != next || ownership.count == 0 {
                return Some(RecordProblem::Gap(next));
            }
            let Some(after) = next.checked_add(ownership.count) else {
                return Some(RecordProblem::Endless(next));
            };
            next = after;
        }
        (next != shards).then_some(RecordProblem::Missing { owned: next, shards })
    }
}

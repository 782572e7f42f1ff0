//! The members of the log: ids, and sets of them.

// The derive does not carry the docs of fields over to the archived types.
#![allow(missing_docs)]

use std::fmt;

use ::raft::eraftpb::ConfState;
use everstep_transport::protocol::CoordinatorId;
use rkyv::{Archive, Deserialize, Serialize};

/// Most members of each sort.
pub const MAX_MEMBERS: usize = 16;

/// The id of a replica, which is a process and its disk. Never 0. A lost disk never comes back
/// under the same id, because the new disk would not know what the old one promised.
#[derive(
    Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash,
)]
pub struct ReplicaId(pub u64);

/// The log of a cluster has each coordinator as the replica with its id.
impl From<CoordinatorId> for ReplicaId {
    fn from(id: CoordinatorId) -> Self {
        Self(id.0)
    }
}

impl From<ReplicaId> for CoordinatorId {
    fn from(id: ReplicaId) -> Self {
        Self(id.0)
    }
}

/// The replicas that the log is for, by id.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// A majority of these agrees.
    pub voters: Vec<ReplicaId>,
    /// Learners get the log and have no vote.
    pub learners: Vec<ReplicaId>,
    /// The voters before, until a change is complete. While this list is not empty, a majority of
    /// it has to agree as well.
    pub outgoing: Vec<ReplicaId>,
}

impl Members {
    /// Whether a change is not complete.
    pub fn is_joint(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Whether a replica counts as a voter for an operator. Until a change is complete, nothing is
    /// agreed without a majority of the voters before. If one of those dies then, the new voters
    /// are no help.
    pub fn count(&self, id: ReplicaId) -> bool {
        if self.is_joint() { self.outgoing.contains(&id) } else { self.voters.contains(&id) }
    }

    /// Whether a replica is a voter, a learner or an outgoing voter.
    pub fn contain(&self, id: ReplicaId) -> bool {
        [&self.voters, &self.learners, &self.outgoing].iter().any(|ids| ids.contains(&id))
    }

    /// Whether a replica decides alone.
    pub fn are_only(&self, id: ReplicaId) -> bool {
        self.voters == [id] && (self.outgoing.is_empty() || self.outgoing == [id])
    }

    /// Whether Raft can have such members. Raft takes this for granted.
    pub(crate) fn is_sound(&self) -> bool {
        let Self { voters, learners, outgoing } = self;
        let listed = |ids: &[ReplicaId]| {
            ids.len() <= MAX_MEMBERS && ids.is_sorted_by(|a, b| a < b) && !ids.contains(&NO_REPLICA)
        };
        let votes = |id| voters.contains(id) || outgoing.contains(id);
        !voters.is_empty()
            && [voters, learners, outgoing].iter().all(|ids| listed(ids))
            && !learners.iter().any(votes)
    }

    /// The same as a `ConfState` of Raft.
    pub(super) fn to_raft(&self) -> ConfState {
        let numbers = |ids: &[ReplicaId]| ids.iter().map(|id| id.0).collect();
        ConfState {
            voters: numbers(&self.voters),
            learners: numbers(&self.learners),
            voters_outgoing: numbers(&self.outgoing),
            ..ConfState::default()
        }
    }

    /// The members from a `ConfState`. This program never demotes a voter to a learner, and Raft
    /// never leaves a joint configuration by itself, so a `ConfState` holds nothing else.
    pub(super) fn from_raft(state: &ConfState) -> Self {
        let ids = |numbers: &[u64]| {
            let mut ids: Vec<_> = numbers.iter().copied().map(ReplicaId).collect();
            ids.sort_unstable();
            ids
        };
        Self {
            voters: ids(&state.voters),
            learners: ids(&state.learners),
            outgoing: ids(&state.voters_outgoing),
        }
    }
}

/// The id that Raft uses for no replica.
pub(super) const NO_REPLICA: ReplicaId = ReplicaId(::raft::INVALID_ID);

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replica {}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_joins_counts_as_a_voter_once_the_change_is_complete() {
        let [one, two] = [1, 2].map(ReplicaId);
        let mut members = Members { voters: vec![one, two], ..Members::default() };
        members.outgoing = vec![one];
        assert_eq!([one, two].map(|id| members.count(id)), [true, false]);
        members.outgoing.clear();
        assert_eq!([one, two].map(|id| members.count(id)), [true, true]);
    }
}

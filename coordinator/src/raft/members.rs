//! Who takes part in the log: ids, and sets of them.

// The derive does not carry the docs of fields over to the archived types.
#![allow(missing_docs)]

use std::fmt;

use ::raft::eraftpb::ConfState;
use rkyv::{Archive, Deserialize, Serialize};

/// Most members of each sort.
pub const MAX_MEMBERS: usize = 16;

/// A replica: a process and its disk. Never 0. A disk that was lost never comes back under the
/// same id: it would not know what it has promised.
#[derive(
    Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash,
)]
pub struct ReplicaId(pub u64);

/// The replicas that the log is for, by id.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// A majority of these agrees.
    pub voters: Vec<ReplicaId>,
    /// They get the log and have no vote.
    pub learners: Vec<ReplicaId>,
    /// The voters before, until a change is complete: while there are any, a majority of these has
    /// to agree as well.
    pub outgoing: Vec<ReplicaId>,
}

impl Members {
    /// Whether a change is not complete.
    pub fn is_joint(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Whether a replica is one of them, as whatever.
    pub fn contain(&self, id: ReplicaId) -> bool {
        [&self.voters, &self.learners, &self.outgoing].iter().any(|ids| ids.contains(&id))
    }

    /// Whether a replica decides alone.
    pub fn are_only(&self, id: ReplicaId) -> bool {
        self.voters == [id] && (self.outgoing.is_empty() || self.outgoing == [id])
    }

    /// Whether there can be such members: what Raft takes for granted.
    pub(crate) fn is_sound(&self) -> bool {
        let Self { voters, learners, outgoing } = self;
        let listed = |ids: &[ReplicaId]| {
            ids.len() <= MAX_MEMBERS && ids.is_sorted_by(|a, b| a < b) && !ids.contains(&NOBODY)
        };
        let votes = |id| voters.contains(id) || outgoing.contains(id);
        !voters.is_empty()
            && [voters, learners, outgoing].iter().all(|ids| listed(ids))
            && !learners.iter().any(votes)
    }

    /// As Raft says it.
    pub(super) fn to_raft(&self) -> ConfState {
        let numbers = |ids: &[ReplicaId]| ids.iter().map(|id| id.0).collect();
        ConfState {
            voters: numbers(&self.voters),
            learners: numbers(&self.learners),
            voters_outgoing: numbers(&self.outgoing),
            ..ConfState::default()
        }
    }

    /// As Raft has said it. Nobody is demoted from voter to learner, nor is a joint configuration
    /// ever left by Raft itself, so nothing else is in it.
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

/// Raft's word for no replica.
pub(super) const NOBODY: ReplicaId = ReplicaId(::raft::INVALID_ID);

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replica {}", self.0)
    }
}

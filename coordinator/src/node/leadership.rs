//! Which coordinator leads the log, as this one knows it.

use everstep_transport::protocol::Term;

use crate::raft::ReplicaId;

/// The leader of the log, as Raft elected it. The core of the same coordinator leads the cluster
/// only when its own entry of the term has applied.
#[derive(Debug)]
pub(super) enum LogLeadership {
    /// This coordinator leads the log.
    Leads { own: ReplicaId, term: Term },
    /// This coordinator follows the leader. None while it knows no leader.
    Follows(Option<ReplicaId>),
}

impl Default for LogLeadership {
    fn default() -> Self {
        Self::Follows(None)
    }
}

impl LogLeadership {
    /// This coordinator leads from now on.
    pub(super) fn lead(&mut self, own: ReplicaId, term: Term) {
        *self = Self::Leads { own, term };
    }

    /// This coordinator follows from now on.
    pub(super) fn follow(&mut self, leader: Option<ReplicaId>) {
        *self = Self::Follows(leader);
    }

    /// The term in which this coordinator leads the log.
    pub(super) fn term(&self) -> Option<Term> {
        match self {
            Self::Leads { term, .. } => Some(*term),
            Self::Follows(_) => None,
        }
    }

    pub(super) fn leads(&self) -> bool {
        self.term().is_some()
    }

    /// The leader of the log, as far as this coordinator knows.
    pub(super) fn leader(&self) -> Option<ReplicaId> {
        match self {
            Self::Leads { own, .. } => Some(*own),
            Self::Follows(leader) => *leader,
        }
    }
}

//! Which coordinator leads the log, as this one knows it.

use everstep_transport::protocol::Term;

use crate::raft::ReplicaId;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct LogLeadership {
    /// The term in which this coordinator leads the log. None while it does not lead.
    term: Option<Term>,
    /// The leader, as far as this coordinator knows.
    leader: Option<ReplicaId>,
}

impl LogLeadership {
    /// This coordinator leads from now on.
    pub(super) fn lead(&mut self, own: ReplicaId, term: Term) {
        *self = Self { term: Some(term), leader: Some(own) };
    }

    /// This coordinator follows from now on.
    pub(super) fn follow(&mut self, leader: Option<ReplicaId>) {
        *self = Self { term: None, leader };
    }

    pub(super) fn term(&self) -> Option<Term> {
        self.term
    }

    pub(super) fn leads(&self) -> bool {
        self.term.is_some()
    }

    pub(super) fn leader(&self) -> Option<ReplicaId> {
        self.leader
    }
}

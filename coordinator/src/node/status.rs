//! How the coordinators stand: their votes, the leader, their share of the log, and silent ones.
//!
//! A leader hears every replica many times a second. Any other coordinator hears the leader alone,
//! and knows its own state.

use everstep_transport::protocol::question::CoordinatorStatus;
use everstep_transport::protocol::{Message, Reply};
use everstep_transport::time::Time;

use super::Node;
use crate::core::{LinkId, ShellEffect};
use crate::raft::ReplicaId;

/// How many of the coordinators with a vote a coordinator can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReachableVoters {
    /// Those that it can reach, itself included.
    pub reached: usize,
    /// All coordinators with a vote.
    pub all: usize,
}

impl Node {
    /// Since when this leader has not heard a replica. None if it hears it.
    pub(super) fn silent_since(&self, now: Time, id: ReplicaId) -> Option<Time> {
        self.peers.silent_since(now, self.replica.members(), id)
    }

    /// All coordinators of the applied log. Leaving coordinators come last.
    pub fn coordinator_statuses(&self, now: Time) -> Vec<CoordinatorStatus> {
        let (members, leads) = (self.replica.members(), self.leadership.leads());
        let state = self.core.state();
        let views = state.coordinators().into_iter().map(|view| (view, false));
        let leaving = state.leaving().into_iter().map(|view| (view, true));
        let statuses = views.chain(leaving).map(|(view, leaves)| {
            let id = ReplicaId::from(view.id);
            let silent = leads.then(|| self.silent_since(now, id)).flatten();
            CoordinatorStatus {
                votes: members.count(id),
                leads: self.leadership.leader() == Some(id),
                leaves,
                matched: self.replica.matched(id),
                silent_since_unix_ms: silent.map(|at| self.core.unix_ms(at)),
                view,
            }
        });
        statuses.collect()
    }

    /// Answers an operator's question for the coordinators. Without a term there is no cluster yet.
    pub(super) fn send_statuses(&mut self, now: Time, to: LinkId) {
        let Some(term) = self.leadership.term() else { return };
        let (applied, coordinators) = (self.replica.applied(), self.coordinator_statuses(now));
        let message = Message::Reply(Reply::Coordinators { term, applied, coordinators });
        self.push(ShellEffect::Send { to, message });
    }

    /// How many of the voting coordinators this one can reach, itself included.
    pub fn reachable(&self) -> ReachableVoters {
        let (own, voters) = (self.peers.own(), &self.replica.members().voters);
        let linked = |id: &&ReplicaId| {
            **id == own || self.peers.link_of(self.replica.members(), **id).is_some()
        };
        ReachableVoters { reached: voters.iter().filter(linked).count(), all: voters.len() }
    }
}

//! How the coordinators stand: their votes, the leader, their share of the log, and silent ones.
//!
//! A leader hears every replica many times a second. Any other coordinator hears the leader alone,
//! and knows its own state.

use std::collections::BTreeMap;
use std::time::Duration;

use everstep_transport::protocol::question::CoordinatorStanding;
use everstep_transport::protocol::{Message, Reply};
use everstep_transport::time::Time;

use super::{Effect, Seat};
use crate::core::LinkId;
use crate::raft::ReplicaId;

/// A replica that the leader has not heard for this long is silent. Many heartbeats fit into it.
const SILENCE: Duration = Duration::from_millis(500);

/// When this coordinator last heard each replica.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// When this coordinator began to listen. No silence began earlier.
    since: Time,
    last: BTreeMap<ReplicaId, Time>,
}

impl Heard {
    /// A new leader begins to listen to all replicas.
    pub(super) fn begin(&mut self, now: Time) {
        self.since = now;
    }

    pub(super) fn hear(&mut self, now: Time, from: ReplicaId) {
        self.last.insert(from, now);
    }

    fn last(&self, id: ReplicaId) -> Time {
        self.last.get(&id).copied().unwrap_or_default().max(self.since)
    }
}

impl Seat {
    /// Since when this leader has not heard a replica. None if it hears it.
    pub(super) fn silent_since(&self, now: Time, id: ReplicaId) -> Option<Time> {
        let last = self.heard.last(id);
        let linked = self.peers.link_of(self.replica.members(), id).is_some();
        let silent = !linked || now.since(last) > SILENCE;
        (id != self.peers.own() && silent).then_some(last)
    }

    /// All coordinators, as far as the log has come here. Leaving coordinators come last.
    pub fn standings(&self, now: Time) -> Vec<CoordinatorStanding> {
        let (members, leads) = (self.replica.members(), self.leads.is_some());
        let state = self.core.state();
        let views = state.coordinators().into_iter().map(|view| (view, false));
        let leaving = state.leaving().into_iter().map(|view| (view, true));
        let standings = views.chain(leaving).map(|(view, leaves)| {
            let id = ReplicaId(view.id);
            let silent = leads.then(|| self.silent_since(now, id)).flatten();
            CoordinatorStanding {
                votes: members.voters.contains(&id) || members.outgoing.contains(&id),
                leads: self.leader == Some(id),
                leaves,
                matched: self.replica.matched(id),
                silent_since_unix_ms: silent.map(|at| self.core.unix_ms(at)),
                view,
            }
        });
        standings.collect()
    }

    pub(super) fn describe(&mut self, now: Time, to: LinkId) {
        let Some(term) = self.leads else { return };
        let (applied, coordinators) = (self.replica.applied(), self.standings(now));
        let message = Message::Told(Reply::Coordinators { term, applied, coordinators });
        self.effects.push_back(Effect::Send { to, message });
    }

    /// How many voting coordinators this one can reach, itself included, and how many there are.
    pub fn reachable(&self) -> (usize, usize) {
        let (own, voters) = (self.peers.own(), &self.replica.members().voters);
        let linked = |id: &&ReplicaId| {
            **id == own || self.peers.link_of(self.replica.members(), **id).is_some()
        };
        (voters.iter().filter(linked).count(), voters.len())
    }
}

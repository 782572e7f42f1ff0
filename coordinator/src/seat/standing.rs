//! How the coordinators stand: who has a vote, who leads, who has how much of the log, who is
//! silent.
//!
//! Who leads hears every replica many times a second; any other one hears the leader alone, and
//! knows of itself.

use std::collections::BTreeMap;
use std::time::Duration;

use everstep_transport::protocol::question::CoordinatorStanding;
use everstep_transport::protocol::{Message, Reply};
use everstep_transport::time::Time;

use super::{Effect, Seat};
use crate::core::LinkId;
use crate::raft::ReplicaId;

/// A replica that is not heard for so long is silent: many heartbeats.
const SILENCE: Duration = Duration::from_millis(500);

/// When each replica was heard last.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// Nobody can have been silent for longer.
    since: Time,
    last: BTreeMap<ReplicaId, Time>,
}

impl Heard {
    /// Who leads begins to listen to all.
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
    /// Since when a replica is not heard by this one, which leads; none if it is.
    pub(super) fn silent_since(&self, now: Time, id: ReplicaId) -> Option<Time> {
        let last = self.heard.last(id);
        let linked = self.peers.link_of(self.replica.members(), id).is_some();
        let silent = !linked || now.since(last) > SILENCE;
        (id != self.peers.own() && silent).then_some(last)
    }

    /// All coordinators, as far as the log has come here, and last those that leave.
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

    /// How many of the coordinators that vote can be reached, this one included, and how many there
    /// are.
    pub fn reachable(&self) -> (usize, usize) {
        let (own, voters) = (self.peers.own(), &self.replica.members().voters);
        let linked = |id: &&ReplicaId| {
            **id == own || self.peers.link_of(self.replica.members(), **id).is_some()
        };
        (voters.iter().filter(linked).count(), voters.len())
    }
}

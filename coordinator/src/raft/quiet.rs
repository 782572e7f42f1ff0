//! When a replica has something to do by itself next, so that its driver may sleep until then.
//!
//! A cluster without a run is at rest: leaders say less often that they live. Time-outs stay as
//! they are, so a leader that has ended is noticed no later.

use std::time::Duration;

use super::Replica;
use super::settings::{HEARTBEAT, HEARTBEAT_AT_REST};

impl Replica {
    /// For so long nothing becomes due here: no heartbeat, and no end of a follower's patience. At
    /// most the time between two heartbeats, so that a tick that comes then is not late.
    pub fn quiet(&self) -> Duration {
        let raft = &self.node.raft;
        let election = raft.randomized_election_timeout().saturating_sub(raft.election_elapsed);
        let due = match self.is_elected() {
            true => raft.heartbeat_timeout().saturating_sub(raft.heartbeat_elapsed()),
            false => election,
        };
        self.pace.current() * due.clamp(1, self.heartbeat()) as u32
    }

    /// The cluster is at rest, or is not any more.
    pub fn rest(&mut self, rests: bool) {
        if std::mem::replace(&mut self.rests, rests) != rests {
            let ticks = self.heartbeat();
            self.node.raft.set_heartbeat_timeout(ticks);
        }
    }

    /// Ticks between a leader's heartbeats.
    pub(super) fn heartbeat(&self) -> usize {
        if self.rests { HEARTBEAT_AT_REST } else { HEARTBEAT }
    }
}

//! When a replica has something to do by itself next, so that its driver may sleep until then.

use std::time::Duration;

use super::Replica;
use super::settings::HEARTBEAT;

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
        self.pace.current() * due.clamp(1, HEARTBEAT) as u32
    }
}

//! When a replica next has to do something by itself. Its driver may sleep until then.
//!
//! A cluster without a run is at rest: its leader sends heartbeats less often, and its ticks are
//! longer (`tick_rate.rs`). No worker waits for a leader then.

use std::time::Duration;

use super::Replica;
use super::settings::{HEARTBEAT_TICKS, LEASE_TICKS, RESTING_HEARTBEAT_TICKS};

impl Replica {
    /// For so long nothing becomes due here: no heartbeat, and no end of a follower's time-out.
    pub fn quiet(&self) -> Duration {
        self.tick_rate.current() * self.quiet_ticks() as u32
    }

    /// The same, in ticks. A tick that comes after more than these is late.
    ///
    /// A follower at rest wakes a heartbeat's time before its time-out ends, and again at the end.
    /// A process that was paused meanwhile is late at the first wake-up. So it hears the messages
    /// that have come before it gives the leader up.
    pub(super) fn quiet_ticks(&self) -> usize {
        let (raft, heartbeat) = (&self.node.raft, self.heartbeat());
        let election = raft.randomized_election_timeout().saturating_sub(raft.election_elapsed);
        let due = match self.is_elected() {
            true if self.rests && self.members().are_only(self.id) => return LEASE_TICKS,
            true => raft.heartbeat_timeout().saturating_sub(raft.heartbeat_elapsed()),
            false if self.rests && election > heartbeat => return election - heartbeat,
            false => election,
        };
        due.clamp(1, heartbeat)
    }

    /// Tells the replica whether the cluster is at rest.
    pub fn rest(&mut self, rests: bool) {
        if std::mem::replace(&mut self.rests, rests) != rests {
            let ticks = self.heartbeat();
            self.node.raft.set_heartbeat_timeout(ticks);
            self.tick_rate.rest(rests);
        }
    }

    /// Ticks between a leader's heartbeats.
    pub(super) fn heartbeat(&self) -> usize {
        if self.rests { RESTING_HEARTBEAT_TICKS } else { HEARTBEAT_TICKS }
    }
}

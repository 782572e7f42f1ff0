//! How a leader stops leading: it hands over to another replica, or leaves no leader for a while.

use super::members::NO_REPLICA;
use super::{Refused, Replica, ReplicaId};

impl Replica {
    /// Asks to hand leadership over. The replica refuses proposals until that is done, or until it
    /// gives the transfer up after some heartbeats.
    ///
    /// # Errors
    /// [`Refused::NotLeader`], [`Refused::Impossible`].
    pub fn transfer(&mut self, to: ReplicaId) -> Result<(), Refused> {
        self.check_leading_or_handing_over()?;
        if !self.members().voters.contains(&to) || to == self.id {
            return Err(Refused::Impossible("it cannot lead, or does"));
        }
        self.node.transfer_leader(to.0);
        self.drive();
        Ok(())
    }

    /// Whether a transfer of leadership is under way.
    pub fn is_handing_over(&self) -> bool {
        self.node.raft.lead_transferee.is_some()
    }

    /// Stops leading, if this replica leads. The next leader is any replica that may be elected and
    /// has no write under way. It may be this replica again.
    pub fn step_down(&mut self) {
        if self.is_elected() {
            let raft = &mut self.node.raft;
            raft.become_follower(raft.term, NO_REPLICA.0);
            self.drive();
        }
    }
}

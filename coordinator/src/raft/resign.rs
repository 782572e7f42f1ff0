//! How a leader comes to lead no longer: it lets another replica lead, or nobody for a while.

use super::members::NOBODY;
use super::{Refused, Replica, ReplicaId};

impl Replica {
    /// Asks to hand leadership over. Proposals are refused until that is done, or given up after
    /// some heartbeats.
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

    /// Whether leadership is being handed over.
    pub fn is_handing_over(&self) -> bool {
        self.node.raft.lead_transferee.is_some()
    }

    /// Leads no longer, if it does. Whoever may be elected, this replica too, then is: of those
    /// that write nothing at the moment.
    pub fn resign(&mut self) {
        if self.is_elected() {
            let raft = &mut self.node.raft;
            raft.become_follower(raft.term, NOBODY.0);
            self.drive();
        }
    }
}

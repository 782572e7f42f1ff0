//! How a leader comes to lead no longer: it lets another replica lead.

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
}

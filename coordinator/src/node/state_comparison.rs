//! Compares the state of each coordinator with that of the leader (I14).
//!
//! Two builds may apply an entry differently, or a bit may flip in memory. Then coordinators that
//! agree on every entry know different clusters, and the next leader would act on what the others
//! never knew. So the leader sends its digest after every [`COMPARED_ENTRIES`]th entry, and a
//! coordinator that has another digest after that entry ends.

use everstep_transport::protocol::Message;

use super::{Node, NodeError};
use crate::core::ShellEffect;

/// A digest is made after each entry with an index that this divides. It costs as much as a
/// snapshot that is not written.
pub(super) const COMPARED_ENTRIES: u64 = 64;

/// The digest of a state, and the index of its newest entry.
type DigestAt = (u64, [u8; 32]);

/// The newest digests. A coordinator that is behind, or lost its link, misses some comparisons.
#[derive(Debug, Default)]
pub(super) struct StateComparison {
    pub(super) own: Option<DigestAt>,
    pub(super) leaders: Option<DigestAt>,
}

impl StateComparison {
    /// The leader tells of its state.
    pub(super) fn hear(&mut self, index: u64, digest: [u8; 32]) {
        self.leaders = Some((index, digest));
    }

    /// # Errors
    /// [`NodeError::Diverged`]: the newest digests are of the same entry, and differ.
    pub(super) fn compare(&self) -> Result<(), NodeError> {
        match (self.own, self.leaders) {
            (Some((index, own)), Some((other, leaders))) if index == other && own != leaders => {
                Err(NodeError::Diverged { index })
            }
            _ => Ok(()),
        }
    }
}

impl Node {
    /// An entry was applied. The leader tells the others of its state, now and then.
    pub(super) fn digest_state(&mut self, index: u64) -> Result<(), NodeError> {
        if !index.is_multiple_of(COMPARED_ENTRIES) {
            return Ok(());
        }
        let digest = self.core.state().digest();
        self.comparison.own = Some((index, digest));
        if !self.leadership.leads() {
            return self.comparison.compare();
        }
        let (to, message) = (self.peers.links(), Message::StateDigest { index, digest });
        self.push(ShellEffect::Broadcast { to, message });
        Ok(())
    }
}

//! Compares the states of the coordinators (I14).
//!
//! Two builds may apply an entry differently, or a bit may flip in memory. Then coordinators that
//! agree on every entry know different clusters, and the next leader would act on a state that no
//! other coordinator has. So each coordinator tells the others a digest of its state, again and
//! again after the same entries. A coordinator that a majority contradicts with one voice ends. If
//! there is no such majority, the coordinators cannot tell which of them is right, and say so.

use std::collections::BTreeMap;

use everstep_transport::protocol::Message;

use super::{Node, NodeError};
use crate::core::{LinkId, ShellEffect};
use crate::raft::ReplicaId;

/// A digest is made after each command with an index that this divides. It costs as much as a
/// snapshot that is not written.
pub(super) const COMPARED_ENTRIES: u64 = 64;

/// The index of an entry, and the digest of a state after it.
type DigestAt = (u64, [u8; 32]);

/// The newest digests. A coordinator that is behind, or lost its link, misses some comparisons.
#[derive(Debug, Default)]
pub(super) struct StateComparison {
    pub(super) own: Option<DigestAt>,
    pub(super) others: BTreeMap<ReplicaId, DigestAt>,
}

impl StateComparison {
    /// What the voters say of the newest entry that this coordinator has compared.
    fn verdict(&self, voters: &[ReplicaId]) -> StateVerdict {
        let Some((index, own)) = self.own else { return StateVerdict::Same };
        let votes = voters.iter().filter_map(|id| self.others.get(id));
        let others = votes.filter(|(at, digest)| *at == index && *digest != own);
        let mut count = BTreeMap::<[u8; 32], usize>::new();
        others.for_each(|(_, digest)| *count.entry(*digest).or_default() += 1);
        match count.values().max() {
            None => StateVerdict::Same,
            Some(most) if 2 * most > voters.len() => StateVerdict::Outvoted { index },
            Some(_) => StateVerdict::Differs { index },
        }
    }
}

/// How a coordinator's state compares with those of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StateVerdict {
    /// No other state is known.
    Same,
    /// Some coordinators have another state, and no majority has one.
    Differs { index: u64 },
    /// A majority has another state, and agrees on it.
    Outvoted { index: u64 },
}

impl Node {
    /// An entry was applied. The coordinator tells the others of its state, now and then.
    pub(super) fn digest_state(&mut self, index: u64) -> Result<(), NodeError> {
        if !index.is_multiple_of(COMPARED_ENTRIES) {
            return Ok(());
        }
        let digest = self.core.state().digest();
        self.comparison.own = Some((index, digest));
        let voters = &self.replica.members().voters;
        self.comparison.others.retain(|id, _| voters.contains(id));
        let (to, message) = (self.peers.links(), Message::StateDigest { index, digest });
        self.push(ShellEffect::Broadcast { to, message });
        self.compare_states()
    }

    /// Another coordinator tells of its state.
    pub(super) fn on_state_digest(
        &mut self,
        from: LinkId,
        told: DigestAt,
    ) -> Result<(), NodeError> {
        let Some(id) = self.peers.id_of(self.replica.members(), from) else { return Ok(()) };
        self.comparison.others.insert(id, told);
        self.compare_states()
    }

    fn compare_states(&self) -> Result<(), NodeError> {
        match self.comparison.verdict(&self.replica.members().voters) {
            StateVerdict::Same => Ok(()),
            StateVerdict::Outvoted { index } => Err(NodeError::Diverged { index }),
            StateVerdict::Differs { index } => {
                tracing::error!(index, "the coordinators have different states after this entry");
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdict of a coordinator with the state 0, of these voters besides, each with its state.
    fn verdict(voters: u64, others: &[(u64, u64, u8)]) -> StateVerdict {
        let voters: Vec<ReplicaId> = (0..voters).map(ReplicaId).collect();
        let digest = |state: u8| [state; 32];
        let others = others.iter().map(|(id, at, state)| (ReplicaId(*id), (*at, digest(*state))));
        StateComparison { own: Some((64, digest(0))), others: others.collect() }.verdict(&voters)
    }

    #[test]
    fn a_majority_with_one_other_state_outvotes_a_coordinator() {
        let outvoted = StateVerdict::Outvoted { index: 64 };
        assert_eq!(verdict(3, &[(1, 64, 1), (2, 64, 1)]), outvoted);
        assert_eq!(verdict(5, &[(1, 64, 1), (2, 64, 1), (3, 64, 1), (4, 64, 0)]), outvoted);
    }

    #[test]
    fn fewer_coordinators_or_different_states_do_not() {
        let differs = StateVerdict::Differs { index: 64 };
        assert_eq!(verdict(3, &[(1, 64, 1), (2, 64, 0)]), differs);
        assert_eq!(verdict(3, &[(1, 64, 1), (2, 64, 2)]), differs);
        assert_eq!(verdict(2, &[(1, 64, 1)]), differs);
        assert_eq!(verdict(4, &[(1, 64, 1), (2, 64, 1)]), differs);
    }

    #[test]
    fn states_after_other_entries_and_of_other_coordinators_do_not_count() {
        assert_eq!(verdict(3, &[(1, 128, 1), (2, 0, 1)]), StateVerdict::Same);
        assert_eq!(
            verdict(3, &[(1, 64, 0), (2, 64, 0), (3, 64, 1), (4, 64, 1)]),
            StateVerdict::Same
        );
    }
}

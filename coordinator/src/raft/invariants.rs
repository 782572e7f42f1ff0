//! Assertions of a replica before it writes, and before it hands entries out. Each names its
//! invariant, and a broken one stops the process.
//!
//! The replica asserts what Raft and this wrapper are responsible for. Messages of other replicas
//! have passed `admit.rs` before. A replica with a planted bug asserts nothing here: the
//! simulator's checks are to find the bug.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::Replica;
use super::batch::{DurableState, RaftEntry, WriteBatch};

impl Replica {
    /// A batch is about to be written.
    pub(super) fn check_batch(&self, batch: &WriteBatch) {
        if !self.is_exempt() {
            check_batch(self.node.store().kept(), batch);
        }
    }

    /// Entries are about to be handed out.
    pub(super) fn check_handed_out(&self, committed: &[RaftEntry]) {
        if !self.is_exempt() {
            let log = &self.node.raft.raft_log;
            check_handed_out(log.applied, log.committed.min(log.persisted), committed);
        }
    }

    #[cfg(not(feature = "planted"))]
    fn is_exempt(&self) -> bool {
        false
    }

    #[cfg(feature = "planted")]
    fn is_exempt(&self) -> bool {
        self.plant.is_some()
    }
}

/// What a batch may change of what is kept.
fn check_batch(kept: &DurableState, batch: &WriteBatch) {
    let (before, next) = (kept.hard_state, batch.hard_state);
    assert!(next.term >= before.term, "I9: the term falls from {} to {}", before.term, next.term);
    assert!(next.commit >= before.commit, "I9: the agreed index falls");
    let same = next.term == before.term && before.vote.is_some();
    assert!(!same || next.vote == before.vote, "I1: a replica votes twice in term {}", next.term);
    if let (Some(first), None) = (batch.entries.first(), &batch.snapshot) {
        let index = first.position.index;
        assert!(index > before.commit, "I9: the agreed entry {index} is replaced");
        assert!(index <= kept.last().index + 1, "I9: entry {index} leaves a gap in the log");
    }
}

/// Which entries may follow the applied ones, where all up to `agreed` are agreed on and durable
/// here.
fn check_handed_out(applied: u64, agreed: u64, committed: &[RaftEntry]) {
    let mut next = applied + 1;
    for entry in committed {
        let index = entry.position.index;
        assert_eq!(index, next, "I14: entries are applied in order, each once");
        next += 1;
    }
    assert!(next <= agreed + 1, "I9: an entry is applied before it is agreed on and durable");
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::Term;

    use super::*;
    use crate::raft::{EntryKind, HardState, LogPosition, ReplicaId};

    fn entry(index: u64) -> RaftEntry {
        let position = LogPosition { index, term: Term(2) };
        RaftEntry { position, kind: EntryKind::Command, bytes: vec![1] }
    }

    fn kept() -> DurableState {
        let vote = Some(ReplicaId(1));
        DurableState {
            hard_state: HardState { term: Term(2), vote, commit: 3 },
            entries: (2..=4).map(entry).collect(),
            ..DurableState::founded_by(ReplicaId(1))
        }
    }

    fn batch(hard_state: HardState, first: u64) -> WriteBatch {
        let base = kept().base;
        WriteBatch { number: 1, hard_state, snapshot: None, base, entries: vec![entry(first)] }
    }

    #[test]
    fn i9_a_batch_that_goes_on_from_what_is_kept_is_sound() {
        let hard_state = kept().hard_state;
        check_batch(&kept(), &batch(HardState { commit: 4, ..hard_state }, 5));
        check_batch(&kept(), &batch(HardState { term: Term(3), vote: None, ..hard_state }, 4));
    }

    #[test]
    #[should_panic(expected = "I9: the term falls")]
    fn i9_a_term_that_falls_stops_the_process() {
        check_batch(&kept(), &batch(HardState { term: Term(1), ..kept().hard_state }, 5));
    }

    #[test]
    #[should_panic(expected = "I1: a replica votes twice")]
    fn i1_a_second_vote_stops_the_process() {
        check_batch(&kept(), &batch(HardState { vote: None, ..kept().hard_state }, 5));
    }

    #[test]
    #[should_panic(expected = "I9: the agreed entry 3 is replaced")]
    fn i9_an_agreed_entry_that_is_replaced_stops_the_process() {
        check_batch(&kept(), &batch(kept().hard_state, 3));
    }

    #[test]
    #[should_panic(expected = "I14: entries are applied in order")]
    fn i14_an_entry_that_is_left_out_stops_the_process() {
        check_handed_out(2, 9, &[entry(3), entry(5)]);
    }

    #[test]
    #[should_panic(expected = "I9: an entry is applied before")]
    fn i9_an_entry_that_is_applied_early_stops_the_process() {
        check_handed_out(2, 3, &[entry(3), entry(4)]);
    }
}

//! What a replica keeps on its disk, and the batches that change it.
//!
//! [`Kept`] is a disk's content as the replica sees it; [`Kept::absorb`] says what a [`Batch`]
//! makes of it. The store does the same to a file, the mirror to memory, and tests to a disk that
//! fails. What is restored from a disk is validated here before anything relies on it.
//!
//! A log begins behind its *base*, the last entry that was dropped; the snapshot stands for
//! everything up to its own place, which is the base or later. So a replica that is a little behind
//! gets entries, and only one that is far behind gets the snapshot.

// The derive does not carry the docs of fields over to the archived types.
#![allow(missing_docs)]

use std::collections::VecDeque;

use everstep_transport::protocol::Term;
use rkyv::{Archive, Deserialize, Serialize};

use super::members::{Members, ReplicaId};

/// Largest index and term: far enough below the largest number that nothing overflows.
pub(crate) const MAX_NUMBER: u64 = u64::MAX / 4;

/// Where an entry stands, and in which term it was proposed.
#[derive(
    Archive,
    Serialize,
    Deserialize,
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
)]
pub struct Place {
    /// The place, from 1, without gaps.
    pub index: u64,
    /// The term of its proposer.
    pub term: Term,
}

/// Who reads an entry.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The state machine; or nobody, if it is empty: a leader begins its term with such a one.
    Command,
    /// Raft: it changes who the members are.
    Members,
}

/// An entry of the log.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub place: Place,
    pub kind: Kind,
    pub bytes: Vec<u8>,
}

impl Entry {
    /// Whether it is for the state machine.
    pub(super) fn is_command(&self) -> bool {
        self.kind == Kind::Command && !self.bytes.is_empty()
    }
}

/// What Raft must not forget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// The newest term that was heard of.
    pub term: Term,
    /// For whom it voted in that term.
    pub vote: Option<ReplicaId>,
    /// Up to where the log is known to be agreed. May be older than what was known.
    pub commit: u64,
}

/// The state machine at a place of the log.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The last entry whose effect it holds; of index 0 on a disk to which nothing was sent yet.
    pub place: Place,
    /// The members at that place.
    pub members: Members,
    /// The state machine, encoded; none for one at its beginning.
    pub bytes: Vec<u8>,
}

/// What is to become durable together, in one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Counted from 1 since the replica was started; batches are written in this order.
    pub number: u64,
    /// Replaces the one before.
    pub hard_state: HardState,
    /// Replaces the one before, if any.
    pub snapshot: Option<Snapshot>,
    /// Where the log begins: what is not behind it goes. If the entry that stands there is not the
    /// one that is meant, the whole log goes.
    pub base: Place,
    /// To be appended; what stands at the first one's place and behind goes.
    pub entries: Vec<Entry>,
}

/// The content of a replica's disk. That of a new one is the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    pub hard_state: HardState,
    pub snapshot: Snapshot,
    /// The last entry that was dropped.
    pub base: Place,
    /// The log behind the base.
    pub entries: VecDeque<Entry>,
}

/// What a disk holds cannot be: somebody has changed it, or a program is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what is kept is contradictory: {0}")]
pub struct Unsound(&'static str);

impl Kept {
    /// The disk of a cluster's first replica. Its log begins behind place 1: whoever joins holds
    /// less, and so gets a snapshot first, which says who the members are.
    pub fn founded_by(id: ReplicaId) -> Self {
        let place = Place { index: 1, term: Term(1) };
        let members = Members { voters: vec![id], ..Members::default() };
        Self {
            hard_state: HardState { term: place.term, vote: None, commit: place.index },
            snapshot: Snapshot { place, members, bytes: Vec::new() },
            base: place,
            entries: VecDeque::new(),
        }
    }

    /// What is there when a batch is durable.
    pub fn absorb(&mut self, batch: &Batch) {
        self.hard_state = batch.hard_state;
        if batch.base != self.base {
            match self.term(batch.base.index) == Some(batch.base.term) {
                true => drop(self.entries.drain(..self.position(batch.base.index + 1))),
                false => self.entries.clear(),
            }
            self.base = batch.base;
        }
        if let Some(snapshot) = &batch.snapshot {
            self.snapshot = snapshot.clone();
        }
        if let Some(first) = batch.entries.first() {
            self.entries.truncate(self.position(first.place.index));
            self.entries.extend(batch.entries.iter().cloned());
        }
    }

    /// The last entry's place, or the base.
    pub fn last(&self) -> Place {
        self.entries.back().map_or(self.base, |entry| entry.place)
    }

    /// The term of the entry at a place, of the base too; none where the log does not reach.
    pub fn term(&self, index: u64) -> Option<Term> {
        if index == self.base.index {
            return Some(self.base.term);
        }
        let behind = index.checked_sub(self.base.index + 1)?;
        Some(self.entries.get(usize::try_from(behind).ok()?)?.place.term)
    }

    /// Where in `entries` an index is that is not before the base.
    pub(super) fn position(&self, index: u64) -> usize {
        usize::try_from(index - self.base.index - 1).expect("a log fits into memory")
    }

    /// Whether a replica may rely on it.
    ///
    /// # Errors
    /// [`Unsound`], with the first contradiction.
    pub fn validate(&self) -> Result<(), Unsound> {
        let Self { hard_state, snapshot, base, entries } = self;
        let check = |sound: bool, problem| if sound { Ok(()) } else { Err(Unsound(problem)) };
        let places = || entries.iter().map(|entry| entry.place);
        let last = self.last();
        check(last.index <= MAX_NUMBER && hard_state.term.0 <= MAX_NUMBER, "a number too large")?;
        check(places().map(|p| p.index).eq(base.index + 1..=last.index), "the log has a gap")?;
        check(
            base.term <= hard_state.term
                && places().all(|place| base.term <= place.term && place.term <= hard_state.term)
                && places().is_sorted_by_key(|place| place.term),
            "the log's terms fall",
        )?;
        check(
            self.term(snapshot.place.index) == Some(snapshot.place.term),
            "the snapshot is not of this log",
        )?;
        let commit = hard_state.commit;
        check(snapshot.place.index <= commit && commit <= last.index, "the commit is elsewhere")?;
        check((base.index == 0) == (base.term == Term(0)), "a base that cannot be")?;
        match snapshot.place.index {
            0 => check(
                *snapshot == Snapshot::default() && entries.is_empty(),
                "a log that begins nowhere",
            ),
            _ => check(snapshot.members.is_sound(), "members that cannot be"),
        }
    }
}

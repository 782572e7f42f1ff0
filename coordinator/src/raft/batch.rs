//! What a replica keeps on its disk, and the batches that change it.
//!
//! [`DurableState`] is a disk's content as the replica sees it. [`DurableState::absorb`] applies a
//! [`WriteBatch`] to it. The store does the same to a file, the memory storage to memory, and tests
//! to a disk that fails. The replica validates what it restores from a disk before it relies on it.
//!
//! A log begins behind its *base*, the last entry that the replica dropped. The snapshot stands for
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

/// Where an entry stands, and in which term a leader proposed it.
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
pub struct LogPosition {
    /// The index, from 1, without gaps.
    pub index: u64,
    /// The term of its proposer.
    pub term: Term,
}

/// The reader of an entry.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// The state machine reads it. An empty entry has no reader: a leader begins its term with one.
    Command,
    /// Raft reads it, because it changes the members.
    Members,
}

/// An entry of the log.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct RaftEntry {
    pub position: LogPosition,
    pub kind: EntryKind,
    pub bytes: Vec<u8>,
}

impl RaftEntry {
    /// Whether the state machine has to apply it.
    pub(crate) fn is_command(&self) -> bool {
        self.kind == EntryKind::Command && !self.bytes.is_empty()
    }
}

/// The numbers that Raft must not forget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// The newest term that this replica has heard of.
    pub term: Term,
    /// The replica that it voted for in that term.
    pub vote: Option<ReplicaId>,
    /// The index up to which the log is known to be agreed. It may be older than the known commit.
    pub commit: u64,
}

/// The state machine at a place of the log.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The last entry that the state includes. Index 0 on a disk without any log yet.
    pub position: LogPosition,
    /// The members at that place.
    pub members: Members,
    /// The encoded state machine. Empty if it is at its beginning.
    pub bytes: Vec<u8>,
}

/// What has to become durable together, in one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteBatch {
    /// Counts from 1 since the replica started. The store writes batches in this order.
    pub number: u64,
    /// The new hard state.
    pub hard_state: HardState,
    /// The new snapshot. None: the old one stays.
    pub snapshot: Option<Snapshot>,
    /// The new base of the log. The store drops the entries up to it. If the entry at this index
    /// has another term, the store drops the whole log.
    pub base: LogPosition,
    /// Entries to append. Older entries at the first one's index and behind it go.
    pub entries: Vec<RaftEntry>,
}

/// The content of a replica's disk. The default is that of a new disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DurableState {
    pub hard_state: HardState,
    pub snapshot: Snapshot,
    /// The last entry that the replica dropped.
    pub base: LogPosition,
    /// The log behind the base.
    pub entries: VecDeque<RaftEntry>,
}

/// The content of a disk is contradictory: another program has changed it, or this one is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what is kept is contradictory: {0}")]
pub struct CorruptState(&'static str);

impl DurableState {
    /// The disk of a cluster's first replica. Its log begins behind place 1. A joiner holds less,
    /// and so first gets a snapshot, which lists the members.
    pub fn founded_by(id: ReplicaId) -> Self {
        let position = LogPosition { index: 1, term: Term(1) };
        let members = Members { voters: vec![id], ..Members::default() };
        Self {
            hard_state: HardState { term: position.term, vote: None, commit: position.index },
            snapshot: Snapshot { position, members, bytes: Vec::new() },
            base: position,
            entries: VecDeque::new(),
        }
    }

    /// Applies a batch, as the disk does when the batch is durable.
    pub fn absorb(&mut self, batch: &WriteBatch) {
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
            self.entries.truncate(self.position(first.position.index));
            self.entries.extend(batch.entries.iter().cloned());
        }
    }

    /// The last entry's place. The base if there are no entries.
    pub fn last(&self) -> LogPosition {
        self.entries.back().map_or(self.base, |entry| entry.position)
    }

    /// The term of the entry at an index, also of the base. None where the log does not reach.
    pub fn term(&self, index: u64) -> Option<Term> {
        if index == self.base.index {
            return Some(self.base.term);
        }
        let behind = index.checked_sub(self.base.index + 1)?;
        Some(self.entries.get(usize::try_from(behind).ok()?)?.position.term)
    }

    /// The position in `entries` of an index behind the base.
    pub(super) fn position(&self, index: u64) -> usize {
        usize::try_from(index - self.base.index - 1).expect("a log fits into memory")
    }

    /// Whether a replica may rely on this content.
    ///
    /// # Errors
    /// [`CorruptState`], with the first contradiction.
    pub fn validate(&self) -> Result<(), CorruptState> {
        let Self { hard_state, snapshot, base, entries } = self;
        let check = |sound: bool, problem| if sound { Ok(()) } else { Err(CorruptState(problem)) };
        let places = || entries.iter().map(|entry| entry.position);
        let last = self.last();
        check(last.index <= MAX_NUMBER && hard_state.term.0 <= MAX_NUMBER, "a number too large")?;
        check(places().map(|p| p.index).eq(base.index + 1..=last.index), "the log has a gap")?;
        check(
            base.term <= hard_state.term
                && places()
                    .all(|position| base.term <= position.term && position.term <= hard_state.term)
                && places().is_sorted_by_key(|position| position.term),
            "the log's terms fall",
        )?;
        check(
            self.term(snapshot.position.index) == Some(snapshot.position.term),
            "the snapshot is not of this log",
        )?;
        let commit = hard_state.commit;
        check(
            snapshot.position.index <= commit && commit <= last.index,
            "the commit is elsewhere",
        )?;
        check((base.index == 0) == (base.term == Term(0)), "a base that cannot be")?;
        match snapshot.position.index {
            0 => check(
                *snapshot == Snapshot::default() && entries.is_empty(),
                "a log that begins nowhere",
            ),
            _ => check(snapshot.members.is_sound(), "members that cannot be"),
        }
    }
}

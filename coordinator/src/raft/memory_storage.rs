//! The disk's content in memory, where Raft reads it.
//!
//! It has what the disk will have when all batches are durable. Raft knows which batches are, and
//! reads the rest only to send it. Entries since the snapshot are few and small.

use std::cell::Cell;

use ::raft::eraftpb::{self, EntryType};
use ::raft::{Error, GetEntriesContext, RaftState, StorageError};
use everstep_transport::protocol::Term;

use super::batch::{
    DurableState, EntryKind, HardState, LogPosition, RaftEntry, Snapshot, WriteBatch,
};
use super::members::{Members, NO_REPLICA, ReplicaId};

pub(super) struct MemoryStorage {
    kept: DurableState,
    /// A replica needs a snapshot, and is no member in the current one. It would ignore that one.
    is_stale: Cell<bool>,
}

impl MemoryStorage {
    pub(super) fn new(kept: DurableState) -> Self {
        Self { kept, is_stale: Cell::new(false) }
    }

    pub(super) fn absorb(&mut self, batch: &WriteBatch) {
        self.kept.absorb(batch);
    }

    pub(super) fn kept(&self) -> &DurableState {
        &self.kept
    }

    /// Whether a replica has needed a newer snapshot since the last call.
    pub(super) fn lacks_a_snapshot(&self) -> bool {
        self.is_stale.take()
    }
}

impl ::raft::Storage for MemoryStorage {
    fn initial_state(&self) -> ::raft::Result<RaftState> {
        let DurableState { hard_state, snapshot, .. } = &self.kept;
        Ok(RaftState::new(hard_state.to_raft(), snapshot.members.to_raft()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> ::raft::Result<Vec<eraftpb::Entry>> {
        if low <= self.kept.base.index {
            return Err(Error::Store(StorageError::Compacted));
        }
        if high > self.kept.last().index + 1 {
            return Err(Error::Store(StorageError::Unavailable));
        }
        let most_bytes = max_size.into().unwrap_or(u64::MAX);
        let wanted = self.kept.entries.range(self.kept.position(low)..self.kept.position(high));
        let mut bytes = 0;
        let fits = |entry: &&RaftEntry| {
            let first = bytes == 0;
            bytes += entry.bytes.len() as u64 + ENTRY_OVERHEAD;
            first || bytes <= most_bytes
        };
        Ok(wanted.take_while(fits).map(RaftEntry::to_raft).collect())
    }

    fn term(&self, index: u64) -> ::raft::Result<u64> {
        match self.kept.term(index) {
            Some(term) => Ok(term.0),
            None if index < self.kept.base.index => Err(Error::Store(StorageError::Compacted)),
            None => Err(Error::Store(StorageError::Unavailable)),
        }
    }

    fn first_index(&self) -> ::raft::Result<u64> {
        Ok(self.kept.base.index + 1)
    }

    fn last_index(&self) -> ::raft::Result<u64> {
        Ok(self.kept.last().index)
    }

    fn snapshot(&self, _request_index: u64, to: u64) -> ::raft::Result<eraftpb::Snapshot> {
        if self.kept.snapshot.members.contain(ReplicaId(to)) {
            return Ok(self.kept.snapshot.to_raft());
        }
        self.is_stale.set(true);
        Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable))
    }
}

/// The bytes that an entry counts for besides its own.
const ENTRY_OVERHEAD: u64 = 24;

impl HardState {
    fn to_raft(self) -> eraftpb::HardState {
        eraftpb::HardState {
            term: self.term.0,
            vote: self.vote.unwrap_or(NO_REPLICA).0,
            commit: self.commit,
        }
    }

    pub(super) fn from_raft(state: &eraftpb::HardState) -> Self {
        let vote = ReplicaId(state.vote);
        Self {
            term: Term(state.term),
            vote: (vote != NO_REPLICA).then_some(vote),
            commit: state.commit,
        }
    }
}

impl RaftEntry {
    pub(super) fn to_raft(&self) -> eraftpb::Entry {
        let entry_type = match self.kind {
            EntryKind::Command => EntryType::EntryNormal,
            EntryKind::Members => EntryType::EntryConfChangeV2,
        };
        eraftpb::Entry {
            entry_type,
            index: self.position.index,
            term: self.position.term.0,
            data: self.bytes.clone().into(),
            ..eraftpb::Entry::default()
        }
    }

    pub(super) fn from_raft(entry: &eraftpb::Entry) -> Self {
        Self {
            position: LogPosition { index: entry.index, term: Term(entry.term) },
            kind: match entry.get_entry_type() {
                EntryType::EntryNormal => EntryKind::Command,
                EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => EntryKind::Members,
            },
            bytes: entry.data.to_vec(),
        }
    }
}

impl Snapshot {
    pub(super) fn to_raft(&self) -> eraftpb::Snapshot {
        let data = self.bytes.clone().into();
        let mut snapshot = eraftpb::Snapshot { data, ..eraftpb::Snapshot::default() };
        let metadata = snapshot.mut_metadata();
        metadata.index = self.position.index;
        metadata.term = self.position.term.0;
        metadata.set_conf_state(self.members.to_raft());
        snapshot
    }

    pub(super) fn from_raft(snapshot: &eraftpb::Snapshot) -> Self {
        let metadata = snapshot.get_metadata();
        Self {
            position: LogPosition { index: metadata.index, term: Term(metadata.term) },
            members: Members::from_raft(metadata.get_conf_state()),
            bytes: snapshot.data.to_vec(),
        }
    }
}

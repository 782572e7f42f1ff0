//! Reads that see everything that was agreed before they began.
//!
//! A leader notes its commit, hears from a majority that it still leads, and answers when it has
//! applied that much (ReadIndex; Ongaro's dissertation, 6.4). Raft does not promise an answer. This
//! module answers each ticket once, or reports it lost.

use std::collections::{BTreeMap, VecDeque};

use ::raft::ReadState;

/// Most reads that wait at a time.
const MAX_READS: usize = 1024;

/// Tickets without an answer.
#[derive(Default)]
pub(super) struct ReadTickets {
    /// The number of reads so far. Each read has a number of its own, whatever its ticket.
    asked: u64,
    /// Tickets by number, while this replica does not know yet whether it led.
    asking: BTreeMap<u64, u64>,
    /// The commit that a ticket saw. The ticket waits until the replica has applied that commit.
    known: VecDeque<(u64, u64)>,
}

impl ReadTickets {
    /// Takes a ticket. Returns the context to ask Raft with, or none if too many reads wait.
    pub(super) fn ask(&mut self, ticket: u64) -> Option<Vec<u8>> {
        if self.asking.len() + self.known.len() >= MAX_READS {
            return None;
        }
        self.asked += 1;
        self.asking.insert(self.asked, ticket);
        Some(self.asked.to_le_bytes().to_vec())
    }

    /// Raft confirms which commit a read saw.
    pub(super) fn confirm(&mut self, state: &ReadState) {
        let number = state.request_ctx.as_slice().try_into().map(u64::from_le_bytes);
        if let Some(ticket) = number.ok().and_then(|number| self.asking.remove(&number)) {
            self.known.push_back((state.index, ticket));
        }
    }

    /// The tickets that may be answered now, with the commits that they saw.
    pub(super) fn answered(&mut self, applied: u64) -> Vec<(u64, u64)> {
        if self.known.is_empty() {
            return Vec::new();
        }
        let (ready, rest) = self.known.drain(..).partition(|(index, _)| *index <= applied);
        self.known = rest;
        Vec::from_iter::<VecDeque<(u64, u64)>>(ready)
    }

    /// This replica no longer leads. The tickets that are still asking get no answer.
    pub(super) fn lose(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.asking).into_values().collect()
    }
}

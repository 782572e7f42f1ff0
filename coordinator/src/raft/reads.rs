//! Reads that see everything that was agreed before they began.
//!
//! A leader notes its commit, hears from a majority that it still leads, and answers when that much
//! is applied (ReadIndex; Ongaro's dissertation, 6.4). Whether an answer comes at all, Raft does
//! not say; here each ticket is answered once, or lost.

use std::collections::{BTreeMap, VecDeque};

use ::raft::ReadState;

/// Most reads that wait.
const MAX_READS: usize = 1024;

/// Tickets that are not answered.
#[derive(Default)]
pub(super) struct Reads {
    /// How many were asked: each has a number of its own, whatever its ticket.
    asked: u64,
    /// By number, those of which it is not known whether this replica led.
    asking: BTreeMap<u64, u64>,
    /// The commit that a ticket saw: it waits until that is applied.
    known: VecDeque<(u64, u64)>,
}

impl Reads {
    /// Takes a ticket; gives what to ask Raft with, unless too many wait.
    pub(super) fn ask(&mut self, ticket: u64) -> Option<Vec<u8>> {
        if self.asking.len() + self.known.len() >= MAX_READS {
            return None;
        }
        self.asked += 1;
        self.asking.insert(self.asked, ticket);
        Some(self.asked.to_le_bytes().to_vec())
    }

    /// A read is known to have seen a commit.
    pub(super) fn confirm(&mut self, state: &ReadState) {
        let number = state.request_ctx.as_slice().try_into().map(u64::from_le_bytes);
        if let Some(ticket) = number.ok().and_then(|number| self.asking.remove(&number)) {
            self.known.push_back((state.index, ticket));
        }
    }

    /// The tickets, and what they saw, whose time has come.
    pub(super) fn answered(&mut self, applied: u64) -> Vec<(u64, u64)> {
        let (ready, rest) = self.known.drain(..).partition(|(index, _)| *index <= applied);
        self.known = rest;
        Vec::from_iter::<VecDeque<(u64, u64)>>(ready)
    }

    /// This replica leads no more: what was asked, nobody answers.
    pub(super) fn lose(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.asking).into_values().collect()
    }
}

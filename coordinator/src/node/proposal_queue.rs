//! Proposals for which the log had no room. They wait here, in order, until it has.
//!
//! The log has room for the backlog of the disk and of the followers. This queue holds as much
//! again. The caller decides what a coordinator does when the queue is full, too.

use std::collections::VecDeque;

/// Most bytes that wait: as many as may be on their way through the log.
pub(super) const MAX_QUEUED_BYTES: usize = 16 << 20;

#[derive(Debug, Default)]
pub(super) struct ProposalQueue {
    entries: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl ProposalQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Appends an entry. Returns false if there was no room for it.
    pub(super) fn push(&mut self, entry: Vec<u8>) -> bool {
        let bytes = self.bytes + entry.len();
        let fits = bytes <= MAX_QUEUED_BYTES;
        if fits {
            self.bytes = bytes;
            self.entries.push_back(entry);
        }
        fits
    }

    /// Takes all of them. The queue is empty afterwards.
    pub(super) fn take(&mut self) -> VecDeque<Vec<u8>> {
        std::mem::take(self).entries
    }
}

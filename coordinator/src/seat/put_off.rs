//! Proposals for which the log had no room, in order, until it has.
//!
//! The log has room for what the disk and the others can be behind with; here may be as much again.
//! What becomes of a coordinator for which that is not enough, this module does not know.

use std::collections::VecDeque;

/// Most bytes that wait: as many as may be on their way through the log.
pub(super) const MOST_BYTES: usize = 16 << 20;

#[derive(Debug, Default)]
pub(super) struct PutOff {
    entries: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl PutOff {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether there was room for it.
    pub(super) fn push(&mut self, entry: Vec<u8>) -> bool {
        let bytes = self.bytes + entry.len();
        let fits = bytes <= MOST_BYTES;
        if fits {
            self.bytes = bytes;
            self.entries.push_back(entry);
        }
        fits
    }

    /// All of them; none is left.
    pub(super) fn take(&mut self) -> VecDeque<Vec<u8>> {
        std::mem::take(self).entries
    }
}

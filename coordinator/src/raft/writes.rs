//! Batches that are under way to the disk, and what waits for them.
//!
//! Raft's promises hold only once they are durable: a vote, an acknowledged entry. What says them
//! waits here, in order, until the disk has them.

use std::collections::VecDeque;

use super::Effect;

/// What is done when a batch is durable.
pub(super) struct Waiting {
    /// The batch.
    pub(super) batch: u64,
    /// Raft's own number, if it waits as well.
    pub(super) ready: Option<u64>,
    /// The term that the batch made durable.
    pub(super) term: u64,
    /// Up to where a snapshot in it stands for the log.
    pub(super) installed: Option<u64>,
    /// What may then be said and done.
    pub(super) effects: Vec<Effect>,
}

/// The batches so far.
pub(super) struct Writes {
    given: u64,
    durable: u64,
    term: u64,
    waiting: VecDeque<Waiting>,
}

impl Writes {
    /// None yet, on a disk that knows a term.
    pub(super) fn new(term: u64) -> Self {
        Self { given: 0, durable: 0, term, waiting: VecDeque::new() }
    }

    /// The newest term that is on the disk.
    pub(super) fn durable_term(&self) -> u64 {
        self.term
    }

    /// The number of the newest batch.
    pub(super) fn given(&self) -> u64 {
        self.given
    }

    /// The number of a new batch.
    pub(super) fn next(&mut self) -> u64 {
        self.given += 1;
        self.given
    }

    /// Whether a batch is not durable.
    pub(super) fn are_under_way(&self) -> bool {
        self.durable < self.given
    }

    /// Something waits for the newest batch, or for nothing if that is durable.
    pub(super) fn wait(&mut self, waiting: Waiting) {
        self.waiting.push_back(waiting);
    }

    /// A batch is durable, and so are all before.
    pub(super) fn persisted(&mut self, number: u64) {
        assert!(number <= self.given, "batch {number} of {}", self.given);
        self.durable = self.durable.max(number);
    }

    /// The next that need not wait any more.
    pub(super) fn released(&mut self) -> Option<Waiting> {
        let waiting = self.waiting.pop_front_if(|waiting| waiting.batch <= self.durable)?;
        self.term = waiting.term;
        Some(waiting)
    }
}

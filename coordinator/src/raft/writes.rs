//! Batches that are under way to the disk, and what waits for them.
//!
//! Raft's promises hold only once they are durable: a vote, an acknowledged entry. What says them
//! waits here, in order, until the disk has them.

use std::collections::VecDeque;

use super::{Effect, Message, Replica};

/// Most effects that wait for the disk: answers to what a leader says in some seconds.
const MAX_HELD: usize = 256;

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

impl Waiting {
    /// What comes behind it waits for the same batch.
    fn join(&mut self, next: Self) {
        self.ready = next.ready.or(self.ready); // Raft takes it for all before
        self.term = next.term;
        self.installed = next.installed.or(self.installed);
        self.effects.extend(next.effects);
    }
}

/// The batches so far.
pub(super) struct Writes {
    given: u64,
    durable: u64,
    term: u64,
    waiting: VecDeque<Waiting>,
    /// How many effects wait.
    held: usize,
}

impl Writes {
    /// None yet, on a disk that knows a term.
    pub(super) fn new(term: u64) -> Self {
        Self { given: 0, durable: 0, term, waiting: VecDeque::new(), held: 0 }
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
        self.held += waiting.effects.len();
        match self.waiting.back_mut().filter(|last| last.batch == waiting.batch) {
            Some(last) => last.join(waiting),
            None => self.waiting.push_back(waiting),
        }
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
        self.held -= waiting.effects.len();
        Some(waiting)
    }
}

impl Replica {
    pub(super) fn is_writing(&self) -> bool {
        self.writes.are_under_way()
    }

    /// Whether time-outs rest: none is elected meanwhile, and who was has nothing to say before its
    /// term is durable.
    pub(super) fn must_rest(&self) -> bool {
        !self.leads() && self.is_writing()
    }

    /// Whether a message is as good as lost: the disk stands still, and enough waits to be said
    /// when it goes on. What matters is said again; a snapshot is not, while its link lasts.
    pub(super) fn must_ignore(&self, message: &Message) -> bool {
        #[cfg(feature = "planted")]
        if self.plant == Some(super::plant::Plant::HoldEverything) {
            return false;
        }
        self.writes.held >= MAX_HELD && !message.is_snapshot()
    }
}

//! Batches that are under way to the disk, and the effects that wait for them.
//!
//! A vote or an acknowledged entry is a promise of Raft, which holds only once it is durable. The
//! effects that tell it wait here, in order, until the disk has it.

use std::collections::VecDeque;

use super::{Message, RaftEffect, Replica};

/// Most effects that wait for the disk: the answers to some seconds of a leader's messages.
const MAX_HELD: usize = 256;

/// What the replica does when a batch is durable.
pub(super) struct WaitingEffects {
    /// The number of the batch.
    pub(super) batch: u64,
    /// The number of Raft's `Ready`, if that waits as well.
    pub(super) ready: Option<u64>,
    /// The term that the batch makes durable.
    pub(super) term: u64,
    /// The index of the snapshot in it, if it has one.
    pub(super) installed: Option<u64>,
    /// The effects that may go out then.
    pub(super) effects: Vec<RaftEffect>,
}

impl WaitingEffects {
    /// Adds effects that wait for the same batch.
    fn join(&mut self, next: Self) {
        self.ready = next.ready.or(self.ready); // Raft takes it for all before
        self.term = next.term;
        self.installed = next.installed.or(self.installed);
        self.effects.extend(next.effects);
    }
}

/// The batches that the replica has given to the disk so far.
pub(super) struct BatchWrites {
    given: u64,
    durable: u64,
    term: u64,
    waiting: VecDeque<WaitingEffects>,
    /// The number of effects that wait.
    held: usize,
}

impl BatchWrites {
    /// No batch yet, on a disk that knows a term.
    pub(super) fn new(term: u64) -> Self {
        Self { given: 0, durable: 0, term, waiting: VecDeque::new(), held: 0 }
    }

    /// The newest term on the disk.
    pub(super) fn durable_term(&self) -> u64 {
        self.term
    }

    /// The number of the newest batch.
    pub(super) fn given(&self) -> u64 {
        self.given
    }

    /// Returns the number of a new batch.
    pub(super) fn next(&mut self) -> u64 {
        self.given += 1;
        self.given
    }

    /// Whether the disk still has a batch to write.
    pub(super) fn are_under_way(&self) -> bool {
        self.durable < self.given
    }

    /// Lets effects wait for the newest batch. They are due at once if that batch is durable.
    pub(super) fn wait(&mut self, waiting: WaitingEffects) {
        self.held += waiting.effects.len();
        match self.waiting.back_mut().filter(|last| last.batch == waiting.batch) {
            Some(last) => last.join(waiting),
            None => self.waiting.push_back(waiting),
        }
    }

    /// A batch and all before it are durable.
    pub(super) fn persisted(&mut self, number: u64) {
        assert!(number <= self.given, "batch {number} of {}", self.given);
        self.durable = self.durable.max(number);
    }

    /// The next effects that need not wait any more.
    pub(super) fn released(&mut self) -> Option<WaitingEffects> {
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

    /// Whether time-outs rest. No replica is elected during its own write, and an elected one must
    /// not speak before its term is durable.
    pub(super) fn must_rest(&self) -> bool {
        !self.leads() && self.is_writing()
    }

    /// Whether this replica drops a message as if it were lost, because the disk stands still and
    /// enough answers wait already. The sender repeats every message that matters, except a
    /// snapshot while its link lasts.
    pub(super) fn must_ignore(&self, message: &Message) -> bool {
        #[cfg(feature = "planted")]
        if self.plant == Some(super::plant::RaftPlant::HoldEverything) {
            return false;
        }
        self.writes.held >= MAX_HELD && !message.is_snapshot()
    }
}

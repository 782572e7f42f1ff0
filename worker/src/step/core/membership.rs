//! What the coordinators know a worker by: its id, its promise and its result.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use everstep_transport::protocol::outcome::WorkerResult;
use everstep_transport::protocol::{Generation, Term, WorkerId};

use crate::step::Promise;

/// A worker's place in the log. A worker that gives up its id gives up all of it.
#[derive(Debug, Default)]
pub(super) struct Membership {
    worker: Option<WorkerId>,
    /// The promised number, at least the generation's, and the term of the leader that asked for
    /// the last promise.
    promised: Promise,
    /// The result that the worker has reported at the end, in this generation.
    finished: Option<WorkerResult>,
}

impl Membership {
    /// The worker's id, once it is registered.
    pub fn worker(&self) -> Option<WorkerId> {
        self.worker
    }

    /// Whether this is the worker's id.
    pub fn is(&self, worker: WorkerId) -> bool {
        self.worker == Some(worker)
    }

    /// The coordinators have registered the worker. Returns whether that is news.
    pub fn registered(&mut self, worker: WorkerId) -> bool {
        self.worker.replace(worker).is_none()
    }

    /// The last promise, with the term of the leader that asked for it.
    pub fn promised(&self) -> Promise {
        self.promised
    }

    /// The number of the last promise, or of the record that has come since.
    pub fn generation(&self) -> Generation {
        self.promised.generation
    }

    /// Promises a generation to the leader of a term.
    ///
    /// # Panics
    /// If the promise falls (invariant I15).
    pub fn promise(&mut self, term: Term, number: Generation) {
        assert!(number >= self.promised.generation, "I15: promises never fall");
        self.promised = Promise { term, generation: number };
    }

    /// A record has come. Returns the number that was promised before. The record counts as a
    /// promise: the worker takes no older record from now on.
    ///
    /// # Panics
    /// If the promise falls (invariant I15).
    pub fn record(&mut self, number: Generation) -> Generation {
        let before = self.promised.generation;
        self.promise(self.promised.term, number);
        before
    }

    /// A generation begins, for a member or a joiner.
    pub fn begin_generation(&mut self) {
        self.finished = None;
    }

    /// The result that the worker has reported in this generation.
    pub fn finished(&self) -> Option<&WorkerResult> {
        self.finished.as_ref()
    }

    /// The worker reports its result.
    pub fn finish(&mut self, result: WorkerResult) {
        self.finished = Some(result);
    }
}

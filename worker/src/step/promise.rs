//! A worker's promise to a leader.

use everstep_transport::protocol::{Generation, Term};

/// A worker's promise to take part in no generation before this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Promise {
    /// The term of the leader that asked for the promise.
    pub term: Term,
    /// The first generation in which the worker may take part.
    pub generation: Generation,
}

//! What is going to happen, in the order of virtual time.

use std::collections::BTreeMap;

use everstep_transport::time::Time;

/// Happenings to come. Of those at one moment, the first that was put in comes out first.
#[derive(Debug)]
pub struct Queue<T> {
    sequence: u64,
    to_come: BTreeMap<(Time, u64), T>,
}

impl<T> Queue<T> {
    /// Nothing is going to happen.
    pub fn new() -> Self {
        Self { sequence: 0, to_come: BTreeMap::new() }
    }

    /// At `at`, this will happen.
    pub fn put(&mut self, at: Time, what: T) {
        self.sequence += 1;
        self.to_come.insert((at, self.sequence), what);
    }

    /// What happens next, and when.
    pub fn pop(&mut self) -> Option<(Time, T)> {
        self.to_come.pop_first().map(|((at, _), what)| (at, what))
    }
}

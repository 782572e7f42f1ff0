//! What waits for this coordinator's disk, and for how long.
//!
//! A replica applies what is durable on its own disk, too: one whose disk stands still can answer
//! nothing, though others agree with it. Whether theirs are any faster, this module does not know.

use std::collections::VecDeque;
use std::time::Duration;

use everstep_transport::time::Time;

use super::Seat;

/// A disk that takes this long for one batch stands still: a hundred times what one takes that
/// has other work.
const STANDSTILL: Duration = Duration::from_millis(250);

/// The batches that were given to the disk and are not durable yet, in order.
#[derive(Debug, Default)]
pub(super) struct Writes {
    waiting: VecDeque<(u64, Time)>,
}

impl Writes {
    pub(super) fn given(&mut self, now: Time, number: u64) {
        self.waiting.push_back((number, now));
    }

    /// This batch is durable, and so are all before it.
    pub(super) fn durable(&mut self, number: u64) {
        while self.waiting.pop_front_if(|(waiting, _)| *waiting <= number).is_some() {}
    }

    pub(super) fn stand_still(&self, now: Time) -> bool {
        self.waiting.front().is_some_and(|(_, since)| now.since(*since) >= STANDSTILL)
    }
}

impl Seat {
    pub(super) fn persisted(&mut self, number: u64) {
        self.writes.durable(number);
        self.replica.persisted(number);
    }
}

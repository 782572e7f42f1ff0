//! The batches that this coordinator's disk has not written yet, and for how long they wait.
//!
//! A replica applies only entries that are durable on its own disk. So a leader with a disk that
//! stands still can answer no request, though the others agree with it. This module does not know
//! whether the other disks are any faster.

use std::collections::VecDeque;
use std::time::Duration;

use everstep_transport::time::Time;

use super::Node;

/// A disk that takes this long for one batch stands still. A busy disk takes a hundredth of it.
const DISK_STALLED_AFTER: Duration = Duration::from_millis(250);

/// The batches that the disk has taken and not made durable yet, in order.
#[derive(Debug, Default)]
pub(super) struct DiskWrites {
    waiting: VecDeque<(u64, Time)>,
}

impl DiskWrites {
    pub(super) fn given(&mut self, now: Time, number: u64) {
        self.waiting.push_back((number, now));
    }

    /// This batch and all before it are durable.
    pub(super) fn durable(&mut self, number: u64) {
        while self.waiting.pop_front_if(|(waiting, _)| *waiting <= number).is_some() {}
    }

    pub(super) fn stand_still(&self, now: Time) -> bool {
        self.waiting.front().is_some_and(|(_, since)| now.since(*since) >= DISK_STALLED_AFTER)
    }
}

impl Node {
    pub(super) fn persisted(&mut self, number: u64) {
        self.writes.durable(number);
        self.replica.persisted(number);
    }
}

//! Who has not been heard for too long.
//!
//! A coordinator that was itself late (paused, starved, its messages still in a queue) cannot tell
//! its own silence from theirs: then everyone gets a fresh deadline.

use std::collections::BTreeMap;
use std::time::Duration;

use everstep_transport::protocol::WorkerId;
use everstep_transport::time::Time;

use super::TICK;

/// A registered worker that says nothing for this long is lost.
pub(super) const PATIENCE: Duration = Duration::from_millis(2_500);
/// A tick that is later than this makes all deadlines anew.
const LATE: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Silence {
    heard: BTreeMap<WorkerId, Time>,
    ticked: Time,
}

impl Silence {
    pub(super) fn new(now: Time) -> Self {
        Self { heard: BTreeMap::new(), ticked: now }
    }

    /// The worker lives; from its first sign on it is listened for.
    pub(super) fn heard(&mut self, now: Time, worker: WorkerId) {
        self.heard.insert(worker, now);
    }

    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.heard.remove(&worker);
    }

    pub(super) fn forget_all(&mut self) {
        self.heard.clear();
    }

    /// The workers whose deadline has passed, by id.
    pub(super) fn tick(&mut self, now: Time) -> Vec<WorkerId> {
        if now.since(self.ticked) > TICK + LATE {
            self.heard.values_mut().for_each(|heard| *heard = now);
        }
        self.ticked = now;
        let silent = self.heard.iter().filter(|(_, heard)| now.since(**heard) >= PATIENCE);
        silent.map(|(&worker, _)| worker).collect()
    }
}

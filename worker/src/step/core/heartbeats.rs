//! When a worker sends a heartbeat, and what the leader has heard by the last one.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::time::Duration;

use everstep_transport::time::Time;

/// The interval of a worker's heartbeats.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(250);
/// The least time between heartbeats that are sent early because they carry news.
const EARLY_HEARTBEAT_INTERVAL: Duration = Duration::from_millis(25);

/// How far a worker is with a planned change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Readiness {
    /// Its last commit holds, and it has done all that follows from it.
    pub held: bool,
    /// It has synced all that the members feed it, and can reach every member.
    pub ready: bool,
}

/// The heartbeats of a worker.
#[derive(Debug, Default)]
pub(super) struct Heartbeats {
    sent_at: Time,
    /// The leader has not answered the last heartbeat. News waits for the answer then, or each
    /// repetition would join the ones that a silent leader has yet to read.
    awaits_answer: bool,
    /// What the last heartbeat of this generation said.
    reported: Readiness,
    /// The leader lacks metrics lines, and asks every member for the lines that it has.
    lacks_lines: bool,
}

impl Heartbeats {
    /// A heartbeat goes out.
    pub fn sent(&mut self, now: Time, readiness: Readiness) {
        (self.sent_at, self.reported, self.awaits_answer) = (now, readiness, true);
    }

    /// Whether the next heartbeat is due.
    pub fn is_due(&self, now: Time) -> bool {
        now.since(self.sent_at) >= HEARTBEAT_INTERVAL
    }

    /// Whether the leader waits for this news, so that a heartbeat goes out early: that the worker
    /// holds, that it is ready, or `last_lines`. The last lines are repeated until they are on the
    /// leader's disk.
    pub fn is_due_early(&self, now: Time, readiness: Readiness, last_lines: bool) -> bool {
        let often = readiness.ready && !self.reported.ready || last_lines;
        let due = now.since(self.sent_at) >= EARLY_HEARTBEAT_INTERVAL && !self.awaits_answer;
        readiness.held && !self.reported.held || often && due
    }

    /// A generation begins: the leader has heard nothing of it.
    pub fn begin_generation(&mut self) {
        self.reported = Readiness::default();
    }

    /// The leader has answered, and says whether it lacks lines.
    pub fn answered(&mut self, lacks_lines: bool) {
        (self.lacks_lines, self.awaits_answer) = (lacks_lines, false);
    }

    /// Whether the leader asks every member for the lines that it has.
    pub fn lacks_lines(&self) -> bool {
        self.lacks_lines
    }

    /// The worker gives up its id. Its clock goes on.
    pub fn forget(&mut self) {
        *self = Self { sent_at: self.sent_at, ..Self::default() };
    }
}

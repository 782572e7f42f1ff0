//! Judges the course of things: whether a loss has its fault (I8), and whether anything goes on
//! (I11).

use std::time::Duration;

use everstep_transport::protocol::WorkerId;
use everstep_transport::time::Time;

use super::endure::DECLARED;
use crate::check::{Invariant, Violation};
use crate::fault::Fault;

/// So soon after an interruption another one adds to it, and both together may be too long: not all
/// have spoken in between.
const BREATH: Duration = Duration::from_millis(1_000);

/// What has gone wrong, and when something last went on.
#[derive(Debug, Default)]
pub struct Course {
    /// A schedule of faults is being endured, and every loss has to be somebody's fault.
    judging: bool,
    /// When the newest fault began.
    struck: Time,
    /// When the last interruption ends.
    interrupted_until: Time,
    /// Until when a run may fail.
    excused_until: Time,
    progress: Time,
}

impl Course {
    /// From now on every loss has to be somebody's fault.
    pub fn judge(&mut self) {
        self.judging = true;
    }

    /// Something went on.
    pub fn progress(&mut self, now: Time) {
        self.progress = now;
    }

    /// A fault begins.
    pub fn strike(&mut self, now: Time, fault: &Fault) {
        self.struck = now;
        let end = now + fault.outage();
        let adds = fault.outage() > Duration::ZERO && now < self.interrupted_until + BREATH;
        if fault.outage() > Duration::ZERO {
            self.interrupted_until = self.interrupted_until.max(end);
        }
        // A bit that will flip does so later; it excuses when it has.
        let flips = matches!(fault, Fault::Flip { .. });
        if !flips && (fault.is_fatal() || adds) {
            let until = self.interrupted_until.max(end) + DECLARED;
            self.excused_until = self.excused_until.max(until);
        }
    }

    /// Memory was corrupted now.
    pub fn corrupted(&mut self, now: Time) {
        self.struck = now;
        self.excused_until = self.excused_until.max(now + DECLARED);
    }

    /// Whether a run that fails at `now` may.
    ///
    /// # Errors
    /// I8, if no fault explains it.
    pub fn judge_failure(&self, now: Time, reason: &str) -> Result<(), Violation> {
        if !self.judging || now <= self.excused_until {
            return Ok(());
        }
        let seen = format!("the run failed, and no fault explains it: {reason}");
        Err(Violation { invariant: Invariant::I8, at: now, seen })
    }

    /// Whether a worker that is lost at `now` may be.
    ///
    /// # Errors
    /// I8, if no fault explains it.
    pub fn judge_loss(&self, now: Time, who: WorkerId, reason: &str) -> Result<(), Violation> {
        self.judge_failure(now, &format!("worker {who} was lost: {reason}"))
    }

    /// Whether a cluster that began at `began`, and never got to its first step, had a reason.
    ///
    /// # Errors
    /// I11, if it had none.
    pub fn judge_start(&self, now: Time, began: Time) -> Result<(), Violation> {
        if self.excused_until >= began {
            return Ok(());
        }
        let seen = format!("a cluster that was started at {} ms never began", began.0 / 1_000_000);
        Err(Violation { invariant: Invariant::I11, at: now, seen })
    }

    /// Since when nothing has gone on, nor gone wrong.
    pub fn quiet_since(&self) -> Time {
        self.progress.max(self.struck)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::Node;

    fn second(number: u64) -> Time {
        Time(0) + Duration::from_secs(number)
    }

    fn pause(ms: u64) -> Fault {
        Fault::Pause { node: Node::Coordinator, span: Duration::from_millis(ms) }
    }

    /// A course on which these pauses began, and whether a run may fail at `now`.
    fn excuses(pauses: &[(u64, u64)], now: Time) -> bool {
        let mut course = Course::default();
        course.judge();
        for (at, ms) in pauses {
            course.strike(second(*at), &pause(*ms));
        }
        let judged = course.judge_failure(now, "for no reason");
        judged.map_err(|violation| assert_eq!(violation.invariant, Invariant::I8)).is_ok()
    }

    #[test]
    fn i8_what_must_be_borne_excuses_nothing_unless_two_come_together() {
        assert!(!excuses(&[(1, 1_400)], second(3)));
        assert!(excuses(&[(1, 1_600)], second(3)));
        assert!(!excuses(&[(1, 1_600)], second(10)));
        assert!(excuses(&[(1, 1_400), (2, 1_400)], second(5)));
        assert!(!excuses(&[(1, 1_400), (9, 1_400)], second(11)));
    }

    #[test]
    fn i11_a_cluster_that_never_begins_needs_a_reason() {
        let mut course = Course::default();
        course.strike(second(20), &pause(9_000));
        assert!(course.judge_start(second(35), second(25)).is_ok());
        let judged = course.judge_start(second(60), second(50));
        assert_eq!(judged.expect_err("long over").invariant, Invariant::I11);
    }
}

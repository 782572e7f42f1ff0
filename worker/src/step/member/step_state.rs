//! Whether steps go on: hold before a planned change, wait, and promise.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::time::Duration;

use everstep_transport::protocol::{Message, Step, WorkerId};
use everstep_transport::time::Time;

use super::Member;

/// A step leader that holds goes on if no Pause arrives for so long.
const HOLD_TIMEOUT: Duration = Duration::from_secs(1);

/// How a member's generation goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StepState {
    /// The member computes, votes and applies one step after the other.
    Stepping,
    /// The last commit holds: no member computes.
    Holding { since: Time },
    /// The generation starts no step.
    Waiting,
    /// The worker has promised a newer generation: it sends and takes nothing of this one.
    Promised,
}

/// Whether this member goes on, and whether its next commit lets all members go on.
#[derive(Debug)]
pub(super) struct StepControl {
    state: StepState,
    /// The next commit shall hold.
    holds_next: bool,
}

impl StepControl {
    /// A generation begins, which may be one that waits.
    pub fn new(waits: bool) -> Self {
        let state = if waits { StepState::Waiting } else { StepState::Stepping };
        Self { state, holds_next: false }
    }

    /// Whether the worker has promised a newer generation.
    pub fn is_promised(&self) -> bool {
        self.state == StepState::Promised
    }

    /// Whether the last commit holds.
    pub fn is_holding(&self) -> bool {
        matches!(self.state, StepState::Holding { .. })
    }

    /// Whether no member votes in this generation any more, or ever.
    pub fn is_at_rest(&self) -> bool {
        matches!(self.state, StepState::Promised | StepState::Waiting)
    }

    /// Whether the next commit shall hold.
    pub fn holds_next(&self) -> bool {
        self.holds_next
    }

    /// A step has committed. The commit may hold.
    pub fn committed(&mut self, now: Time, holds: bool) {
        self.holds_next = false;
        if holds {
            self.state = StepState::Holding { since: now };
        }
    }

    /// The leader asks to hold. If the last commit holds already, the time to hold begins again.
    fn hold(&mut self, now: Time) {
        match &mut self.state {
            StepState::Holding { since } => *since = now,
            StepState::Stepping | StepState::Waiting | StepState::Promised => {
                self.holds_next = true;
            }
        }
    }

    /// Whether the last commit has held for too long.
    fn is_overdue(&self, now: Time) -> bool {
        match self.state {
            StepState::Holding { since } => now.since(since) >= HOLD_TIMEOUT,
            StepState::Stepping | StepState::Waiting | StepState::Promised => false,
        }
    }
}

impl Member {
    /// The worker has promised a newer generation. The device continues with its jobs.
    pub fn promise(&mut self) {
        self.control.state = StepState::Promised;
    }

    /// The leader asks to hold. If this member is the step leader, its next commit holds. If the
    /// last commit holds already, the time to hold begins again.
    pub fn hold(&mut self, now: Time) {
        if self.plan.is_step_leader() {
            self.control.hold(now);
        } else {
            self.refuse();
        }
    }

    /// Time passes. A member that catches up stops waiting for an owner that does not answer. A
    /// step leader that holds goes on if no Pause has arrived.
    pub fn tick(&mut self, now: Time) {
        self.with_catch_up(|catch_up, context| catch_up.tick(now, context));
        if self.plan.is_step_leader() && self.control.is_overdue(now) {
            let (generation, step) = (self.plan.generation(), self.step());
            let others: Vec<_> = self.plan.others().collect();
            for to in others {
                self.send(to, Message::Go { generation, step });
            }
            self.resume();
            self.advance(now);
        }
    }

    /// The step leader goes on.
    pub(super) fn go(&mut self, from: WorkerId, step: Step) {
        let leader = from == self.plan.record().step_leader();
        if self.control.is_holding() && leader && step == self.step() {
            self.resume();
        } else {
            self.refuse();
        }
    }

    fn resume(&mut self) {
        self.control.state = StepState::Stepping;
        self.begin_compute();
    }
}

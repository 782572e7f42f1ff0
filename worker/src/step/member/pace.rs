//! Whether steps go on: hold before a planned change, wait, and promise.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::time::Duration;

use everstep_transport::protocol::{Message, Step, WorkerId};
use everstep_transport::time::Time;

use super::Member;

/// A step leader that holds goes on if no Pause arrives for so long.
const HOLD: Duration = Duration::from_secs(1);

/// How a member's generation goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// Step after step.
    Stepping,
    /// The last commit holds: no member computes.
    Holding { since: Time },
    /// The generation starts no step.
    Waiting,
    /// The worker has promised a newer generation: it sends and takes nothing of this one.
    Promised,
}

impl Pace {
    pub fn is_promised(self) -> bool {
        self == Self::Promised
    }

    pub fn is_holding(self) -> bool {
        matches!(self, Self::Holding { .. })
    }
}

impl Member {
    /// The worker has promised a newer generation. The device continues with its jobs.
    pub fn promise(&mut self) {
        self.pace = Pace::Promised;
    }

    /// The leader asks to hold. If this member is the step leader, its next commit holds. If the
    /// last commit holds already, the time to hold begins again.
    pub fn hold(&mut self, now: Time) {
        match &mut self.pace {
            _ if !self.plan.leads() => self.refuse(),
            Pace::Holding { since } => *since = now,
            Pace::Stepping | Pace::Waiting | Pace::Promised => self.hold = true,
        }
    }

    /// Time passes. A member that learns stops waiting for an owner that does not answer. A step
    /// leader that holds goes on if no Pause has arrived.
    pub fn tick(&mut self, now: Time) {
        self.learn_with(|learning, scene| learning.tick(now, scene));
        let Pace::Holding { since } = self.pace else { return };
        if self.plan.leads() && now.since(since) >= HOLD {
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
        match self.pace {
            Pace::Holding { .. } if leader && step == self.step() => self.resume(),
            _ => self.refuse(),
        }
    }

    fn resume(&mut self) {
        self.pace = Pace::Stepping;
        self.begin_compute();
    }
}

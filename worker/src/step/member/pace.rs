//! Whether steps go on: holding before a planned change, waiting, and promising.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::time::Duration;

use everstep_transport::protocol::{Message, Step, WorkerId};
use everstep_transport::time::Time;

use super::Member;

/// How long a step leader holds without a Pause before it goes on.
const HOLD: Duration = Duration::from_secs(1);

/// How a member's generation goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// Step after step.
    Stepping,
    /// The last commit holds: nobody computes.
    Holding { since: Time },
    /// The generation starts no step.
    Waiting,
    /// A newer generation is promised: nothing of this one is said or taken.
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
    /// The worker has promised a newer generation. The device goes on with what it was given.
    pub fn promise(&mut self) {
        self.pace = Pace::Promised;
    }

    /// The next commit is to hold, if this member is the step leader; if the last one does, it
    /// holds for as long again.
    pub fn hold(&mut self, now: Time) {
        match &mut self.pace {
            _ if !self.plan.leads() => self.refuse(),
            Pace::Holding { since } => *since = now,
            Pace::Stepping | Pace::Waiting | Pace::Promised => self.hold = true,
        }
    }

    /// Time passes: an owner that does not answer is asked no more, and a step leader whose hold
    /// nobody followed up goes on.
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

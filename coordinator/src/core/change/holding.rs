//! The quiet boundary before a planned change: the step under way comes to its end first.

use std::collections::BTreeSet;
use std::time::Duration;

use everstep_transport::protocol::{Message, WorkerId};
use everstep_transport::time::Time;

use super::super::Core;
use super::ChangePhase;

/// A step leader that holds goes on by itself after this long. The coordinator waits as long for
/// its next commit, or longer where steps are longer.
const STEP_LEADER_HOLD_TIME: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(in crate::core) struct Holding {
    since: Time,
    /// When the leader last asked the step leader.
    asked: Time,
    /// When the first member was done with its step. `None` while no member is.
    first: Option<Time>,
    done: BTreeSet<WorkerId>,
}

impl Holding {
    fn new(now: Time) -> Self {
        Self { since: now, asked: now, first: None, done: BTreeSet::new() }
    }

    /// A member waits at the end of its step. Returns how many do.
    fn note_done(&mut self, now: Time, worker: WorkerId) -> usize {
        self.first.get_or_insert(now);
        self.done.insert(worker);
        self.done.len()
    }

    /// Whether the leader waits no longer for the other members. `steps` is how long a few steps
    /// take.
    fn is_overdue(&self, now: Time, steps: Duration) -> bool {
        match self.first {
            Some(first) => now.since(first) >= STEP_LEADER_HOLD_TIME,
            None => now.since(self.since) >= STEP_LEADER_HOLD_TIME.max(steps),
        }
    }

    /// Whether it is time to ask the step leader again. Each time is reported once.
    fn repeats(&mut self, now: Time) -> bool {
        let is_due = now.since(self.asked) >= STEP_LEADER_HOLD_TIME;
        if is_due {
            self.asked = now;
        }
        is_due
    }
}

impl Core {
    pub(super) fn hold(&mut self, now: Time) {
        self.change.phase = ChangePhase::Holding(Holding::new(now));
        self.ask_to_hold();
    }

    /// The step leader holds at its next commit, for a second. Each repetition adds another second.
    pub(super) fn ask_to_hold(&mut self) {
        let (Some(term), Some(record)) = (self.leader(), self.state.record()) else { return };
        if let Some(link) = self.links.of_registered(record.step_leader()) {
            let generation = self.state.generation();
            self.outbox.send(link, Message::Hold { term, generation });
        }
    }

    /// A member waits at the end of its step.
    pub(in crate::core) fn holds(&mut self, now: Time, worker: WorkerId) {
        let over = self.is_over();
        if let ChangePhase::Holding(holding) = &mut self.change.phase
            && holding.note_done(now, worker) == self.state.members().count()
            && !over
        {
            self.pause(now);
        }
    }

    pub(super) fn keep_holding(&mut self, now: Time) {
        let over = self.is_over();
        let steps = Duration::try_from_secs_f64(3.0 * self.lines.pace()).unwrap_or_default();
        let ChangePhase::Holding(holding) = &mut self.change.phase else { return };
        if over {
            self.change.phase = ChangePhase::Steady;
        } else if holding.is_overdue(now, steps) {
            self.pause(now);
        } else if holding.repeats(now) {
            self.ask_to_hold();
        }
    }
}

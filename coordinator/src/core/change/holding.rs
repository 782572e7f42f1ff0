//! The quiet boundary before a planned change: the step under way comes to its end first.

use std::collections::BTreeSet;
use std::time::Duration;

use everstep_transport::protocol::{Message, WorkerId};
use everstep_transport::time::Time;

use super::super::Core;
use super::Phase;

/// A step leader that holds goes on by itself after this long. The coordinator waits as long for
/// its next commit, or longer where steps are longer.
const HOLD: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(in crate::core) struct Holding {
    since: Time,
    /// When the leader last asked the step leader.
    asked: Time,
    /// When the first member was done with its step. `None` while no member is.
    first: Option<Time>,
    done: BTreeSet<WorkerId>,
}

impl Core {
    pub(super) fn hold(&mut self, now: Time) {
        self.phase =
            Phase::Holding(Holding { since: now, asked: now, first: None, done: BTreeSet::new() });
        self.ask_to_hold();
    }

    /// The step leader holds at its next commit, for a second. Each repetition adds another second.
    pub(super) fn ask_to_hold(&mut self) {
        let (Some(term), Some(record)) = (self.leader(), self.state.record()) else { return };
        if let Some(link) = self.links.of_registered(record.step_leader()) {
            self.send(link, Message::Hold { term, generation: self.state.generation() });
        }
    }

    /// A member waits at the end of its step.
    pub(in crate::core) fn holds(&mut self, now: Time, worker: WorkerId) {
        let members = self.state.record().map_or(0, |record| record.members.len());
        let over = self.is_over();
        if let Phase::Holding(holding) = &mut self.phase {
            holding.first.get_or_insert(now);
            holding.done.insert(worker);
            if holding.done.len() == members && !over {
                self.pause(now);
            }
        }
    }

    pub(super) fn keep_holding(&mut self, now: Time) {
        let over = self.is_over();
        let step = Duration::try_from_secs_f64(3.0 * self.lines.pace()).unwrap_or_default();
        let Phase::Holding(holding) = &mut self.phase else { return };
        let overdue = match holding.first {
            Some(first) => now.since(first) >= HOLD,
            None => now.since(holding.since) >= HOLD.max(step),
        };
        if over {
            self.phase = Phase::Steady;
        } else if overdue {
            self.pause(now);
        } else if now.since(holding.asked) >= HOLD {
            holding.asked = now;
            self.ask_to_hold();
        }
    }
}

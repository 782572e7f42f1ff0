//! Who submits the run and watches it, as the launcher does.

use std::time::Duration;

use everstep_transport::protocol::outcome::Outcome;
use everstep_transport::protocol::{Message, MetricsLine, Step};

use super::types::Happening;
use super::{Node, World};
use crate::check::{Observation, Violation};

/// Between an answer and the next question.
const PAUSE: Duration = Duration::from_millis(100);

/// What a watcher knows.
#[derive(Debug)]
pub struct Operator {
    submitted: bool,
    lines: Vec<MetricsLine>,
    /// The number of the newest event.
    event: u64,
    outcome: Outcome,
}

impl Default for Operator {
    fn default() -> Self {
        Self { submitted: false, lines: Vec::new(), event: 0, outcome: Outcome::Running }
    }
}

impl Operator {
    /// How the run stands, as far as was told.
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// All lines that were told.
    pub fn lines(&self) -> &[MetricsLine] {
        &self.lines
    }

    /// The run has failed, whatever the coordinator says; a complete one stays complete.
    pub fn give_up(&mut self, reason: String) {
        if self.outcome == Outcome::Running {
            self.outcome = Outcome::Failed { name: None, reason };
        }
    }
}

impl World {
    /// Asks what is new; first of all submits the run.
    pub(super) fn watch(&mut self) {
        if !std::mem::replace(&mut self.operator.submitted, true) {
            let run = self.scenario.run.clone();
            self.say(Node::Operator, Node::Coordinator, Message::Submit(run));
        }
        let step = self.operator.lines.last().map_or(Step(0), |line| line.step);
        let watch = Message::Watch { step, event: self.operator.event };
        self.say(Node::Operator, Node::Coordinator, watch);
    }

    pub(super) fn told(&mut self, message: Message) -> Result<(), Violation> {
        match message {
            Message::Update(update) => {
                for line in update.lines {
                    self.observe(Observation::Written(&line))?;
                    self.operator.lines.push(line);
                }
                self.operator.event += update.events.len() as u64;
                self.operator.outcome = update.outcome;
                self.queue.put(self.now + PAUSE, Happening::Watch);
            }
            Message::Refused { reason } => self.operator.give_up(reason),
            _ => {}
        }
        Ok(())
    }
}

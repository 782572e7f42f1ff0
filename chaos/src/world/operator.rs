//! Who submits the run and watches it, as the launcher does.

use std::time::Duration;

use everstep_transport::protocol::outcome::{EventKind, Outcome, Update};
use everstep_transport::protocol::{Message, MetricsLine, Step};

use super::types::Happening;
use super::{Node, World};
use crate::check::{Observation, Violation};

/// Between an answer and the next question.
const PAUSE: Duration = Duration::from_millis(100);

/// What a watcher knows.
#[derive(Debug)]
pub struct Operator {
    /// The log has the run.
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

    /// All lines that were told, and not taken back.
    pub fn lines(&self) -> &[MetricsLine] {
        &self.lines
    }
}

impl World {
    /// Asks what is new on this link; submits the run until that has come to something.
    pub(super) fn watch(&mut self, link: u64) {
        if self.links.number(Node::Operator, Node::Coordinator) != Some(link) {
            return;
        }
        if !self.operator.submitted {
            let run = self.scenario.run.clone();
            self.say(Node::Operator, Node::Coordinator, Message::Submit(run));
        }
        let step = self.operator.lines.last().map_or(Step(0), |line| line.step);
        let watch = Message::Watch { step, event: self.operator.event };
        self.say(Node::Operator, Node::Coordinator, watch);
    }

    pub(super) fn told(&mut self, message: Message) -> Result<(), Violation> {
        match message {
            Message::Update(update) => self.updated(update),
            Message::Refused { reason } => {
                // A worker that it asked to leave has left, or the run is over.
                self.note(format_args!("the operator is refused: {reason}"));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Lines that come with the news that the run went back may be of what is void: it asks again,
    /// and believes no end until then.
    fn updated(&mut self, update: Update) -> Result<(), Violation> {
        let mut back = None;
        for event in &update.events {
            self.observe(Observation::Told(event))?;
            match event.kind {
                EventKind::Submitted { .. } => self.operator.submitted = true,
                EventKind::Rollback { to, .. } => {
                    back = Some(back.map_or(to, |before: Step| before.min(to)));
                }
                _ => {}
            }
        }
        self.operator.event += update.events.len() as u64;
        if let Some(Step(to)) = back {
            self.operator.lines.truncate(to as usize);
        } else {
            for line in update.lines {
                self.observe(Observation::Written(&line))?;
                self.operator.lines.push(line);
            }
            self.operator.outcome = update.outcome;
        }
        if let Some(link) = self.links.number(Node::Operator, Node::Coordinator) {
            self.queue.put(self.now + PAUSE, Happening::Watch(link));
        }
        Ok(())
    }
}

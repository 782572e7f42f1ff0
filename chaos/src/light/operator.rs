//! The operator that submits the run and watches it.

use std::time::Duration;

use everstep_coordinator::core::Input;
use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::outcome::Outcome;
use everstep_transport::protocol::{Message, NodeName, RequestId, Step, Wish};

use super::{Crowd, Failure, Happening, Lane, OPERATOR};

/// The pause between an answer and the next question.
const PAUSE: Duration = Duration::from_millis(20);

/// What the operator has received.
pub(super) struct Operator {
    line: Step,
    event: u64,
    outcome: Outcome,
}

impl Default for Operator {
    fn default() -> Self {
        Self { line: Step(0), event: 0, outcome: Outcome::Running }
    }
}

impl Operator {
    pub(super) fn outcome(&self) -> &Outcome {
        &self.outcome
    }
}

impl Crowd {
    pub(super) fn connect_operator(&mut self) {
        let name = NodeName::parse("operator").expect("a valid name");
        let identity = Identity { role: Role::Operator, name };
        let connected = Input::Connected { link: OPERATOR, identity };
        self.bring(Lane::Up(OPERATOR), Happening::Arrive(connected));
        let (id, wish) = (RequestId { client: 1, number: 1 }, Wish::Submit(self.run_spec()));
        self.say(OPERATOR, Message::Request { id, wish });
        self.put(self.now, Happening::Watch);
    }

    pub(super) fn watch(&mut self) {
        let Operator { line: step, event, .. } = self.operator;
        self.say(OPERATOR, Message::Watch { run: None, step, event });
    }

    /// The launcher reports the end of a process. Without the report the run would wait for its
    /// state.
    pub(super) fn report_exit(&mut self, name: NodeName) {
        self.say(OPERATOR, Message::Exited { name, how: "was killed by signal 9".into() });
    }

    pub(super) fn told(&mut self, message: Message) -> Result<(), Failure> {
        match message {
            Message::Update(update) => {
                self.checks.told(&update)?;
                self.operator.line = update.lines.last().map_or(self.operator.line, |l| l.step);
                self.operator.event += update.events.len() as u64;
                self.operator.outcome = update.outcome;
                self.put(self.now + PAUSE, Happening::Watch);
                Ok(())
            }
            Message::Answer { refusal: Some(reason), .. } => Err(Failure::Run(reason)),
            _ => Ok(()),
        }
    }
}

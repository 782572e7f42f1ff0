//! The operator that submits the run and watches it.

use std::time::Duration;

use everstep_coordinator::core::{CoreInput, ShellInput};
use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::outcome::Outcome;
use everstep_transport::protocol::reason::ProcessExit;
use everstep_transport::protocol::{Message, NodeName, OperatorCommand, RequestId, Step};

use super::{OPERATOR, StormEvent, StormFailure, StormLane, StormSim};

/// The pause between an answer and the next question.
const STORM_WATCH_INTERVAL: Duration = Duration::from_millis(20);

/// What the operator has received.
pub(super) struct StormOperator {
    line: Step,
    event: u64,
    outcome: Outcome,
}

impl Default for StormOperator {
    fn default() -> Self {
        Self { line: Step(0), event: 0, outcome: Outcome::Running }
    }
}

impl StormOperator {
    pub(super) fn outcome(&self) -> &Outcome {
        &self.outcome
    }
}

impl StormSim {
    pub(super) fn connect_operator(&mut self) {
        let name = NodeName::parse("operator").expect("a valid name");
        let identity = Identity { role: Role::Operator, name };
        let connected =
            CoreInput::Shell(ShellInput::Connected { link: OPERATOR, identity, address: None });
        self.bring(StormLane::Up(OPERATOR), StormEvent::Arrive(connected));
        let (id, command) =
            (RequestId { client: 1, number: 1 }, OperatorCommand::Submit(self.run_spec().into()));
        self.say(OPERATOR, Message::Request { id, command });
        self.put(self.now, StormEvent::Watch);
    }

    pub(super) fn watch(&mut self) {
        let StormOperator { line: step, event, .. } = self.operator;
        self.say(OPERATOR, Message::Watch { run: None, step, event });
    }

    /// The launcher reports the end of a process. Without the report the run would wait for its
    /// state.
    pub(super) fn report_exit(&mut self, name: NodeName) {
        self.say(OPERATOR, Message::Exited { name, how: ProcessExit::KILLED });
    }

    pub(super) fn told(&mut self, message: Message) -> Result<(), StormFailure> {
        match message {
            Message::Update(update) => {
                self.checks.told(&update)?;
                self.operator.line = update.lines.last().map_or(self.operator.line, |l| l.step);
                self.operator.event += update.events.len() as u64;
                self.operator.outcome = update.outcome;
                self.put(self.now + STORM_WATCH_INTERVAL, StormEvent::Watch);
                Ok(())
            }
            Message::Answer { refusal: Some(reason), .. } => {
                Err(StormFailure::Run(reason.to_string()))
            }
            _ => Ok(()),
        }
    }
}

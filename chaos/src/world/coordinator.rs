//! The coordinator in the world: its core, and a log that agrees after a while.

use everstep_coordinator::core::{Core, Effect, Input, TICK};
use everstep_coordinator::state::Command;
use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::NodeName;
use everstep_transport::protocol::outcome::Outcome;
use everstep_transport::time::Time;

use super::clock::Clock;
use super::types::Happening;
use super::{Node, UNIX_MS_AT_ZERO, World};
use crate::check::Violation;

/// One coordinator.
#[derive(Debug)]
pub struct Coordinator {
    core: Core,
    clock: Clock,
    /// Index of the newest entry of the log, applied or not.
    index: u64,
    /// When that is applied.
    last: Time,
    down: bool,
}

impl Coordinator {
    /// A coordinator with an empty log.
    pub fn new(now: Time, permille: u32, unix_ms_at_zero: u64) -> Self {
        let core = Core::new(Time(0), unix_ms_at_zero);
        Self { core, clock: Clock::new(now, permille), index: 0, last: now, down: false }
    }

    /// Whether its process has crashed.
    pub fn is_down(&self) -> bool {
        self.down
    }

    /// Its clock.
    pub fn clock_mut(&mut self) -> &mut Clock {
        &mut self.clock
    }

    /// Its clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Whether a generation has begun.
    pub fn has_begun(&self) -> bool {
        self.core.state().record().is_some()
    }

    /// The process is gone.
    pub fn crash(&mut self) {
        self.down = true;
    }
}

impl World {
    /// A process with an empty log.
    pub(super) fn start_coordinator(&mut self) {
        let permille = self.drifts.get(&Node::Coordinator).copied().unwrap_or(1000);
        self.coordinator = Coordinator::new(self.now, permille, UNIX_MS_AT_ZERO);
        (self.scenario.prepare.coordinator)(&mut self.coordinator.core);
        self.queue.put(self.now, Happening::CoordinatorTick);
    }

    pub(super) fn connect_operator(&mut self) {
        let name = NodeName::parse("operator").expect("a valid name");
        let identity = Identity { role: Role::Operator, name };
        let link = Node::Operator.link();
        self.coordinator.core.handle(Time(0), Input::Connected { link, identity });
    }

    pub(super) fn tick_coordinator(&mut self) -> Result<(), Violation> {
        let next = self.now + self.coordinator.clock.true_time(TICK);
        self.queue.put(next, Happening::CoordinatorTick);
        self.coordinate(Input::Tick)
    }

    /// Gives the coordinator's core an input, and does what it wants done.
    pub(super) fn coordinate(&mut self, input: Input) -> Result<(), Violation> {
        if self.coordinator.down {
            return Ok(());
        }
        if let Input::Applied { index, entry } = &input {
            self.note(format_args!("entry {index}: {:?}", entry.command));
            let running = *self.coordinator.core.state().outcome() == Outcome::Running;
            self.course.progress(self.now);
            if let Command::Lose { worker, reason } = &entry.command
                && running
            {
                self.course.judge_loss(self.now, *worker, reason)?;
            }
        }
        let now = self.coordinator.clock.read(self.now);
        self.coordinator.core.handle(now, input);
        while let Some(effect) = self.coordinator.core.poll_effect() {
            match effect {
                Effect::Send { to, message } => {
                    self.say(Node::Coordinator, Node::at(to), message);
                }
                Effect::Broadcast { to, message } => {
                    for link in to {
                        self.say(Node::Coordinator, Node::at(link), message.clone());
                    }
                }
                Effect::Propose(entry) => {
                    self.coordinator.index += 1;
                    let index = self.coordinator.index;
                    // The log keeps its order.
                    let at = (self.now + self.random.delay()).max(self.coordinator.last);
                    self.coordinator.last = at;
                    self.queue.put(at, Happening::Coordinator(Input::Applied { index, entry }));
                }
                Effect::Close { to, reason } => {
                    self.close_link(Node::Coordinator, Node::at(to), &reason);
                    self.later(Happening::Coordinator(Input::Disconnected { link: to, reason }));
                }
            }
        }
        Ok(())
    }
}

//! The coordinator in the world: its core, and a log that agrees after a while.

use everstep_coordinator::core::{Core, Effect, Input};
use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::NodeName;
use everstep_transport::time::Time;
use everstep_worker::step::event::Input as WorkerInput;

use super::{Happening, Node, World};

/// One coordinator.
#[derive(Debug)]
pub struct Coordinator {
    core: Core,
    /// Index of the newest entry of the log, applied or not.
    index: u64,
}

impl Coordinator {
    /// A coordinator with an empty log.
    pub fn new(unix_ms_at_zero: u64) -> Self {
        Self { core: Core::new(Time(0), unix_ms_at_zero), index: 0 }
    }
}

impl World {
    pub(super) fn connect_operator(&mut self) {
        let name = NodeName::parse("operator").expect("a valid name");
        self.connect(Node::Operator, Identity { role: Role::Operator, name });
    }

    pub(super) fn connect(&mut self, node: Node, identity: Identity) {
        self.coordinate(Input::Connected { link: node.link(), identity });
    }

    /// Gives the coordinator's core an input, and does what it wants done.
    pub(super) fn coordinate(&mut self, input: Input) {
        if let Input::Applied { index, entry } = &input {
            self.note(format_args!("entry {index}: {:?}", entry.command));
        }
        self.coordinator.core.handle(self.now, input);
        while let Some(effect) = self.coordinator.core.poll_effect() {
            match effect {
                Effect::Send { to, message } => {
                    self.say(Node::Coordinator, Node::at(to), message);
                }
                Effect::Propose(entry) => {
                    self.coordinator.index += 1;
                    let index = self.coordinator.index;
                    let applied = Happening::Coordinator(Input::Applied { index, entry });
                    // The log is the coordinator's lane to itself.
                    self.arrive((Node::Coordinator, Node::Coordinator), applied);
                }
                Effect::Close { to, reason } => {
                    if let Node::Worker(place) = Node::at(to) {
                        let closed = WorkerInput::CoordinatorLost(reason.clone());
                        let lane = (Node::Coordinator, Node::Worker(place));
                        self.arrive(lane, Happening::Worker(place, closed));
                    }
                    let closed = Input::Disconnected { link: to, reason };
                    self.later(Happening::Coordinator(closed));
                }
            }
        }
    }
}

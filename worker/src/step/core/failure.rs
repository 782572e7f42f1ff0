//! A worker that cannot go on.
//!
//! A worker that finds the run broken is the only one that knows: the others would go on with bits
//! that may be wrong. So it ends when a leader has heard it, and waits until one has. A leader has
//! when it answers that the run is over, or that it lets the worker go.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use everstep_transport::protocol::{Message, WorkerId};

use super::{Core, Phase};
use crate::step::event::{Effect, Exit, Input, LinkId};

/// Why no worker may go on.
#[derive(Clone, Debug)]
pub(super) struct BrokenRun {
    at_fault: Option<WorkerId>,
    reason: String,
}

impl BrokenRun {
    fn message(&self) -> Message {
        let Self { at_fault, reason } = self.clone();
        Message::Failed { at_fault, fatal: true, reason }
    }
}

impl Core {
    /// The worker cannot go on. If that is `fatal`, no other worker may.
    pub(super) fn fail(&mut self, at_fault: Option<WorkerId>, fatal: bool, reason: String) {
        for link in self.leader.links() {
            self.send_on(link, Message::Failed { at_fault, fatal, reason: reason.clone() });
        }
        if fatal {
            self.phase = Phase::Broken(BrokenRun { at_fault, reason });
        } else {
            self.end(Exit::Failed(reason));
        }
    }

    /// Tells each leader that the run is broken, and ends when one has heard it.
    pub(super) fn tell_broken(&mut self, input: Input) {
        match input {
            Input::CoordinatorUp { link, name } => {
                self.leader.up(link, name);
                self.greet(link);
            }
            Input::CoordinatorLost { link } => self.leader.lost(link),
            Input::Coordinator { link, message } if self.leader.is_up(link) => {
                self.answer_broken(link, message);
            }
            Input::Removed | Input::DrainOverdue => self.end_broken(),
            _ => {}
        }
    }

    fn answer_broken(&mut self, link: LinkId, message: Message) {
        match message {
            Message::Coordinators { revision, members, .. } => {
                let known = self.leader.take_list(revision, members);
                self.out.extend(known.map(Effect::Coordinators));
            }
            Message::Registered { .. } | Message::Evicted { .. } | Message::Drain { .. } => {
                if let Phase::Broken(broken) = &self.phase {
                    let failed = broken.message();
                    self.send_on(link, failed);
                }
            }
            Message::Dismiss | Message::Released { .. } => self.end_broken(),
            _ => {}
        }
    }

    fn end_broken(&mut self) {
        if let Phase::Broken(BrokenRun { reason, .. }) = &self.phase {
            let reason = reason.clone();
            self.end(Exit::Failed(reason));
        }
    }
}

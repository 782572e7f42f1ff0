//! What operators ask for: a run, a worker's leave, what is new.

use std::collections::BTreeMap;

use everstep_transport::protocol::{Message, NodeName, RunSpec, WorkerId};
use everstep_transport::time::Time;

use super::silence::Doubt;
use super::{Core, LinkId};
use crate::state::{Command, Verdict};

/// What operators have asked for, until the log has answered: at most one of each for a link.
#[derive(Debug, Default)]
pub(super) struct Requests {
    submissions: BTreeMap<LinkId, RunSpec>,
    drains: BTreeMap<LinkId, WorkerId>,
}

impl Requests {
    /// The runs that were asked for.
    pub(super) fn runs(&self) -> Vec<RunSpec> {
        self.submissions.values().cloned().collect()
    }

    /// Nobody is there any more to be answered.
    pub(super) fn forget(&mut self, link: LinkId) {
        self.submissions.remove(&link);
        self.drains.remove(&link);
    }
}

impl Core {
    /// What an operator says.
    pub(super) fn operate(&mut self, now: Time, from: LinkId, message: Message) {
        match message {
            Message::Submit(run) => {
                self.requests.submissions.insert(from, run.clone());
                if self.leader().is_some() {
                    self.propose(now, Command::Submit(run));
                }
            }
            Message::Watch { step, event } => {
                let update = self.update(now, from, step, event);
                self.send(from, Message::Update(update));
            }
            Message::Exited { name, how } => self.exited(now, &name, &how),
            Message::Drain { worker } => self.asked_to_drain(now, from, worker),
            _ => self.ignored += 1,
        }
    }

    pub(super) fn submitted(&mut self, run: &RunSpec, verdict: &Verdict) {
        let answered = self.requests.submissions.extract_if(.., |_, wanted| wanted == run);
        let answered: Vec<LinkId> = answered.map(|(link, _)| link).collect();
        if let Verdict::Refused(reason) = verdict {
            for link in answered {
                self.send(link, Message::Refused { reason: reason.clone() });
            }
        }
    }

    /// The end of a process was noticed: nothing is to be expected of it.
    fn exited(&mut self, now: Time, name: &NodeName, how: &str) {
        if self.leader().is_some()
            && let Some(worker) = self.state.on_node(name)
        {
            let reason = format!("its process {}", super::workers::bounded(how));
            self.suspect(now, worker, Doubt { reason, dead: true });
        }
    }

    fn asked_to_drain(&mut self, now: Time, from: LinkId, worker: WorkerId) {
        if self.leader().is_none() {
            let reason = "this coordinator does not lead; ask again in a moment".into();
            return self.send(from, Message::Refused { reason });
        }
        self.requests.drains.insert(from, worker);
        self.propose(now, Command::Drain { worker });
    }

    /// Answers who asked for the drain of this worker.
    pub(super) fn answer_drain(&mut self, worker: WorkerId, verdict: &Verdict) {
        let answered = self.requests.drains.extract_if(.., |_, wanted| *wanted == worker);
        let answered: Vec<LinkId> = answered.map(|(link, _)| link).collect();
        for link in answered {
            let answer = match verdict {
                Verdict::Refused(reason) => Message::Refused { reason: reason.clone() },
                Verdict::Accepted | Verdict::Registered(_) => Message::Accepted,
            };
            self.send(link, answer);
        }
    }
}

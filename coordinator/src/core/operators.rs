//! What operators ask for: a run, a worker's leave, another leader. What they read: `reads.rs`.
//!
//! A request with an id may be said again, here or to the next leader: it is carried out once, and
//! answered every time. Who asks one that does not lead is told who does.

use std::collections::BTreeMap;

use everstep_transport::protocol::{Message, NodeName, RequestId, RunSpec, Wish, WorkerId};
use everstep_transport::time::Time;

use super::links::Phase;
use super::silence::Doubt;
use super::{Core, Effect, LinkId};
use crate::state::{Command, Verdict};

/// What operators have asked for, until the log has answered: at most one of each for a link.
#[derive(Debug, Default)]
pub(super) struct Requests {
    submissions: BTreeMap<LinkId, RunSpec>,
    drains: BTreeMap<LinkId, WorkerId>,
    numbered: BTreeMap<LinkId, RequestId>,
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
        self.numbered.remove(&link);
    }

    /// Nobody will be answered here.
    pub(super) fn forget_all(&mut self) {
        *self = Self::default();
    }
}

impl Core {
    /// Whether an operator is at the other end of a link.
    pub(crate) fn is_operator(&self, link: LinkId) -> bool {
        self.links.find(link).is_some_and(|link| link.phase == Phase::Operator)
    }

    /// What an operator says.
    pub(super) fn operate(&mut self, now: Time, from: LinkId, message: Message) {
        let is_told = self.introduce(from);
        let reads = matches!(message, Message::Watch { .. } | Message::Ask(_));
        let sent_on = match reads {
            true => self.read(from, message.clone()),
            false => self.leader().is_none() && !self.state.coordinators().is_empty(),
        };
        if sent_on && !is_told {
            self.tell(vec![from]);
        }
        if sent_on || reads {
            return;
        }
        match message {
            Message::Request { id, wish } => self.request(now, from, id, wish),
            Message::Submit(run) => {
                self.requests.submissions.insert(from, run.clone());
                if self.leader().is_some() {
                    self.propose(now, Command::Submit(run));
                }
            }
            Message::Transfer { id, to } => {
                self.effects.push_back(Effect::Transfer { asked_by: from, id, to });
            }
            Message::Exited { name, how } => self.exited(now, &name, &how),
            Message::Drain { worker } => self.asked_to_drain(now, from, worker),
            _ => self.ignored += 1,
        }
    }

    fn request(&mut self, now: Time, from: LinkId, id: RequestId, wish: Wish) {
        if self.leader().is_some() {
            self.requests.numbered.insert(from, id);
            self.propose(now, Command::Request { id, wish });
        }
    }

    /// A request has its outcome, perhaps since long ago.
    pub(super) fn granted(&mut self, now: Time, id: RequestId, wish: &Wish, verdict: &Verdict) {
        let answered = self.requests.numbered.extract_if(.., |_, asked| *asked == id);
        let answered: Vec<LinkId> = answered.map(|(link, _)| link).collect();
        let (refusal, run) = match verdict {
            Verdict::Refused(reason) => (Some(reason.clone()), None),
            Verdict::Run(run) => (None, Some(*run)),
            _ => (None, None),
        };
        self.broadcast(answered, Message::Answer { id, refusal, run });
        match wish {
            Wish::Submit(_) => self.receive_waiting(now),
            Wish::Drain(worker) => self.drained(now, *worker),
            _ => {}
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
                _ => Message::Accepted,
            };
            self.send(link, answer);
        }
    }
}

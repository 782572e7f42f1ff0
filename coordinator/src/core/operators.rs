//! What operators ask for: that something be changed, or another leader. What they read:
//! `reads.rs`.
//!
//! A request may be said again, here or to the next leader: it is carried out once, and answered
//! every time. Who asks one that does not lead is told who does, as soon as that is known.

use std::collections::BTreeMap;

use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::{Message, NodeName, RequestId, Wish};
use everstep_transport::time::Time;

use super::links::Phase;
use super::reads::Seen;
use super::reign::Reign;
use super::silence::{Certainty, Doubt};
use super::{Core, Effect, LinkId};
use crate::state::{Command, Verdict, wish_digest};

/// What operators have asked for, by a digest, and under which id, until the log has answered: at
/// most one for a link. Another wish under the same id is answered by its own entry.
#[derive(Debug, Default)]
pub(super) struct Requests(BTreeMap<LinkId, (RequestId, u64)>);

impl Requests {
    /// Nobody is there any more to be answered.
    pub(super) fn forget(&mut self, link: LinkId) {
        self.0.remove(&link);
    }

    /// Nobody will be answered here.
    pub(super) fn forget_all(&mut self) {
        self.0.clear();
    }
}

impl Core {
    /// Whether an operator is at the other end of a link.
    pub(crate) fn is_operator(&self, link: LinkId) -> bool {
        self.links.find(link).is_some_and(|link| link.phase == Phase::Operator)
    }

    /// Whether this coordinator has proposed the request, or the log says what became of it.
    pub(crate) fn knows_request(&self, id: RequestId) -> bool {
        self.requests.0.values().any(|(asked, _)| *asked == id) || self.state.has_decided(id)
    }

    /// What an operator says.
    pub(super) fn operate(&mut self, now: Time, from: LinkId, message: Message) {
        let is_told = self.introduce(from);
        // One that is elected will lead in a moment; before there is a cluster, nobody else does.
        if self.reign == Reign::Follows && !self.state.coordinators().is_empty() {
            if !is_told {
                self.tell(vec![from]);
            }
            return;
        }
        match message {
            Message::Watch { run, step, event } => self.watch(from, Seen { run, step, event }),
            Message::Ask(question) => self.ask(from, question),
            Message::Request { id, wish } => self.request(now, from, id, wish),
            Message::Transfer { id, to } => {
                self.effects.push_back(Effect::Transfer { asked_by: from, id, to });
            }
            Message::Exited { name, how } => self.exited(now, &name, &how),
            _ => self.ignored += 1,
        }
    }

    /// Of one that is elected this comes into the log after the entry with which it leads. Before
    /// anybody is, it is not kept: who asked is told who leads, and asks again.
    fn request(&mut self, now: Time, from: LinkId, id: RequestId, wish: Wish) {
        if self.reign != Reign::Follows {
            self.requests.0.insert(from, (id, wish_digest(&wish)));
            let steps = self.newest_step();
            self.propose(now, Command::Request { id, wish, steps });
        }
    }

    /// A request has its outcome, perhaps since long ago.
    pub(super) fn granted(&mut self, now: Time, id: RequestId, wish: &Wish, verdict: &Verdict) {
        let decided = (id, wish_digest(wish));
        let answered = self.requests.0.extract_if(.., |_, asked| *asked == decided);
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
            Wish::Rollback { .. } if *verdict == Verdict::Accepted => self.go_back(now),
            Wish::Revoke(node) if *verdict == Verdict::Accepted => self.revoked(now, node),
            _ => {}
        }
    }

    /// The next generation does without a revoked worker, if the others can go on without it. It
    /// may hold the only copy of something: then the run waits for an operator's rollback.
    fn revoked(&mut self, now: Time, node: &Identity) {
        if let Some(worker) = self.state.on_node(&node.name).filter(|_| node.role == Role::Worker) {
            let reason = "an operator revoked it".to_string();
            self.suspect(now, worker, Doubt { reason, certainty: Certainty::Refused });
        }
    }

    /// The end of a process was noticed: nothing is to be expected of it.
    fn exited(&mut self, now: Time, name: &NodeName, how: &str) {
        if self.leader().is_some()
            && let Some(worker) = self.state.on_node(name)
        {
            let reason = format!("its process {}", super::workers::bounded(how));
            self.suspect(now, worker, Doubt { reason, certainty: Certainty::Dead });
        }
    }
}

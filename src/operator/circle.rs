//! The coordinators as an operator knows them: their ids, their addresses, and the leader.
//!
//! In: the events of links. Out: the link to the leader. If two coordinators name different
//! leaders, the one with the later term is right. The operator does not believe the answer of a
//! coordinator that does not lead.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use everstep_transport::protocol::outcome::WorkerView;
use everstep_transport::protocol::{
    CoordinatorId, CoordinatorView, Message, NodeName, Question, Term, WorkerId,
};
use everstep_transport::quic::{Endpoint, Link};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::call::{self, Heard, What};

/// The coordinators and the links to them.
pub(super) struct Circle {
    endpoint: Arc<Endpoint>,
    tell: mpsc::Sender<Heard>,
    lines: BTreeMap<SocketAddr, Line>,
    knowledge: Knowledge,
}

/// The knowledge that coordinators have reported of themselves.
#[derive(Debug, Default, PartialEq)]
struct Knowledge {
    revision: u64,
    members: Vec<CoordinatorView>,
    term: Term,
    leader: Option<CoordinatorId>,
}

/// A dialled address.
struct Line {
    link: Option<Link>,
    /// Why there is no link.
    why: String,
    /// The workers in answers on this link. Each answer has only the changes.
    workers: BTreeMap<WorkerId, WorkerView>,
    call: JoinHandle<()>,
}

impl Circle {
    /// Dials these addresses, and those of the coordinators that they report.
    pub(super) fn around(
        endpoint: Arc<Endpoint>,
        tell: mpsc::Sender<Heard>,
        coordinators: &[SocketAddr],
    ) -> Self {
        let (lines, knowledge) = (BTreeMap::new(), Knowledge::default());
        let mut circle = Self { endpoint, tell, lines, knowledge };
        coordinators.iter().for_each(|address| circle.call(*address));
        circle
    }

    /// Ends all links and all dials.
    pub(super) fn hang_up(&mut self) {
        self.lines.clear();
    }

    /// Takes an event of a link. Returns the message, unless it is for this circle.
    pub(super) fn take(&mut self, Heard { address, what }: Heard) -> Option<(SocketAddr, Message)> {
        let line = self.lines.get_mut(&address)?;
        match what {
            What::Up(link) => {
                line.workers.clear();
                line.link = Some(link);
                line.say(first_word());
                None
            }
            What::Lost(why) => {
                (line.link, line.why) = (None, why);
                None
            }
            What::Said(Message::Coordinators { revision, term, leader, members }) => {
                if self.knowledge.learn(Knowledge { revision, members, term, leader }) {
                    self.call_members();
                }
                None
            }
            What::Said(Message::Update(mut update)) => {
                line.note(std::mem::take(&mut update.workers), &update.forgotten);
                Some((address, Message::Update(update)))
            }
            What::Said(message) => Some((address, message)),
        }
    }

    /// The leader's address, if there is a link to it.
    pub(super) fn leader(&self) -> Option<SocketAddr> {
        let name = self.name_of(self.knowledge.leader?)?;
        let is = |line: &Line| line.name() == Some(name);
        self.lines.iter().find(|(_, line)| is(line)).map(|(address, _)| *address)
    }

    /// Sends a message to the leader. If the link breaks, there is no answer.
    pub(super) fn tell_leader(&self, message: Message) {
        if let Some(line) = self.leader().and_then(|address| self.lines.get(&address)) {
            line.say(message);
        }
    }

    /// Asks all coordinators to report themselves.
    pub(super) fn introduce(&self) {
        self.lines.values().for_each(|line| line.say(first_word()));
    }

    /// All workers, as the leader has reported them.
    pub(super) fn workers(&self) -> Vec<WorkerView> {
        let line = self.leader().and_then(|address| self.lines.get(&address));
        line.map_or(Vec::new(), |line| line.workers.values().cloned().collect())
    }

    pub(super) fn members(&self) -> &[CoordinatorView] {
        &self.knowledge.members
    }

    pub(super) fn leader_id(&self) -> Option<CoordinatorId> {
        self.knowledge.leader
    }

    pub(super) fn term(&self) -> Term {
        self.knowledge.term
    }

    pub(super) fn hears(&self, address: SocketAddr) -> bool {
        self.lines.get(&address).is_some_and(|line| line.link.is_some())
    }

    /// The reason why there is no answer, in words.
    pub(super) fn standing(&self) -> String {
        let answering = self.lines.values().filter(|line| line.link.is_some()).count();
        if answering == 0 {
            let tried =
                self.lines.iter().map(|(address, line)| format!("{address} ({})", line.why));
            let tried: Vec<_> = tried.collect();
            return format!("no coordinator answers: tried {}", tried.join(", "));
        }
        let all = self.lines.len().max(self.knowledge.members.len());
        match (self.knowledge.leader, self.leader()) {
            (Some(id), Some(address)) => {
                format!("coordinator {id} at {address} leads, but does not say that it still does")
            }
            _ => format!(
                "{answering} of {all} coordinators answer, none leads: {} must be there to agree; \
                 no answer from {}",
                all / 2 + 1,
                self.missing().join(", ")
            ),
        }
    }

    /// The coordinators that do not answer.
    fn missing(&self) -> Vec<String> {
        let mute = self.lines.iter().filter(|(_, line)| line.link.is_none());
        let called = mute.map(|(address, line)| {
            let member = self.knowledge.members.iter().find(|view| view.address == *address);
            match member {
                Some(view) => format!("coordinator {} at {address} ({})", view.id, line.why),
                None => format!("{address} ({})", line.why),
            }
        });
        let mut called: Vec<_> = called.collect();
        if called.is_empty() {
            called.push("none of them alone".into());
        }
        called
    }

    fn name_of(&self, id: CoordinatorId) -> Option<&NodeName> {
        self.knowledge.members.iter().find(|view| view.id == id).map(|view| &view.name)
    }

    /// Dials all listed coordinators. A dialled address that is not on the list stays if one of
    /// them answers there.
    fn call_members(&mut self) {
        let members = &self.knowledge.members;
        self.lines.retain(|address, line| {
            let listed = |view: &CoordinatorView| {
                view.address == *address || Some(&view.name) == line.name()
            };
            members.iter().any(listed)
        });
        let all: Vec<_> = members.iter().map(|view| view.address).collect();
        all.into_iter().for_each(|address| self.call(address));
    }

    fn call(&mut self, address: SocketAddr) {
        let (endpoint, tell) = (&self.endpoint, &self.tell);
        self.lines.entry(address).or_insert_with(|| {
            let call = tokio::spawn(call::keep(endpoint.clone(), address, tell.clone()));
            let why = "nobody has answered yet".into();
            Line { link: None, why, workers: BTreeMap::new(), call }
        });
    }
}

impl Knowledge {
    /// Takes newer knowledge. Returns whether the list of members is newer.
    fn learn(&mut self, told: Self) -> bool {
        // A coordinator that has lost its leader knows less than one that has found the next. It
        // may even have lost an election, in a term that never has a leader.
        if told.term >= self.term && told.leader.is_some() {
            (self.term, self.leader) = (told.term, told.leader);
        }
        let newer = told.revision > self.revision;
        if newer {
            (self.revision, self.members) = (told.revision, told.members);
        }
        newer
    }
}

impl Line {
    fn name(&self) -> Option<&NodeName> {
        self.link.as_ref().map(|link| &link.identity().name)
    }

    fn say(&self, message: Message) {
        if let Some(link) = &self.link
            && let Err(error) = link.send(message)
        {
            tracing::debug!(%error, "a coordinator was not told");
        }
    }

    fn note(&mut self, changed: Vec<WorkerView>, forgotten: &[WorkerId]) {
        self.workers.extend(changed.into_iter().map(|view| (view.worker, view)));
        forgotten.iter().for_each(|worker| drop(self.workers.remove(worker)));
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.call.abort();
    }
}

/// The question that makes a coordinator report all coordinators and the leader. Its answer differs
/// from that to any other question. The answer to a Watch would tell the end of a run without the
/// lines and events before.
fn first_word() -> Message {
    Message::Ask(Question::Coordinators)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(revision: u64, term: u64, leader: Option<CoordinatorId>) -> Knowledge {
        Knowledge { revision, members: Vec::new(), term: Term(term), leader }
    }

    #[test]
    fn the_first_word_s_answer_is_never_taken_for_what_is_new_of_a_run() {
        assert!(!matches!(first_word(), Message::Watch { .. }));
    }

    #[test]
    fn the_later_term_is_right_about_who_leads_and_says_nothing_where_nobody_does() {
        let mut known = Knowledge::default();
        assert!(known.learn(told(3, 4, Some(1))));
        for (news, leader) in [
            (told(3, 3, Some(7)), Some(1)),
            (told(3, 4, None), Some(1)),
            (told(3, 5, None), Some(1)),
            (told(3, 4, Some(1)), Some(1)),
            (told(3, 5, Some(7)), Some(7)),
            (told(3, 4, Some(1)), Some(7)),
        ] {
            assert!(!known.learn(news), "no newer list");
            assert_eq!(known.leader, leader);
        }
        assert_eq!(known.term, Term(5));
    }
}

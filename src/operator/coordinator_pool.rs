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

use super::dial::{self, LinkChange, LinkEvent};

/// The coordinators and the links to them.
pub(super) struct CoordinatorPool {
    endpoint: Arc<Endpoint>,
    events: mpsc::Sender<LinkEvent>,
    connections: BTreeMap<SocketAddr, Connection>,
    view: ClusterView,
}

/// The knowledge that coordinators have reported of themselves.
#[derive(Debug, Default, PartialEq)]
struct ClusterView {
    revision: u64,
    members: Vec<CoordinatorView>,
    term: Term,
    leader: Option<CoordinatorId>,
}

struct Connection {
    link: Option<Link>,
    /// Why there is no link.
    why: String,
    /// The workers in answers on this link. Each answer has only the changes.
    workers: BTreeMap<WorkerId, WorkerView>,
    dial: JoinHandle<()>,
}

impl CoordinatorPool {
    /// Dials these addresses, and those of the coordinators that they report.
    pub(super) fn new(
        endpoint: Arc<Endpoint>,
        events: mpsc::Sender<LinkEvent>,
        coordinators: &[SocketAddr],
    ) -> Self {
        let (connections, view) = (BTreeMap::new(), ClusterView::default());
        let mut pool = Self { endpoint, events, connections, view };
        coordinators.iter().for_each(|address| pool.dial(*address));
        pool
    }

    /// Ends all links and all dials.
    pub(super) fn hang_up(&mut self) {
        self.connections.clear();
    }

    /// Takes an event of a link. Returns the message, unless it is for the pool itself.
    pub(super) fn take(
        &mut self,
        LinkEvent { address, what }: LinkEvent,
    ) -> Option<(SocketAddr, Message)> {
        let connection = self.connections.get_mut(&address)?;
        match what {
            LinkChange::Up(link) => {
                connection.workers.clear();
                connection.link = Some(link);
                connection.send(coordinators_query());
                None
            }
            LinkChange::Lost(why) => {
                (connection.link, connection.why) = (None, why);
                None
            }
            LinkChange::Received(Message::Coordinators { revision, term, leader, members }) => {
                if self.view.update(ClusterView { revision, members, term, leader }) {
                    self.dial_members();
                }
                None
            }
            LinkChange::Received(Message::Update(mut update)) => {
                connection.note(std::mem::take(&mut update.workers), &update.forgotten);
                Some((address, Message::Update(update)))
            }
            LinkChange::Received(message) => Some((address, message)),
        }
    }

    /// The leader's address, if there is a link to it.
    pub(super) fn leader(&self) -> Option<SocketAddr> {
        let name = self.name_of(self.view.leader?)?;
        let is = |connection: &Connection| connection.name() == Some(name);
        self.connections.iter().find(|(_, connection)| is(connection)).map(|(address, _)| *address)
    }

    /// Sends a message to the leader. If the link breaks, there is no answer.
    pub(super) fn send_to_leader(&self, message: Message) {
        if let Some(connection) = self.leader().and_then(|address| self.connections.get(&address)) {
            connection.send(message);
        }
    }

    /// Asks all coordinators to report themselves.
    pub(super) fn query_coordinators(&self) {
        self.connections.values().for_each(|connection| connection.send(coordinators_query()));
    }

    /// All workers, as the leader has reported them.
    pub(super) fn workers(&self) -> Vec<WorkerView> {
        let connection = self.leader().and_then(|address| self.connections.get(&address));
        connection.map_or(Vec::new(), |connection| connection.workers.values().cloned().collect())
    }

    pub(super) fn members(&self) -> &[CoordinatorView] {
        &self.view.members
    }

    pub(super) fn leader_id(&self) -> Option<CoordinatorId> {
        self.view.leader
    }

    pub(super) fn term(&self) -> Term {
        self.view.term
    }

    pub(super) fn hears(&self, address: SocketAddr) -> bool {
        self.connections.get(&address).is_some_and(|connection| connection.link.is_some())
    }

    /// The reason why there is no answer, in words.
    pub(super) fn status(&self) -> String {
        let answering =
            self.connections.values().filter(|connection| connection.link.is_some()).count();
        if answering == 0 {
            let tried = self
                .connections
                .iter()
                .map(|(address, connection)| format!("{address} ({})", connection.why));
            let tried: Vec<_> = tried.collect();
            return format!("no coordinator answers: tried {}", tried.join(", "));
        }
        let all = self.connections.len().max(self.view.members.len());
        match (self.view.leader, self.leader()) {
            (Some(id), Some(address)) => {
                format!("coordinator {id} at {address} leads, but does not say that it still does")
            }
            _ => format!(
                "{answering} of {all} coordinators answer, none leads: {} must be there to agree. \
                 There is no answer from {}",
                all / 2 + 1,
                self.missing().join(", ")
            ),
        }
    }

    /// The coordinators that do not answer.
    fn missing(&self) -> Vec<String> {
        let mute = self.connections.iter().filter(|(_, connection)| connection.link.is_none());
        let called = mute.map(|(address, connection)| {
            let member = self.view.members.iter().find(|member| member.address == *address);
            match member {
                Some(view) => format!("coordinator {} at {address} ({})", view.id, connection.why),
                None => format!("{address} ({})", connection.why),
            }
        });
        let mut called: Vec<_> = called.collect();
        if called.is_empty() {
            called.push("none of them alone".into());
        }
        called
    }

    fn name_of(&self, id: CoordinatorId) -> Option<&NodeName> {
        self.view.members.iter().find(|member| member.id == id).map(|member| &member.name)
    }

    /// Dials all listed coordinators. A dialled address that is not on the list stays if one of
    /// them answers there.
    fn dial_members(&mut self) {
        let members = &self.view.members;
        self.connections.retain(|address, connection| {
            let listed = |member: &CoordinatorView| {
                member.address == *address || Some(&member.name) == connection.name()
            };
            members.iter().any(listed)
        });
        let all: Vec<_> = members.iter().map(|member| member.address).collect();
        all.into_iter().for_each(|address| self.dial(address));
    }

    fn dial(&mut self, address: SocketAddr) {
        let (endpoint, events) = (&self.endpoint, &self.events);
        self.connections.entry(address).or_insert_with(|| {
            let dial = tokio::spawn(dial::run(endpoint.clone(), address, events.clone()));
            let why = "no coordinator has answered yet".into();
            Connection { link: None, why, workers: BTreeMap::new(), dial }
        });
    }
}

impl ClusterView {
    /// Takes newer knowledge. Returns whether the list of members is newer.
    fn update(&mut self, told: Self) -> bool {
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

impl Connection {
    fn name(&self) -> Option<&NodeName> {
        self.link.as_ref().map(|link| &link.identity().name)
    }

    fn send(&self, message: Message) {
        if let Some(link) = &self.link
            && let Err(error) = link.send(message)
        {
            tracing::debug!(%error, "a coordinator was not told");
        }
    }

    fn note(&mut self, changed: Vec<WorkerView>, forgotten: &[WorkerId]) {
        self.workers.extend(changed.into_iter().map(|worker| (worker.worker, worker)));
        forgotten.iter().for_each(|worker| drop(self.workers.remove(worker)));
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.dial.abort();
    }
}

/// The question that makes a coordinator report all coordinators and the leader. Its answer differs
/// from that to any other question. The answer to a Watch would tell the end of a run without the
/// lines and events before.
fn coordinators_query() -> Message {
    Message::Ask(Question::Coordinators)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(revision: u64, term: u64, leader: Option<u64>) -> ClusterView {
        let leader = leader.map(CoordinatorId);
        ClusterView { revision, members: Vec::new(), term: Term(term), leader }
    }

    #[test]
    fn the_first_word_s_answer_is_never_taken_for_what_is_new_of_a_run() {
        assert!(!matches!(coordinators_query(), Message::Watch { .. }));
    }

    #[test]
    fn the_later_term_is_right_about_who_leads_and_says_nothing_where_nobody_does() {
        let mut known = ClusterView::default();
        assert!(known.update(told(3, 4, Some(1))));
        for (news, leader) in [
            (told(3, 3, Some(7)), Some(1)),
            (told(3, 4, None), Some(1)),
            (told(3, 5, None), Some(1)),
            (told(3, 4, Some(1)), Some(1)),
            (told(3, 5, Some(7)), Some(7)),
            (told(3, 4, Some(1)), Some(7)),
        ] {
            assert!(!known.update(news), "no newer list");
            assert_eq!(known.leader, leader.map(CoordinatorId));
        }
        assert_eq!(known.term, Term(5));
    }
}

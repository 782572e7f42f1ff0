//! Which coordinator leads, as far as this one knows, and which coordinators there are.
//!
//! A follower answers no worker. It keeps the links of all workers that have said Hello, so that it
//! can answer them at once when it leads. It tells every peer where the coordinators are and which
//! of them leads. So a peer that was given one address learns all.

use everstep_transport::identity::Role;
use everstep_transport::protocol::{CoordinatorId, Message, Step, Term};
use everstep_transport::time::Time;

use super::confirm::Confirmations;
use super::replaced::ReplacedWorkers;
use super::{CheckpointWriting, Completion, Core, Departures, LinkId};
use crate::state::{Command, CoordinatorInfo, State};

/// Which coordinator leads, as this one knows it, and the questions whether it still does.
#[derive(Debug, Default)]
pub(super) struct Leadership {
    role: LeaderRole,
    known: KnownLeader,
    pub(super) confirmations: Confirmations,
}

/// Whether a coordinator acts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LeaderRole {
    /// Another coordinator leads, or none.
    #[default]
    Follower,
    /// This coordinator will lead, when its entry of this term has applied.
    Elected(Term),
    /// This coordinator leads in this term.
    Leader(Term),
}

/// Where a coordinator sends its peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct KnownLeader {
    term: Term,
    leader: Option<CoordinatorId>,
}

impl Leadership {
    /// The term in which this coordinator leads. `None` while it does not.
    pub(super) fn term(&self) -> Option<Term> {
        match self.role {
            LeaderRole::Leader(term) => Some(term),
            LeaderRole::Follower | LeaderRole::Elected(_) => None,
        }
    }

    /// Whether this coordinator neither leads nor is about to.
    pub(super) fn follows(&self) -> bool {
        self.role == LeaderRole::Follower
    }

    /// Whether this coordinator leads once its entry of this term has applied.
    pub(super) fn is_elected(&self, term: Term) -> bool {
        self.role == LeaderRole::Elected(term)
    }

    /// Whether this coordinator leads, or is about to, in a term before this one.
    fn is_deposed_by(&self, term: Term) -> bool {
        match self.role {
            LeaderRole::Elected(own) | LeaderRole::Leader(own) => own < term,
            LeaderRole::Follower => false,
        }
    }

    /// A coordinator leads in this term, or none that is known. Returns whether this is news.
    fn learn(&mut self, term: Term, leader: Option<CoordinatorId>) -> bool {
        let known = KnownLeader { term, leader };
        std::mem::replace(&mut self.known, known) != known
    }

    /// What peers hear of the coordinators, once the log knows some.
    fn announcement(&self, state: &State) -> Option<Message> {
        let members = state.coordinators();
        let KnownLeader { term, leader } = self.known;
        let revision = state.revision();
        (!members.is_empty()).then_some(Message::Coordinators { revision, term, leader, members })
    }
}

impl Core {
    pub(super) fn elected(&mut self, now: Time, term: Term, id: CoordinatorId) {
        self.step_down(now); // between two terms it was no leader, if only for a moment
        self.leadership.role = LeaderRole::Elected(term);
        self.propose(now, Command::Lead { coordinator: id });
    }

    /// This coordinator leads from now on. All it knows of workers is that they are registered:
    /// each of them gets a fresh deadline. It expects no worker of a run that is over.
    pub(super) fn lead(&mut self, now: Time, term: Term) {
        self.leadership.role = LeaderRole::Leader(term);
        self.begin_anew(now);
        let workers = self.state.present().map(|(worker, _)| worker);
        let running = self.running();
        self.health.listen(now, workers.filter(|_| running));
        self.health.replaced = ReplacedWorkers::of(&self.state);
        self.change.reach(self.state.record().map_or(Step(0), |record| record.resume));
        self.receive_waiting(now);
        self.suspect_departed(now);
        self.suspect_reported_dead(now);
        self.leadership.ask_for_confirmation(&mut self.outbox);
    }

    /// This coordinator leads no longer, or was never to: all that it knew as a leader is void.
    pub(super) fn step_down(&mut self, now: Time) {
        if self.leadership.follows() {
            return;
        }
        self.leadership.role = LeaderRole::Follower;
        self.begin_anew(now);
        self.links.demote();
        self.clients.give_up(&mut self.outbox);
        self.leadership.confirmations.give_up();
        self.leadership.known.leader = None;
        self.broadcast_coordinators();
    }

    /// A coordinator leads in this term, or none that is known.
    pub(super) fn on_leader(&mut self, now: Time, term: Term, leader: Option<CoordinatorId>) {
        if term < self.leadership.known.term {
            return;
        }
        self.notice_later_term(now, term);
        if self.leadership.learn(term, leader) {
            self.broadcast_coordinators();
        }
    }

    /// Another coordinator leads or led in this term. If the term is later than this coordinator's
    /// own, this one leads no more.
    pub(super) fn notice_later_term(&mut self, now: Time, term: Term) {
        if self.leadership.is_deposed_by(term) {
            self.step_down(now);
        }
    }

    /// Forgets all about workers but what the log says.
    pub(super) fn begin_anew(&mut self, now: Time) {
        self.health.reset(now);
        self.change.reset();
        self.completion = Completion::default();
        self.checkpoints = CheckpointWriting::new(now);
        self.departures = Departures::default();
        self.leadership.confirmations.forget_workers();
    }

    /// Tells a peer, after its first message, which coordinators there are. The peer is told again
    /// whenever they change. Returns whether this was the first message.
    pub(super) fn introduce(&mut self, link: LinkId) -> bool {
        let is_first = self.links.introduce(link);
        if is_first {
            self.send_coordinators(vec![link]);
        }
        is_first
    }

    pub(super) fn broadcast_coordinators(&mut self) {
        let all = self.links.introduced();
        self.send_coordinators(all);
    }

    /// Tells which coordinators there are, once the log knows some.
    pub(super) fn send_coordinators(&mut self, to: Vec<LinkId>) {
        if let Some(message) = self.leadership.announcement(&self.state) {
            self.outbox.broadcast(to, message);
        }
    }

    /// Handles a message of another coordinator. Messages between replicas do not come here.
    pub(super) fn on_coordinator_message(&mut self, now: Time, from: LinkId, message: Message) {
        let (id, incarnation, address, api, log_format) = match message {
            Message::Join { id, incarnation, address, api, log_format } => {
                (id, incarnation, address, api, log_format)
            }
            Message::FetchLines { lineage, after } => {
                return self.lines.tell(from, lineage, after, &mut self.outbox);
            }
            Message::Lines { lineage, reach, lines } => {
                return self.lines_told(now, from, lineage, reach, lines);
            }
            _ => return self.links.ignore(),
        };
        self.introduce(from);
        if self.leader().is_none() {
            return self.send_coordinators(vec![from]);
        }
        if let Some(link) = self.links.find(from) {
            let name = link.identity.name.clone();
            let coordinator = CoordinatorInfo { name, incarnation, address, api, log_format };
            // Every coordinator sends this to every other coordinator that it meets.
            if id.is_none() || !self.state.knows(&coordinator) {
                self.propose(now, Command::Coordinator { id, coordinator });
            }
        }
    }

    /// Tells a coordinator that it is one of the cluster, under this id.
    pub(super) fn joined(&mut self, coordinator: &CoordinatorInfo, id: CoordinatorId) {
        let links = self.links.named(Role::Coordinator, &coordinator.name);
        self.outbox.broadcast(links, Message::Joined { id });
    }
}

//! Which coordinator leads, as far as this one knows, and which coordinators there are.
//!
//! A follower answers no worker. It keeps the links of all workers that have said Hello, so that it
//! can answer them at once when it leads. It tells every peer where the coordinators are and which
//! of them leads. So a peer that was given one address learns all.

use everstep_transport::identity::Role;
use everstep_transport::protocol::{CoordinatorId, Message, Step, Term};
use everstep_transport::time::Time;

use super::change;
use super::feeds::Feeds;
use super::model::Model;
use super::partition::Partition;
use super::progress::Progress;
use super::silence::Silence;
use super::unable::Unable;
use super::{Core, LinkId};
use crate::state::{Command, Coordinator};

/// Whether a coordinator acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reign {
    /// Another coordinator leads, or none.
    Follows,
    /// This coordinator will lead, when its entry of this term has applied.
    Elected(Term),
    /// This coordinator leads in this term.
    Leads(Term),
}

/// Where a coordinator sends its peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Guide {
    term: Term,
    leader: Option<CoordinatorId>,
}

impl Core {
    pub(super) fn elected(&mut self, now: Time, term: Term, id: CoordinatorId) {
        self.deposed(now); // between two reigns it was no leader, if only for a moment
        self.reign = Reign::Elected(term);
        self.propose(now, Command::Lead { coordinator: id });
    }

    /// This coordinator leads from now on. All it knows of workers is that they are registered:
    /// each of them gets a fresh deadline. It expects no worker of a run that is over.
    pub(super) fn lead(&mut self, now: Time, term: Term) {
        self.reign = Reign::Leads(term);
        self.begin_anew(now);
        let workers = self.state.present().map(|(worker, _)| worker);
        self.silence = Silence::begin(now, workers.filter(|_| self.running()));
        self.reached = self.state.record().map_or(Step(0), |record| record.resume);
        self.receive_waiting(now);
        self.miss_departed(now);
        self.miss_mourned(now);
        self.ask_for_confirmation();
    }

    /// This coordinator leads no longer, or was never to: all that it knew as a leader is void.
    pub(super) fn deposed(&mut self, now: Time) {
        if self.reign == Reign::Follows {
            return;
        }
        self.reign = Reign::Follows;
        self.begin_anew(now);
        self.links.demote();
        self.requests.forget_all();
        self.leave_undecided();
        self.confirmations.give_up();
        self.guide.leader = None;
        self.tell_all();
    }

    /// A coordinator leads in this term, or none that is known.
    pub(super) fn led_by(&mut self, now: Time, term: Term, leader: Option<CoordinatorId>) {
        if term < self.guide.term {
            return;
        }
        self.notice_later_term(now, term);
        let guide = Guide { term, leader };
        if std::mem::replace(&mut self.guide, guide) != guide {
            self.tell_all();
        }
    }

    /// Another coordinator leads or led in this term. If the term is later than this coordinator's
    /// own, this one leads no more.
    pub(super) fn notice_later_term(&mut self, now: Time, term: Term) {
        if let Reign::Elected(own) | Reign::Leads(own) = self.reign
            && own < term
        {
            self.deposed(now);
        }
    }

    /// Forgets all about workers but what the log says.
    pub(super) fn begin_anew(&mut self, now: Time) {
        self.silence = Silence::new(now);
        (self.phase, self.feeds) = (change::Phase::Steady, Feeds::default());
        self.partition = Partition::default();
        self.results.clear();
        (self.model, self.unable) = (Model::default(), Unable::default());
        self.progress = Progress::default();
        self.telemetry.clear();
        self.statuses.clear();
        self.reached = Step(0);
        self.confirmations.forget_workers();
    }

    /// Tells a peer, after its first message, which coordinators there are. The peer is told again
    /// whenever they change. Returns whether this was the first message.
    pub(super) fn introduce(&mut self, link: LinkId) -> bool {
        let is_first = self.links.introduce(link);
        if is_first {
            self.tell(vec![link]);
        }
        is_first
    }

    pub(super) fn tell_all(&mut self) {
        let all = self.links.introduced();
        self.tell(all);
    }

    /// Tells which coordinators there are, once the log knows some.
    pub(super) fn tell(&mut self, to: Vec<LinkId>) {
        let members = self.state.coordinators();
        if !members.is_empty() {
            let Guide { term, leader } = self.guide;
            let revision = self.state.revision();
            self.broadcast(to, Message::Coordinators { revision, term, leader, members });
        }
    }

    /// Handles a message of another coordinator. Messages between replicas do not come here.
    pub(super) fn consult(&mut self, now: Time, from: LinkId, message: Message) {
        let (id, incarnation, address, api) = match message {
            Message::Join { id, incarnation, address, api } => (id, incarnation, address, api),
            Message::FetchLines { lineage, after } => {
                return self.lines_wanted(from, lineage, after);
            }
            Message::Lines { lineage, reach, lines } => {
                return self.lines_told(now, from, (lineage, reach), lines);
            }
            _ => {
                self.ignored += 1;
                return;
            }
        };
        self.introduce(from);
        if self.leader().is_none() {
            return self.tell(vec![from]);
        }
        if let Some(link) = self.links.find(from) {
            let name = link.identity.name.clone();
            let coordinator = Coordinator { name, incarnation, address, api };
            // Every coordinator sends this to every other coordinator that it meets.
            if id.is_none() || !self.state.knows(&coordinator) {
                self.propose(now, Command::Coordinator { id, coordinator });
            }
        }
    }

    /// Tells a coordinator that it is one of the cluster, under this id.
    pub(super) fn joined(&mut self, coordinator: &Coordinator, id: CoordinatorId) {
        let links = self.links.named(Role::Coordinator, &coordinator.name);
        self.broadcast(links, Message::Joined { id });
    }
}

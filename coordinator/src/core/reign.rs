//! Who leads, as far as this coordinator knows, and who the coordinators are.
//!
//! One that follows answers no worker: it keeps the links of all who have said Hello, so that it
//! can answer them at once when it leads. It tells every peer where the coordinators are and which
//! of them leads, so that whoever was given one address learns all.

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
    /// Another one does, or none.
    Follows,
    /// It will, when its entry of this term has applied.
    Elected(Term),
    /// It does.
    Leads(Term),
}

/// Where whoever asks is sent.
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

    /// This coordinator leads from now on. What it knows of workers is that they are registered:
    /// each of them gets a fresh deadline. Workers of a run that is over are expected no more.
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

    /// It leads no longer, or was never to: whatever it knew as a leader is void.
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

    /// Somebody leads in this term, or nobody that is known.
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

    /// Somebody leads or led in this term, whatever this coordinator was told: perhaps it is not
    /// the one that leads any more.
    pub(super) fn notice_later_term(&mut self, now: Time, term: Term) {
        if let Reign::Elected(own) | Reign::Leads(own) = self.reign
            && own < term
        {
            self.deposed(now);
        }
    }

    /// Nothing is known of workers but what the log says.
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

    /// A peer's first word: it is told who the coordinators are, now and whenever that changes.
    /// Returns whether it was the first.
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

    /// Says who the coordinators are, once the cluster has some that are known.
    pub(super) fn tell(&mut self, to: Vec<LinkId>) {
        let members = self.state.coordinators();
        if !members.is_empty() {
            let Guide { term, leader } = self.guide;
            let revision = self.state.revision();
            self.broadcast(to, Message::Coordinators { revision, term, leader, members });
        }
    }

    /// What another coordinator says to this one; what replicas say to each other does not come
    /// here.
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
            // Every coordinator says this to every other that it meets.
            if id.is_none() || !self.state.knows(&coordinator) {
                self.propose(now, Command::Coordinator { id, coordinator });
            }
        }
    }

    /// A coordinator is one of them, under this id.
    pub(super) fn joined(&mut self, coordinator: &Coordinator, id: CoordinatorId) {
        let links = self.links.named(Role::Coordinator, &coordinator.name);
        self.broadcast(links, Message::Joined { id });
    }
}

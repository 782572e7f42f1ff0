//! Who the coordinators are: how one becomes one of them, and how one ceases to be.
//!
//! The state says who they are to be; the replica's members follow it, and then the log does
//! without whoever was removed. But nobody is told so, nor shut out, before the log says that, too:
//! the leader proposes it when the change is on its own disk, so whoever takes that entry knows the
//! change with it, and agreed, a majority of those that are left does. Shut out any earlier, a
//! coordinator could be switched off while the others, started again or bereft of their leader,
//! still need its vote.

use std::time::Duration;

use everstep_transport::identity::Identity;
use everstep_transport::protocol::{
    CoordinatorId, CoordinatorView, Message, NodeName, RequestId, Wish,
};
use everstep_transport::time::Time;

use super::{Effect, FIRST_DOUBT, Seat, encode, peers};
use crate::core::{self, LinkId, TELLING};
use crate::raft::ReplicaId;
use crate::state::{Command, Coordinator, Entry};

/// How often what the log is to say is said again, until it does.
const PAUSE: Duration = Duration::from_millis(500);
/// For so long whoever has lost its link may come back by itself.
const ABSENCE: Duration = Duration::from_secs(10);

/// Since when somebody is kept who may tell this coordinator what it lacks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Teller {
    /// When it was found to be needed, or the newest page came.
    since: Time,
    /// When there was a link last.
    linked: Time,
}

impl Seat {
    /// The names of coordinators that are to have no link any more.
    pub fn shut_out(&self) -> Vec<NodeName> {
        let views = self.core.state().those_shut_out().into_iter();
        #[cfg(feature = "planted")]
        let views = views.chain(self.shut_out_early());
        views.map(|view| view.name).collect()
    }

    #[cfg(feature = "planted")]
    fn shut_out_early(&self) -> impl Iterator<Item = CoordinatorView> {
        let is_planted = self.core.plant == Some(crate::plant::Plant::ShutOutEarly);
        let leaving = self.core.state().leaving().into_iter().filter(move |_| is_planted);
        leaving.filter(|view| !self.replica.members().contain(ReplicaId(view.id)))
    }

    /// Coordinators to which there is no link.
    pub fn to_dial(&self) -> Vec<CoordinatorView> {
        self.peers.missing(self.replica.members())
    }

    pub(super) fn was_removed(&self, id: CoordinatorId) -> bool {
        let all = self.core.state().coordinators();
        !all.is_empty() && all.iter().all(|view| view.id != id)
    }

    /// Whoever is at the other end may have been removed, and not know. But this one may not know
    /// either that it leads no longer, and that the other has joined since: it asks.
    pub(super) fn doubt(&mut self, link: LinkId) {
        if self.leads.is_some() && !self.doubts.values().any(|other| *other == link) {
            let ticket = FIRST_DOUBT + self.doubts_before;
            self.doubts_before += 1;
            self.doubts.insert(ticket, link);
            self.replica.read(ticket);
        }
    }

    /// A doubt is over: all that was agreed when it arose is applied here, or nobody knows.
    pub(super) fn settle_doubt(&mut self, ticket: u64, is_certain: bool) {
        let Some(link) = self.doubts.remove(&ticket) else { return };
        let Some(name) = self.peers.name_of(link) else { return };
        let known = self.peers.id_of(self.replica.members(), link);
        let is_leaving = self.core.state().leaving().iter().any(|view| view.name == *name);
        let is_needed = is_leaving && !self.shut_out().contains(name);
        if is_certain && known.is_none() && !is_needed {
            self.effects.push_back(Effect::Send { to: link, message: Message::Removed });
        }
    }

    /// A coordinator says where it is to every other that it meets.
    pub(super) fn introduce_to(&mut self, to: LinkId, identity: &Identity) {
        if peers::is_coordinator(identity) {
            self.say_where(to);
        }
    }

    fn say_where(&mut self, to: LinkId) {
        let Coordinator { incarnation, address, api, .. } = self.own;
        let message = Message::Join { id: Some(self.peers.own().0), incarnation, address, api };
        self.effects.push_back(Effect::Send { to, message });
    }

    /// Whether a coordinator is to be one no more, the log decides; but whether anything could be
    /// agreed on without it, only who leads knows, and at this moment.
    pub(super) fn asked_to_remove(
        &mut self,
        now: Time,
        from: LinkId,
        id: RequestId,
        gone: CoordinatorId,
    ) {
        // What was asked for before may be in the log, and is answered from there.
        let is_new = self.core.leader().is_some() && !self.core.knows_request(id);
        match is_new.then(|| self.why_needed(now, gone)).flatten() {
            Some(reason) => {
                let message = Message::Answer { id, refusal: Some(reason), run: None };
                self.effects.push_back(Effect::Send { to: from, message });
            }
            None => {
                let message = Message::Request { id, wish: Wish::Remove(gone) };
                self.core.handle(now, core::Input::Message { from, message });
            }
        }
    }

    fn why_needed(&self, now: Time, gone: CoordinatorId) -> Option<String> {
        let mut left = self.core.state().coordinators();
        let before = left.len();
        left.retain(|view| view.id != gone);
        let silent = |view: &&CoordinatorView| self.silent_since(now, ReplicaId(view.id)).is_some();
        let silent: Vec<String> = left.iter().filter(silent).map(|it| it.id.to_string()).collect();
        let is_one = left.len() < before;
        (is_one && 2 * silent.len() >= left.len() && !left.is_empty()).then(|| {
            format!(
                "without coordinator {gone} nothing could be agreed on: {} of the {} that would be \
                 left are not heard (id {}); bring them back, or remove those first",
                silent.len(),
                left.len(),
                silent.join(", ")
            )
        })
    }

    /// The replicas are to be those of the coordinators. The wish goes with leadership, and is
    /// repeated until it has come true.
    pub(super) fn seek_members(&mut self, now: Time) {
        let all = self.core.state().coordinators();
        let wanted: Vec<_> = all.iter().map(|view| ReplicaId(view.id)).collect();
        if !wanted.is_empty() && !self.replica.is_settled_on(&wanted) {
            let _ = self.replica.change(wanted); // refused while leadership is handed over
        }
        self.shut_out_who_left(now);
    }

    fn shut_out_who_left(&mut self, now: Time) {
        let leaving = self.core.state().leaving();
        if self.may_yet_be_told(now, &leaving) {
            return;
        }
        let is_left = |view: &&CoordinatorView| {
            let id = ReplicaId(view.id);
            !self.settled.contain(id) && self.replica.is_done_without(id)
        };
        let due = self.said_who_left.is_none_or(|last| now.since(last) >= PAUSE);
        let left: Vec<_> = leaving.iter().filter(is_left).filter(|_| due).collect();
        for view in left {
            self.said_who_left = Some(now);
            let command = Command::ShutOut { coordinator: view.id };
            self.propose(now, encode(&Entry { unix_ms: self.core.unix_ms(now), command }));
        }
    }

    /// Whether who leaves may tell what this coordinator lacks of the history, and be the only one.
    fn may_yet_be_told(&mut self, now: Time, leaving: &[CoordinatorView]) -> bool {
        #[cfg(feature = "planted")]
        if self.core.plant == Some(crate::plant::Plant::ShutOutTellers) {
            return false;
        }
        if !self.lacks_history || leaving.is_empty() {
            self.teller = None;
            return false;
        }
        let teller = self.teller.get_or_insert(Teller { since: now, linked: now });
        if leaving.iter().any(|view| self.peers.is_linked(&view.name)) {
            teller.linked = now;
        }
        now.since(teller.linked) < ABSENCE && now.since(teller.since) < TELLING
    }

    /// A page of the history that is missing has come: the rest is waited for as long again.
    pub(super) fn told_history(&mut self, now: Time) {
        if let Some(teller) = &mut self.teller {
            teller.since = now;
        }
        self.core.handle(now, core::Input::HistoryTold);
    }

    /// Founds the cluster, or says where it is found by now, until the log says the same.
    pub(super) fn settle_in(&mut self, now: Time) {
        let due = self.introduced.is_none_or(|last| now.since(last) >= PAUSE);
        let (state, id) = (self.core.state(), self.peers.own());
        let coordinators = state.coordinators();
        if !due || state.knows(&self.own) {
            return;
        }
        let listed = coordinators.iter().any(|view| view.id == id.0);
        let coordinator = self.own.clone();
        let command = match self.founds {
            Some(ephemeral) if coordinators.is_empty() => {
                let tokens = self.tokens.clone();
                Command::Found { ephemeral, founder: coordinator, tokens }
            }
            _ if listed => Command::Coordinator { id: Some(id.0), coordinator },
            // It does not know the log yet, or was removed, and asks whether it may go.
            _ => {
                self.introduced = Some(now);
                return self.peers.links().into_iter().for_each(|link| self.say_where(link));
            }
        };
        // Where there is nobody to tell yet, it is told as soon as there is.
        if self.leads.is_some() {
            self.introduced = Some(now);
            let entry = Entry { unix_ms: self.core.unix_ms(now), command };
            self.propose(now, encode(&entry));
        } else if let Some(link) =
            self.leader.and_then(|id| self.peers.link_of(self.replica.members(), id))
        {
            self.introduced = Some(now);
            self.say_where(link);
        }
    }
}

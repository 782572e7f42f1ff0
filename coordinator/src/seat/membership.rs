//! How a process becomes a coordinator, and how it ceases to be one.
//!
//! The state lists the coordinators. The replica's members follow that list, and then the log goes
//! on without a removed coordinator. But the leader tells and shuts out a removed coordinator only
//! when the log says that, too. The leader proposes this entry when the change is on its own disk.
//! So every replica that takes the entry knows the change with it. Once the entry is agreed, a
//! majority of the remaining coordinators knows it. Shut out any earlier, a removed coordinator
//! could be switched off while the others, restarted or without their leader, still need its vote.

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

/// How long a coordinator waits before it proposes or announces the same again.
const PAUSE: Duration = Duration::from_millis(500);
/// How long a leader waits for a leaving coordinator that has lost its link to return.
const ABSENCE: Duration = Duration::from_secs(10);

/// Since when the leader keeps a leaving coordinator that may send the missing history.
#[derive(Clone, Copy, Debug)]
pub(super) struct Teller {
    /// When the leader found that it needs one, or when the newest page came.
    since: Time,
    /// When a link to a leaving coordinator existed last.
    linked: Time,
}

impl Seat {
    /// The names of coordinators that may have no link any more.
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

    /// Coordinators to which this one has no link and should dial.
    pub fn to_dial(&self) -> Vec<CoordinatorView> {
        self.peers.missing(self.replica.members())
    }

    pub(super) fn was_removed(&self, id: CoordinatorId) -> bool {
        let all = self.core.state().coordinators();
        !all.is_empty() && all.iter().all(|view| view.id != id)
    }

    /// The coordinator at the other end may have been removed, and not know. But this leader may
    /// not know either that it no longer leads, and that the other has joined since. So it asks the
    /// log with a read.
    pub(super) fn doubt(&mut self, link: LinkId) {
        if self.leads.is_some() && !self.doubts.values().any(|other| *other == link) {
            let ticket = FIRST_DOUBT + self.doubts_before;
            self.doubts_before += 1;
            self.doubts.insert(ticket, link);
            self.replica.read(ticket);
        }
    }

    /// A doubt is over. If `is_certain`, this coordinator has applied all that was agreed when the
    /// doubt arose. Otherwise it learns nothing.
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

    /// A coordinator tells its address to every other coordinator that it meets.
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

    /// The log decides whether a coordinator is removed. But only the leader knows, and only at
    /// this moment, whether the others could agree on anything without that coordinator.
    pub(super) fn asked_to_remove(
        &mut self,
        now: Time,
        from: LinkId,
        id: RequestId,
        gone: CoordinatorId,
    ) {
        // An earlier copy of this request may be in the log. The log answers it then.
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

    /// Asks for the replicas of the listed coordinators as members. The request is lost with
    /// leadership, so the leader repeats it until it has come true.
    pub(super) fn seek_members(&mut self, now: Time) {
        let all = self.core.state().coordinators();
        let wanted: Vec<_> = all.iter().map(|view| ReplicaId(view.id)).collect();
        if !wanted.is_empty() && !self.replica.is_settled_on(&wanted) {
            let _ = self.replica.change(wanted); // refused while leadership is being handed over
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

    /// Whether a leaving coordinator, perhaps the only one, may still send this one the missing
    /// history.
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

    /// A page of the missing history has come. The leader waits as long again for the rest.
    pub(super) fn told_history(&mut self, now: Time) {
        if let Some(teller) = &mut self.teller {
            teller.since = now;
        }
        self.core.handle(now, core::Input::HistoryTold);
    }

    /// Founds the cluster, or announces a new address, until the log says the same.
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
            // It does not know the log yet, or was removed. It asks whether it may go.
            _ => {
                self.introduced = Some(now);
                return self.peers.links().into_iter().for_each(|link| self.say_where(link));
            }
        };
        // Without a leader it waits. It announces itself as soon as it knows one.
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

//! How a process becomes a coordinator, and how it ceases to be one.
//!
//! The state lists the coordinators. The replica's members follow that list, and then the log goes
//! on without a removed coordinator. But the leader tells and shuts out a removed coordinator only
//! when the log says that, too. The leader proposes this entry when the change is on its own disk.
//! So every replica that takes the entry knows the change with it. Once the entry is agreed, a
//! majority of the remaining coordinators knows it. Shut out any earlier, a removed coordinator
//! could be switched off while the others, restarted or without their leader, still need its vote.

use everstep_transport::identity::Identity;
use everstep_transport::protocol::rejection::Rejection;
use everstep_transport::protocol::{
    CoordinatorId, CoordinatorView, Message, NodeName, OperatorCommand, RequestId,
};
use everstep_transport::time::Time;

use super::history_restore::LeavingSenders;
use super::{Node, peers};
use crate::core::{CoreInput, LinkId, ShellEffect, ShellInput};
use crate::raft::ReplicaId;
use crate::state::{Command, CommandEntry};

impl Node {
    /// The names of coordinators that may have no link any more.
    pub fn shut_out(&self) -> impl Iterator<Item = &NodeName> {
        let names = self.core.state().names_shut_out().map(|(_, name)| name);
        #[cfg(feature = "planted")]
        let names = names.chain(self.shut_out_early());
        names
    }

    #[cfg(feature = "planted")]
    fn shut_out_early(&self) -> impl Iterator<Item = &NodeName> {
        let is_planted = self.core.state().plant == Some(crate::plant::CorePlant::ShutOutEarly);
        let leaving = self.core.state().names_leaving().filter(move |_| is_planted);
        let gone = leaving.filter(|(id, _)| !self.replica.members().contain(ReplicaId::from(*id)));
        gone.map(|(_, name)| name)
    }

    /// Coordinators to which this one has no link and should dial.
    pub fn to_dial(&self) -> Vec<CoordinatorView> {
        self.peers.missing(self.replica.members())
    }

    pub(super) fn was_removed(&self, id: CoordinatorId) -> bool {
        let state = self.core.state();
        state.is_founded() && state.coordinator_ids().all(|listed| listed != id)
    }

    /// The coordinator at the other end may have been removed, and not know. But this leader may
    /// not know either that it no longer leads, and that the other has joined since. So it asks the
    /// log with a read.
    pub(super) fn check_removal(&mut self, link: LinkId) {
        if self.leadership.leads()
            && let Some(ticket) = self.removals.check(link)
        {
            self.replica.read(ticket);
        }
    }

    /// A removal check is over. If `is_certain`, this coordinator has applied all that was agreed
    /// when the check began. Otherwise it learns nothing.
    pub(super) fn finish_removal_check(&mut self, ticket: u64, is_certain: bool) {
        let Some(link) = self.removals.finish(ticket) else { return };
        let Some(name) = self.peers.name_of(link) else { return };
        let known = self.peers.id_of(self.replica.members(), link);
        let is_leaving = self.core.state().leaving().iter().any(|view| view.name == *name);
        let is_needed = is_leaving && !self.shut_out().any(|gone| gone == name);
        if is_certain && known.is_none() && !is_needed {
            self.push(ShellEffect::Send { to: link, message: Message::Removed });
        }
    }

    /// A coordinator tells its address to every other coordinator that it meets.
    pub(super) fn introduce_to(&mut self, to: LinkId, identity: &Identity) {
        if peers::is_coordinator(identity) {
            self.send_address(to);
        }
    }

    fn send_address(&mut self, to: LinkId) {
        let message = self.introduction.message(self.peers.own().into());
        self.push(ShellEffect::Send { to, message });
    }

    /// The log decides whether a coordinator is removed. But only the leader knows, and only at
    /// this moment, whether the others could agree on anything without that coordinator.
    pub(super) fn on_remove_request(
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
                self.push(ShellEffect::Send { to: from, message });
            }
            None => {
                let message = Message::Request { id, command: OperatorCommand::Remove(gone) };
                self.core.handle(now, ShellInput::Message { from, message });
            }
        }
    }

    fn why_needed(&self, now: Time, gone: CoordinatorId) -> Option<Rejection> {
        let mut left = self.core.state().coordinators();
        let before = left.len();
        left.retain(|view| view.id != gone);
        let silent =
            |view: &&CoordinatorView| self.silent_since(now, ReplicaId::from(view.id)).is_some();
        let silent: Vec<_> = left.iter().filter(silent).map(|view| view.id).collect();
        let (left, is_one) = (left.len(), left.len() < before);
        let is_needed = is_one && 2 * silent.len() >= left && left > 0;
        is_needed.then_some(Rejection::NeededCoordinator { gone, left, silent })
    }

    /// Asks for the replicas of the listed coordinators as members. The request is lost with
    /// leadership, so the leader repeats it until it has come true.
    pub(super) fn seek_members(&mut self, now: Time) {
        let wanted: Vec<_> = self.core.state().coordinator_ids().map(ReplicaId::from).collect();
        if !wanted.is_empty() && !self.replica.is_settled_on(&wanted) {
            let _ = self.replica.change(wanted); // refused while leadership is being handed over
        }
        self.shut_out_departed(now);
    }

    fn shut_out_departed(&mut self, now: Time) {
        let leaving = self.core.state().leaving();
        if self.awaits_history(now, &leaving) {
            return;
        }
        let is_left = |view: &&CoordinatorView| {
            let id = ReplicaId::from(view.id);
            self.removals.is_settled_without(id) && self.replica.is_done_without(id)
        };
        let due = self.removals.may_propose(now);
        let left: Vec<_> = leaving.iter().filter(is_left).filter(|_| due).collect();
        for view in left {
            self.removals.propose(now);
            let command = Command::ShutOut { coordinator: view.id };
            self.propose_entry(now, &CommandEntry { unix_ms: self.core.unix_ms(now), command });
        }
    }

    /// Whether a leaving coordinator, perhaps the only one, may still send this one missing history
    /// or lines.
    fn awaits_history(&mut self, now: Time, leaving: &[CoordinatorView]) -> bool {
        #[cfg(feature = "planted")]
        if self.core.state().plant == Some(crate::plant::CorePlant::ShutOutTellers) {
            return false;
        }
        let leaving = match leaving.iter().any(|view| self.peers.is_linked(&view.name)) {
            true => LeavingSenders::Linked,
            false if leaving.is_empty() => LeavingSenders::None,
            false => LeavingSenders::CutOff,
        };
        self.history.awaits_sender(now, self.core.may_lack_lines(), leaving)
    }

    /// A page of the missing history has come. The leader waits as long again for the rest.
    pub(super) fn on_history_page(&mut self, now: Time) {
        self.history.on_page(now);
        self.core.handle(now, CoreInput::HistoryPage);
    }

    /// Founds the cluster, or announces a new address, until the log says the same.
    pub(super) fn announce_itself(&mut self, now: Time) {
        let (state, id) = (self.core.state(), self.peers.own());
        if !self.introduction.is_due(now, state) {
            return;
        }
        let Some(command) = self.introduction.command(state, id.into()) else {
            // It asks whether it may go.
            self.introduction.told(now);
            return self.peers.links().into_iter().for_each(|link| self.send_address(link));
        };
        // Without a leader it waits. It announces itself as soon as it knows one.
        let leader = self.leadership.leader();
        if self.leadership.leads() {
            self.introduction.told(now);
            let entry = CommandEntry { unix_ms: self.core.unix_ms(now), command };
            self.propose_entry(now, &entry);
        } else if let Some(link) =
            leader.and_then(|id| self.peers.link_of(self.replica.members(), id))
        {
            self.introduction.told(now);
            self.send_address(link);
        }
    }
}

//! Changes of the coordinators: machines that ask to be one, machines with a lost, damaged or full
//! disk, and coordinators that the operator removes or asks to stop.
//!
//! A lost directory never comes back under its id or its name. The machine asks to be a coordinator
//! again, under a new id, and the operator removes the old coordinator. The world leaves out faults
//! that would cost any cluster its log or its history, as the loss of a second disk before the
//! first is replaced.
//!
//! A removed coordinator has no links with coordinators that know of its removal. It ends when one
//! of them tells it so, or refuses it.

use std::time::Duration;

use everstep_coordinator::core::{LinkId, ShellInput};
use everstep_coordinator::node::{NODE_TICK, NodeInput};
use everstep_coordinator::raft::{DurableState, Members, ReplicaId};
use everstep_coordinator::state::CoordinatorInfo;
use everstep_transport::protocol::{CoordinatorId, Message, NodeName, OperatorCommand};
use everstep_transport::time::Time;

use super::coordinator::{Directory, Process};
use super::disk::CoordinatorDisk;
use super::history_file::HistoryFile;
use super::link::End;
use super::types::Event;
use super::{NodeId, World};
use crate::check::{Observation, Violation};
use crate::fault::Fault;

/// How often a machine asks to be a coordinator.
const JOIN_REQUEST_INTERVAL: Duration = Duration::from_millis(500);
/// How long a leader that is to stop waits for another leader.
const LEADER_TRANSFER_TIMEOUT: Duration = Duration::from_secs(1);

/// What the schedule plans for a coordinator's machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MachinePlan {
    /// Processes may start there again.
    #[default]
    Open,
    /// The operator removes its coordinator. A new one asks in its place after this time. With None
    /// no other one does.
    Removal(Option<Duration>),
    /// No process starts there.
    Retired,
    /// A byte of its log has changed, so no process can start with it. Once the operator has
    /// removed the coordinator that had this log, a new one asks in its place after this time.
    Damaged(Duration),
}

impl MachinePlan {
    /// Whether no process can start there.
    pub fn is_in_the_way(self) -> bool {
        matches!(self, Self::Retired | Self::Damaged(_))
    }
}

// The members.
impl World {
    /// The machine of the coordinator with this id.
    pub(super) fn place_of(&self, id: CoordinatorId) -> Option<usize> {
        self.coordinators.iter().position(|known| known.directory.id == Some(id))
    }

    /// The members of the log, as the leader knows them. Without a leader, as the coordinator knows
    /// them that has applied most of the log.
    fn members(&self) -> Option<&Members> {
        let newest = || {
            let places = 0..self.coordinators.len();
            places.max_by_key(|place| self.coordinators[*place].applied())
        };
        let node = self.coordinators[self.leader().or_else(newest)?].node()?;
        Some(node.replica().members())
    }

    /// Whether most of the members run. A member that was removed and told so does not count, even
    /// if the others do not know that yet (I11).
    pub(super) fn has_quorum(&self) -> bool {
        let runs = |id: &ReplicaId| {
            let place = self.place_of((*id).into());
            place.is_some_and(|place| {
                let coordinator = &self.coordinators[place];
                let stands = self.faults.is_paused(NodeId::Coordinator(place))
                    || coordinator.disk().stalled(self.now).is_some();
                coordinator.node().is_some() && !stands
            })
        };
        let most = |ids: &[ReplicaId]| {
            let is_gone = |id: &ReplicaId| self.checkers.invariants.was_dismissed((*id).into());
            let needed = || ids.iter().filter(|id| !is_gone(id));
            2 * needed().filter(|id| runs(id)).count() > needed().count()
        };
        self.members().is_some_and(|members| {
            most(&members.voters) && (!members.is_joint() || most(&members.outgoing))
        })
    }

    /// Whether the log lists all machines that are coordinators, each has a vote, and no change of
    /// members is under way.
    fn is_settled(&self) -> bool {
        let Some(node) = self.leader().and_then(|place| self.coordinators[place].node()) else {
            return false;
        };
        let ids = self.coordinators.iter().filter_map(|known| known.directory.id);
        let mut ids: Vec<ReplicaId> = ids.map(ReplicaId::from).collect();
        ids.sort_unstable();
        let listed =
            node.core().state().coordinator_ids().map(ReplicaId::from).eq(ids.iter().copied());
        let settled = Members { voters: ids, ..Members::default() };
        listed && *node.replica().members() == settled && !self.operator.wishes_a_removal()
    }

    /// Whether another coordinator has the whole history.
    fn is_told_elsewhere(&self, place: usize) -> bool {
        let others = self.coordinators.iter().enumerate().filter(|(other, _)| *other != place);
        let mut members = others.filter(|(_, known)| known.directory.id.is_some());
        members.any(|(_, known)| known.disk().history_file().is_whole())
    }
}

// Machines that ask to be coordinators.
impl World {
    /// A machine without a coordinator's id asks for one on all its links.
    pub(super) fn petition(&mut self, place: usize) {
        let (own, now) = (NodeId::Coordinator(place), self.now);
        let Process::Asks(asked) = self.coordinators[place].process_mut() else { return };
        if asked.is_some_and(|asked| now.since(asked) < JOIN_REQUEST_INTERVAL) {
            return;
        }
        *asked = Some(now);
        let CoordinatorInfo { incarnation, address, api, log_format, .. } = self.own(place);
        for other in (0..self.coordinators.len()).map(NodeId::Coordinator) {
            if self.network.links.is_open(own, other) {
                let join = Message::Join { id: None, incarnation, address, api, log_format };
                self.say(own, other, join);
            }
        }
    }

    /// A machine that asks to be a coordinator takes an input.
    pub(super) fn answered_petition(
        &mut self,
        place: usize,
        input: NodeInput,
    ) -> Result<(), Violation> {
        let NodeInput::Shell(ShellInput::Message { message, .. }) = input else { return Ok(()) };
        let directory = &mut self.coordinators[place].directory;
        match message {
            Message::Coordinators { revision, members, .. }
                if revision > directory.membership.0 =>
            {
                directory.membership = (revision, members);
                Ok(())
            }
            Message::Joined { id } => self.admitted(place, id),
            _ => Ok(()),
        }
    }

    /// The machine is a coordinator from now on, and knows nothing of the log.
    fn admitted(&mut self, place: usize, id: CoordinatorId) -> Result<(), Violation> {
        let node = NodeId::Coordinator(place);
        self.note(format_args!("{node} is admitted under id {id}"));
        self.checkers.liveness.tally.joined += 1;
        self.close_links(node, "it is a coordinator now");
        self.end_coordinator(place);
        self.forget_links(node);
        self.coordinators[place].directory.id = Some(id);
        self.start_coordinator(place)
    }

    /// Keeps the newest list of coordinators in the directory.
    pub(super) fn keep_book(&mut self, place: usize) -> Result<(), Violation> {
        let coordinator = &mut self.coordinators[place];
        let Some(state) = coordinator.node().map(|node| node.core().state()) else { return Ok(()) };
        let revision = state.revision();
        if revision <= coordinator.directory.membership.0 {
            return Ok(());
        }
        let all = state.coordinators();
        let ids: Vec<CoordinatorId> = all.iter().map(|view| view.id).collect();
        coordinator.directory.membership = (revision, all);
        self.observe(Observation::Listed(revision, &ids))
    }
}

// Coordinators that are shut out.
impl World {
    /// A coordinator closes its links with removed coordinators, as the daemon's allow list does.
    pub(super) fn shut_out(&mut self, place: usize) {
        let Some(node) = self.coordinators[place].node() else { return };
        if node.shut_out().eq(&self.coordinators[place].shut_out) {
            return;
        }
        let shut_out: Vec<NodeName> = node.shut_out().cloned().collect();
        self.note(format_args!("coordinator {place} shuts out {shut_out:?}"));
        self.coordinators[place].shut_out = shut_out;
        let own = NodeId::Coordinator(place);
        for other in 0..self.coordinators.len() {
            let peer = NodeId::Coordinator(other);
            if self.refuses(place, other)
                && self.network.links.is_open(own, peer)
                && let Some(link) = self.network.links.number(own, peer)
            {
                self.hang_up(place, LinkId(link), End::expelled());
            }
        }
        if let Some(restart) = self.faults.armed.take_crash_on_expel() {
            let crash = Fault::Crash { node: own, restart: Some(restart) };
            self.queue.put(self.now, Event::Fault(Box::new(crash)));
        }
    }

    fn refuses(&self, place: usize, other: usize) -> bool {
        let shut_out = &self.coordinators[place].shut_out;
        !shut_out.is_empty() && shut_out.contains(&self.coordinators[other].of_today().name)
    }

    /// Whether one of two coordinators refuses a link between them. The refused one always learns
    /// it, since it dials too, even if this dial came from the other one.
    pub(super) fn refuse(&mut self, one: usize, two: usize) -> bool {
        let refused = [(one, two), (two, one)].map(|(by, whom)| (self.refuses(by, whom), whom));
        for (_, whom) in refused.iter().filter(|(is_refused, _)| *is_refused) {
            self.later(Event::Removed(*whom));
        }
        refused.iter().any(|(is_refused, _)| *is_refused)
    }
}

// Coordinators that go.
impl World {
    /// The place and id of the coordinator on a machine, if there are at least `least` members and
    /// the membership is settled.
    fn removable(&self, machine: NodeId, least: usize) -> Option<(usize, CoordinatorId)> {
        let NodeId::Coordinator(place) = machine else { return None };
        let id = self.coordinators.get(place)?.directory.id?;
        let enough = self.members()?.voters.len() >= least;
        (enough && self.is_settled()).then_some((place, id))
    }

    /// As [`World::removable`], if the others can go on without its disk at once, since one of them
    /// has the whole history.
    fn expendable(&self, machine: NodeId) -> Option<(usize, CoordinatorId)> {
        self.removable(machine, 3).filter(|(place, _)| self.is_told_elsewhere(*place))
    }

    /// A coordinator's disk is lost with its process, if the cluster can bear that.
    pub(super) fn wipe(&mut self, machine: NodeId, restart: Duration) {
        let Some((place, id)) = self.expendable(machine) else { return };
        self.crash(machine, Some(restart));
        self.note(format_args!("{machine} has an empty disk"));
        self.renew(place);
        self.operator.command(OperatorCommand::Remove(id));
    }

    /// A coordinator's process ends, and a byte of its log changes, if the cluster can bear that.
    /// The store finds the damage at every start, and refuses to open.
    pub(super) fn damage(&mut self, machine: NodeId, restart: Duration) {
        let Some((place, id)) = self.expendable(machine) else { return };
        self.crash(machine, Some(restart));
        self.note(format_args!("a byte on the disk of {machine} is another one"));
        self.coordinators[place].plan = MachinePlan::Damaged(restart);
        self.operator.command(OperatorCommand::Remove(id));
    }

    /// The operator's removal was answered. A new coordinator may begin on a machine with a damaged
    /// log.
    pub(super) fn has_removed(&mut self, id: CoordinatorId) {
        let Some(place) = self.place_of(id) else { return };
        if let MachinePlan::Damaged(restart) = self.coordinators[place].plan {
            self.checkers.liveness.tally.replaced += 1;
            self.renew(place);
            self.queue.put(self.now + restart, Event::Restart(NodeId::Coordinator(place)));
        }
    }

    /// A coordinator's disk is full. Its process ends at the next write.
    pub(super) fn fill(&mut self, machine: NodeId, restart: Duration) {
        if let NodeId::Coordinator(place) = machine
            && let Some(coordinator) = self.coordinators.get_mut(place)
            && coordinator.node().is_some()
        {
            coordinator.disk_mut().fill(restart);
        }
    }

    /// A write has failed, since the disk is full. The process ends and tells its peers why.
    pub(super) fn end_for_room(&mut self, place: usize, restart: Duration) {
        let node = NodeId::Coordinator(place);
        self.note(format_args!("{node} ends: no storage space"));
        self.checkers.liveness.tally.full += 1;
        self.close_links(node, "no storage space");
        self.end_coordinator(place);
        self.queue.put(self.now + restart, Event::Restart(node));
    }

    /// The operator removes a coordinator. If only that one has a part of the history, the others
    /// must get it before they let it go.
    pub(super) fn remove(&mut self, machine: NodeId, restart: Option<Duration>) {
        if let Some((place, id)) = self.removable(machine, 2) {
            self.coordinators[place].plan = MachinePlan::Removal(restart);
            self.operator.command(OperatorCommand::Remove(id));
        }
    }

    /// A process may start on a retired machine again.
    pub(super) fn revive(&mut self, machine: NodeId) {
        if let NodeId::Coordinator(place) = machine
            && let Some(coordinator) = self.coordinators.get_mut(place)
            && coordinator.plan == MachinePlan::Retired
        {
            coordinator.plan = MachinePlan::Open;
        }
    }

    /// The others go on without a coordinator, and it knows that.
    ///
    /// # Errors
    /// I8, if the others still count on it. I13, if a part of the history goes with it.
    pub(super) fn on_removed(&mut self, place: usize) -> Result<(), Violation> {
        let node = NodeId::Coordinator(place);
        let coordinator = &self.coordinators[place];
        let plan = coordinator.plan;
        let Some(id) = coordinator.directory.id else { return Ok(()) };
        self.observe(Observation::Dismissed(id))?;
        self.note(format_args!("{node} was removed"));
        self.checkers.liveness.tally.removed += 1;
        self.close_links(node, "it was removed");
        self.end_coordinator(place);
        self.renew(place);
        self.judge_history()?;
        match plan {
            MachinePlan::Removal(Some(after)) => {
                self.queue.put(self.now + after, Event::Restart(node));
            }
            _ => self.coordinators[place].plan = MachinePlan::Retired,
        }
        Ok(())
    }

    /// Gives a machine an empty disk.
    fn renew(&mut self, place: usize) {
        let coordinator = &mut self.coordinators[place];
        let incarnation = coordinator.directory.incarnation + 1;
        coordinator.directory = Directory { incarnation, ..Directory::default() };
        coordinator.plan = MachinePlan::Open;
        *coordinator.disk_mut() =
            CoordinatorDisk::new(DurableState::default(), HistoryFile::default());
    }

    /// Stops a coordinator. A leader first waits up to [`LEADER_TRANSFER_TIMEOUT`] for another one
    /// to lead.
    pub(super) fn on_leave(
        &mut self,
        place: usize,
        since: Option<Time>,
        restart: Duration,
    ) -> Result<(), Violation> {
        if since.is_none() {
            self.step_coordinator(place, NodeInput::HandOver)?;
        }
        let Some(coordinator) = self.coordinators.get(place) else { return Ok(()) };
        let since = since.unwrap_or(self.now);
        let leads = coordinator.node().is_some_and(|node| {
            let follows = node.leads().is_none() && node.leader().is_some();
            !follows && node.replica().members().voters.len() > 1
        });
        if leads && self.now.since(since) <= LEADER_TRANSFER_TIMEOUT {
            let again = Event::Leave { place, since: Some(since), restart };
            self.queue.put(self.now + NODE_TICK, again);
            return Ok(());
        }
        if !coordinator.is_down() {
            let node = NodeId::Coordinator(place);
            self.note(format_args!("{node} has stopped, and led: {leads}"));
            self.checkers.liveness.tally.stopped += 1;
            self.coordinators[place].disk_mut().finish();
            self.close_links(node, "it has stopped");
            self.end_coordinator(place);
            self.queue.put(self.now + restart, Event::Restart(node));
        }
        Ok(())
    }
}

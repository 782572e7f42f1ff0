//! Who the coordinators are, while that changes: machines that ask to be one, whose disks are lost,
//! that the operator does without, or that are asked to stop.
//!
//! A directory that is lost never comes back under its id: the machine asks to be a coordinator
//! again, and is another one. Whatever would cost the cluster its log or its history, as the loss
//! of a second disk before the first is replaced, does not happen here.

use std::time::Duration;

use everstep_coordinator::raft::{Kept, Members, ReplicaId};
use everstep_coordinator::seat::{Input, TICK};
use everstep_transport::protocol::{CoordinatorId, Message, Wish};
use everstep_transport::time::Time;

use super::coordinator::{Directory, Process};
use super::disk::Disk;
use super::journal::Journal;
use super::types::Happening;
use super::{Node, World};
use crate::check::Violation;

/// How often somebody asks to be a coordinator.
const ASKING: Duration = Duration::from_millis(500);
/// How long a coordinator that leads and is to stop waits for another one to lead.
const HANDING_OVER: Duration = Duration::from_secs(1);
/// So soon a machine that was removed asks to be a coordinator again.
const RETURN: Duration = Duration::from_millis(300);

// Who they are.
impl World {
    /// The machine of the coordinator with this id.
    pub(super) fn place_of(&self, id: CoordinatorId) -> Option<usize> {
        self.coordinators.iter().position(|known| known.directory.id == Some(id))
    }

    /// The members of the log, as whoever leads knows them, or whoever has applied most of it.
    fn members(&self) -> Option<&Members> {
        let newest = || {
            let places = 0..self.coordinators.len();
            places.max_by_key(|place| self.coordinators[*place].applied())
        };
        let seat = self.coordinators[self.leader().or_else(newest)?].seat()?;
        Some(seat.replica().members())
    }

    /// Whether most of them run.
    pub(super) fn has_quorum(&self) -> bool {
        let runs = |id: &ReplicaId| {
            let place = self.place_of(id.0);
            place.is_some_and(|place| {
                let coordinator = &self.coordinators[place];
                let stands = self.paused.contains_key(&Node::Coordinator(place))
                    || coordinator.disk().stalled(self.now).is_some();
                coordinator.seat().is_some() && !stands
            })
        };
        let most = |ids: &[ReplicaId]| 2 * ids.iter().filter(|id| runs(id)).count() > ids.len();
        self.members().is_some_and(|members| {
            most(&members.voters) && (!members.is_joint() || most(&members.outgoing))
        })
    }

    /// Whether all machines of coordinators are known as such, each of which has a vote, and
    /// nothing is about to change that.
    fn is_settled(&self) -> bool {
        let Some(seat) = self.leader().and_then(|place| self.coordinators[place].seat()) else {
            return false;
        };
        let ids = self.coordinators.iter().filter_map(|known| known.directory.id);
        let mut ids: Vec<ReplicaId> = ids.map(ReplicaId).collect();
        ids.sort_unstable();
        let listed = seat.core().state().coordinators();
        let listed = listed.iter().map(|view| ReplicaId(view.id)).eq(ids.iter().copied());
        let settled = Members { voters: ids, ..Members::default() };
        listed && *seat.replica().members() == settled && !self.operator.wishes_a_removal()
    }

    /// Whether somebody else has the whole history.
    fn is_told_elsewhere(&self, place: usize) -> bool {
        let others = self.coordinators.iter().enumerate().filter(|(other, _)| *other != place);
        let mut members = others.filter(|(_, known)| known.directory.id.is_some());
        members.any(|(_, known)| known.disk().journal().ledger().wanted().is_none())
    }
}

// Those who ask.
impl World {
    /// Who is no coordinator says so on all its links.
    pub(super) fn petition(&mut self, place: usize) {
        let (own, now) = (Node::Coordinator(place), self.now);
        let coordinator = &mut self.coordinators[place];
        let state = coordinator.own();
        let Process::Asks(asked) = coordinator.process_mut() else { return };
        if asked.is_some_and(|asked| now.since(asked) < ASKING) {
            return;
        }
        *asked = Some(now);
        let (incarnation, address) = (state.incarnation, state.address);
        for other in (0..self.coordinators.len()).map(Node::Coordinator) {
            if self.links.is_open(own, other) {
                let join = Message::Join { id: None, incarnation, address, api: None };
                self.say(own, other, join);
            }
        }
    }

    /// Something happens to somebody who is no coordinator yet.
    pub(super) fn answered_petition(
        &mut self,
        place: usize,
        input: Input,
    ) -> Result<(), Violation> {
        let Input::Message { message, .. } = input else { return Ok(()) };
        let directory = &mut self.coordinators[place].directory;
        match message {
            Message::Coordinators { revision, members, .. } if revision > directory.book.0 => {
                directory.book = (revision, members);
                Ok(())
            }
            Message::Joined { id } => self.admitted(place, id),
            _ => Ok(()),
        }
    }

    /// It is one of them from now on, and knows nothing of the log.
    fn admitted(&mut self, place: usize, id: CoordinatorId) -> Result<(), Violation> {
        let node = Node::Coordinator(place);
        self.note(format_args!("{node} is admitted under id {id}"));
        self.course.tally.joined += 1;
        self.close_links(node, "it is a coordinator now");
        self.end_coordinator(place);
        self.forget_links(node);
        self.coordinators[place].directory.id = Some(id);
        self.start_coordinator(place)
    }

    /// Keeps the newest list of coordinators.
    pub(super) fn keep_book(&mut self, place: usize) {
        let coordinator = &mut self.coordinators[place];
        let Some(state) = coordinator.seat().map(|seat| seat.core().state()) else { return };
        if state.revision() > coordinator.directory.book.0 {
            coordinator.directory.book = (state.revision(), state.coordinators());
        }
    }
}

// Those who go.
impl World {
    /// The disk of a coordinator is lost with its process, if the cluster can bear that.
    pub(super) fn wipe(&mut self, machine: Node, restart: Duration) {
        let Node::Coordinator(place) = machine else { return };
        let members = self.members().map_or(0, |members| members.voters.len());
        let known = self.coordinators.get(place).is_some_and(|it| it.directory.id.is_some());
        if !known || members < 3 || !self.is_settled() || !self.is_told_elsewhere(place) {
            return;
        }
        self.crash(machine, Some(restart));
        self.note(format_args!("{machine} has an empty disk"));
        self.renew(place);
    }

    /// The operator wants to do without a coordinator, if the others have all that it has.
    pub(super) fn remove(&mut self, machine: Node) {
        let Node::Coordinator(place) = machine else { return };
        let id = self.coordinators.get(place).and_then(|known| known.directory.id);
        let members = self.members().map_or(0, |members| members.voters.len());
        if let Some(id) = id
            && members > 1
            && self.is_settled()
            && self.is_told_elsewhere(place)
        {
            self.operator.wish(Wish::Remove(id));
        }
    }

    /// The others go on without it, and it knows that.
    pub(super) fn removed(&mut self, place: usize) {
        let node = Node::Coordinator(place);
        self.note(format_args!("{node} was removed"));
        self.course.tally.removed += 1;
        self.close_links(node, "it was removed");
        self.end_coordinator(place);
        self.renew(place);
        if place < self.scenario.coordinators as usize {
            self.queue.put(self.now + RETURN, Happening::Restart(node));
        }
    }

    /// An empty disk.
    fn renew(&mut self, place: usize) {
        let coordinator = &mut self.coordinators[place];
        let incarnation = coordinator.directory.incarnation + 1;
        coordinator.directory = Directory { incarnation, ..Directory::default() };
        *coordinator.disk_mut() = Disk::new(Kept::default(), Journal::default());
    }

    /// A coordinator is to stop: if it leads, it waits a moment for another one to.
    pub(super) fn leave(
        &mut self,
        place: usize,
        since: Option<Time>,
        restart: Duration,
    ) -> Result<(), Violation> {
        if since.is_none() {
            self.coordinate(place, Input::HandOver)?;
        }
        let Some(coordinator) = self.coordinators.get(place) else { return Ok(()) };
        let since = since.unwrap_or(self.now);
        let leads = coordinator.seat().is_some_and(|seat| {
            let follows = seat.leads().is_none() && seat.leader().is_some();
            !follows && seat.replica().members().voters.len() > 1
        });
        if leads && self.now.since(since) <= HANDING_OVER {
            let again = Happening::Leave { place, since: Some(since), restart };
            self.queue.put(self.now + TICK, again);
            return Ok(());
        }
        if !coordinator.is_down() {
            let node = Node::Coordinator(place);
            self.note(format_args!("{node} has stopped, and led: {leads}"));
            self.course.tally.stopped += 1;
            self.coordinators[place].disk_mut().finish();
            self.close_links(node, "it has stopped");
            self.end_coordinator(place);
            self.queue.put(self.now + restart, Happening::Restart(node));
        }
        Ok(())
    }
}

//! The other workers, as a worker's shell keeps them. It talks to the workers that its generation
//! names, and to the joiners that it was told to accept. Input from any other linked worker waits
//! at the door for a while.
//!
//! Of two workers the newer one dials the older one, until it has a link. Messages wait for the
//! link. The shell reports a link as lost if it does not come up in time, or if another link
//! replaces it.

use std::collections::BTreeMap;
use std::time::Duration;

use everstep_transport::protocol::{Message, NodeName, Record, WorkerId};
use everstep_transport::time::Time;
use everstep_worker::step::event::Input;

use super::link::End;
use super::types::{Event, LaneItem};
use super::{NodeId, World};
use crate::check::Violation;

/// How long a link may take to come up.
const PEER_LINK_TIMEOUT: Duration = Duration::from_secs(3);
/// The wait between two dials, at first and at most.
const PEER_DIAL_BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How many generations may begin while a link is of no use.
const MAX_PENDING_GENERATIONS: u32 = 4;

/// Another worker, as one worker's links know it.
#[derive(Debug)]
pub struct Peer {
    place: usize,
    linked: bool,
    /// Whether something was sent in this generation.
    used: bool,
    /// Messages and items that wait for the link.
    waiting: Vec<Outgoing>,
    /// Since when a link is expected. None once it is up, or once it was reported missing.
    expected: Option<Time>,
    /// When this worker began to dial. Zero if it does not dial.
    called: Time,
}

/// A message or item to send.
#[derive(Debug)]
enum Outgoing {
    Message(Box<Message>),
    Item(LaneItem),
}

/// All other workers that a worker talks to.
#[derive(Debug, Default)]
pub struct Peers {
    peers: BTreeMap<WorkerId, Peer>,
    /// Input from workers that this one does not know yet.
    door: Vec<Event>,
    /// Generations that have begun since a link was of use, by the other's place.
    waited: BTreeMap<usize, u32>,
}

impl Peers {
    /// The id of the worker at a place, if this worker talks to it.
    pub fn id_of(&self, place: usize) -> Option<WorkerId> {
        let found = self.peers.iter().rev().find(|(_, peer)| peer.place == place);
        found.map(|(id, _)| *id)
    }
}

impl World {
    /// A generation begins for a worker: it talks to the other members, and to no other worker.
    pub(super) fn enter_roster(&mut self, place: usize, record: &Record) {
        let own = self.workers[place].name().clone();
        let others = record.members.iter().filter(|member| member.name != own);
        let members: BTreeMap<WorkerId, usize> =
            others.filter_map(|other| Some((other.worker, place_of(&other.name)?))).collect();
        self.workers[place].peers_mut().peers.retain(|id, _| members.contains_key(id));
        self.reset_streams(place, record.number);
        for (id, other) in members {
            self.expect_peer(place, id, other);
        }
        self.let_strangers_go(place);
        self.call_peers(place);
        self.open_the_door(place);
    }

    /// Adds a worker to talk to in this generation, or dials one again after the loss of its link.
    pub(super) fn accept_peer(&mut self, place: usize, worker: WorkerId, name: &NodeName) {
        let known = self.workers[place].peers().peers.get(&worker);
        let known = known.is_some_and(|peer| peer.linked || peer.expected.is_some());
        if let Some(other) = place_of(name).filter(|other| *other != place && !known) {
            self.expect_peer(place, worker, other);
        }
        self.call_peers(place);
        self.open_the_door(place);
    }

    /// Drops all other workers.
    pub(super) fn leave_roster(&mut self, place: usize) {
        self.workers[place].peers_mut().peers.clear();
        for other in self.network.links.workers_of(place) {
            let end = End::lost("this worker begins anew");
            self.close_link(NodeId::Worker(place), NodeId::Worker(other), end);
        }
    }

    /// Begins a generation with a peer. An open link is kept.
    fn expect_peer(&mut self, place: usize, id: WorkerId, other: usize) {
        let linked = self.network.links.is_open(NodeId::Worker(place), NodeId::Worker(other));
        let (expected, called) = ((!linked).then_some(self.now), Time(0));
        let (used, waiting) = (false, Vec::new());
        let peer = Peer { place: other, linked, used, waiting, expected, called };
        self.workers[place].peers_mut().peers.insert(id, peer);
        if !linked {
            let lost_after = self.workers[place].clock().true_time(PEER_LINK_TIMEOUT);
            let overdue = Event::Overdue { place, to: id, since: self.now };
            self.queue.put(self.now + lost_after, overdue);
        }
    }

    /// Closes links that have been of no use for some generations.
    fn let_strangers_go(&mut self, place: usize) {
        for other in self.network.links.workers_of(place) {
            let peers = self.workers[place].peers_mut();
            let is_peer = peers.peers.values().any(|peer| peer.place == other);
            let waited = peers.waited.entry(other).or_default();
            *waited = if is_peer { 0 } else { *waited + 1 };
            if *waited >= MAX_PENDING_GENERATIONS {
                peers.waited.remove(&other);
                let end = End::lost("no member of the generation");
                self.close_link(NodeId::Worker(place), NodeId::Worker(other), end);
            }
        }
    }

    /// Dials the peers without a link that it is this worker's part to dial.
    fn call_peers(&mut self, place: usize) {
        let (now, own) = (self.now, self.workers[place].id());
        let mut called = Vec::new();
        for (id, peer) in &mut self.workers[place].peers_mut().peers {
            if own > Some(*id) && !peer.linked && peer.called == Time(0) {
                peer.called = now;
                called.push(*id);
            }
        }
        for to in called {
            let at = now + self.random.delay();
            self.queue.put(at, Event::Dial { place, to, since: now, wait: PEER_DIAL_BACKOFF.0 });
        }
    }

    /// Tries to bring a link up.
    pub(super) fn dial(
        &mut self,
        place: usize,
        to: WorkerId,
        since: Time,
        wait: Duration,
    ) -> Result<(), Violation> {
        let worker = &self.workers[place];
        let peer = worker.peers().peers.get(&to).filter(|_| !worker.ended());
        let Some(peer) = peer.filter(|peer| peer.called == since && !peer.linked) else {
            return Ok(());
        };
        let other = peer.place;
        let (own, peer) = (NodeId::Worker(place), NodeId::Worker(other));
        let answers = self.is_alive(peer) && !self.faults.is_paused(peer);
        if !answers || !self.reach(own, peer) {
            let again = Event::Dial { place, to, since, wait: (wait * 2).min(PEER_DIAL_BACKOFF.1) };
            self.queue.put(self.now + wait, again);
            return Ok(());
        }
        let replaced = self.network.links.is_open(peer, own);
        self.link(own, peer);
        self.attach(place, other)?;
        match self.workers[other].peers().id_of(place).filter(|_| replaced) {
            Some(from) => self.replace(other, from),
            None => self.attach(other, place),
        }
    }

    /// A peer has dialled again. Messages that went out before in this generation may be lost.
    fn replace(&mut self, place: usize, from: WorkerId) -> Result<(), Violation> {
        let peer = self.workers[place].peers_mut().peers.get_mut(&from);
        let Some(peer) = peer.filter(|peer| peer.used) else { return Ok(()) };
        let other = peer.place;
        self.checkers.liveness.parted(self.now, place, other);
        let reason = "it has connected anew".to_string();
        self.step_worker(place, Input::PeerLost { from, reason })
    }

    /// A link should be up by now.
    pub(super) fn on_overdue(
        &mut self,
        place: usize,
        to: WorkerId,
        since: Time,
    ) -> Result<(), Violation> {
        let peer = self.workers[place].peers_mut().peers.get_mut(&to);
        let Some(peer) = peer.filter(|peer| peer.expected == Some(since)) else { return Ok(()) };
        peer.expected = None;
        let other = peer.place;
        self.checkers.liveness.parted(self.now, place, other);
        let reason = "no link to it came up".to_string();
        self.step_worker(place, Input::PeerLost { from: to, reason })
    }

    /// The link is up. Sends what has waited for it.
    fn attach(&mut self, place: usize, other: usize) -> Result<(), Violation> {
        let Some(id) = self.workers[place].peers().id_of(other) else { return Ok(()) };
        let Some(peer) = self.workers[place].peers_mut().peers.get_mut(&id) else { return Ok(()) };
        (peer.linked, peer.expected, peer.called) = (true, None, Time(0));
        for outgoing in std::mem::take(&mut peer.waiting) {
            match outgoing {
                Outgoing::Message(message) => self.send(place, id, *message),
                Outgoing::Item(item) => self.post(place, id, item)?,
            }
        }
        Ok(())
    }

    /// Sends a message to another worker, once the link is up.
    pub(super) fn send(&mut self, place: usize, to: WorkerId, message: Message) {
        let Some(peer) = self.workers[place].peers_mut().peers.get_mut(&to) else { return };
        peer.used = true;
        if peer.linked {
            let other = peer.place;
            self.say(NodeId::Worker(place), NodeId::Worker(other), message);
        } else {
            peer.waiting.push(Outgoing::Message(message.into()));
        }
    }

    /// Puts an item on its stream to another worker, once the link is up.
    pub(super) fn post(
        &mut self,
        place: usize,
        to: WorkerId,
        item: LaneItem,
    ) -> Result<(), Violation> {
        let Some(peer) = self.workers[place].peers_mut().peers.get_mut(&to) else { return Ok(()) };
        peer.used = true;
        if peer.linked {
            let other = peer.place;
            return self.stream(place, other, item);
        }
        peer.waiting.push(Outgoing::Item(item));
        Ok(())
    }

    /// A worker's end of a link to another worker is gone.
    pub(super) fn lose_peer(
        &mut self,
        place: usize,
        other: usize,
        reason: String,
    ) -> Result<(), Violation> {
        self.checkers.liveness.parted(self.now, place, other);
        let Some(from) = self.workers[place].peers().id_of(other) else { return Ok(()) };
        if let Some(peer) = self.workers[place].peers_mut().peers.get_mut(&from) {
            peer.linked = false;
        }
        self.step_worker(place, Input::PeerLost { from, reason })
    }

    // The door.

    pub(super) fn leave_at_the_door(&mut self, to: NodeId, event: Event) -> Result<(), Violation> {
        if let NodeId::Worker(place) = to
            && !self.workers[place].ended()
        {
            self.workers[place].peers_mut().door.push(event);
        }
        Ok(())
    }

    /// Handles the input at the door again: the worker may know its senders now.
    fn open_the_door(&mut self, place: usize) {
        for event in std::mem::take(&mut self.workers[place].peers_mut().door) {
            self.queue.put(self.now, event);
        }
    }
}

/// The place of the process with this name.
fn place_of(name: &NodeName) -> Option<usize> {
    name.as_str().strip_prefix("worker-")?.parse().ok()
}

//! Links between processes, with what QUIC promises: a control lane keeps its order and loses
//! nothing until the link is lost. A process loses a link on which it hears nothing for
//! [`IDLE_TIMEOUT`]. If it can, it tells the other end that it does not know the link any more.
//!
//! Coordinators and their peers also probe each other. The host of a dead process refuses the
//! probe, so the prober notices the death within [`MAX_PROBE_TIME`]. Every link has a number,
//! counted from 1, by which the cores know it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use everstep_coordinator::core::{self as coordination, ShellInput};
use everstep_coordinator::node;
use everstep_transport::protocol::Message;
use everstep_transport::protocol::reason::LinkEnd;
use everstep_transport::time::Time;
use everstep_worker::step::event::{Input, Lane, LinkId};

use super::clock::Clock;
use super::types::Event;
use super::{NodeId, World};
use crate::check::{Observation, QueueKind, Violation};

/// The transport's idle time-out.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(3);
/// How often an idle link sends a packet. The last sign of life may be this much earlier.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_millis(500);
/// The longest time until a prober notices a dead process.
const MAX_PROBE_TIME: Duration = Duration::from_millis(75);
/// A peer says that it does not know a link after two messages at least: one of the link, and the
/// answer. What the process before said last comes first, since a process that ends waits until
/// that is acknowledged.
const MIN_FORGOTTEN_TIME: Duration = Duration::from_millis(6);

/// An item on a control lane.
#[derive(Clone, Debug)]
pub enum Item {
    Message(Box<Message>),
    /// The end of the link.
    Closed(End),
}

/// The end of a link, with its reason.
#[derive(Clone, Debug)]
pub struct End {
    sign: Sign,
    reason: String,
}

/// What the end of a link says about the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    /// The peer may live on.
    Lost,
    /// The peer's process said that it ends.
    Gone,
    /// The peer's host refuses packets for its process.
    Refused,
    /// The peer lives, and shuts this coordinator out.
    Expelled,
}

impl End {
    /// The peer may live on.
    pub fn lost(reason: &str) -> Self {
        Self { sign: Sign::Lost, reason: reason.into() }
    }

    /// The peer says that its process ends.
    pub fn gone(reason: &str) -> Self {
        Self { sign: Sign::Gone, reason: reason.into() }
    }

    /// The peer's host says that no process listens at the peer's port.
    pub fn refused(reason: &str) -> Self {
        Self { sign: Sign::Refused, reason: reason.into() }
    }

    /// The peer shuts this coordinator out.
    pub fn expelled() -> Self {
        Self { sign: Sign::Expelled, reason: "the peer has no links with this node".into() }
    }
}

/// All links, by their ends, and the items on them.
#[derive(Debug, Default)]
pub struct Links {
    ends: BTreeMap<(NodeId, NodeId), Side>,
    lanes: BTreeMap<(NodeId, NodeId), ControlLane>,
    /// The node at the far end of each link, present or past.
    peers: BTreeMap<(NodeId, u64), NodeId>,
    count: u64,
}

/// One process's end of a link.
#[derive(Debug)]
struct Side {
    link: u64,
    open: bool,
    /// Since when nothing can be heard of the peer.
    silent_since: Option<Time>,
    /// The cause of the silence to find, and when the process finds it.
    due: Option<(Silence, Time)>,
}

/// Why a peer is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Silence {
    /// Nothing tells the cause: the peer may stand still, or the road may be shut.
    Unknown,
    /// The peer's process is dead and the road to its host is free, or a firewall refuses packets.
    Refused,
    /// The peer does not know the link any more, and would say so.
    Forgotten,
}

#[derive(Debug)]
struct ControlLane {
    link: u64,
    items: VecDeque<Item>,
    /// When the newest item on the lane arrives.
    last: Time,
}

impl Links {
    /// Whether the link works in `owner`'s view.
    pub fn is_open(&self, owner: NodeId, peer: NodeId) -> bool {
        self.ends.get(&(owner, peer)).is_some_and(|side| side.open)
    }

    /// The number of the newest link that `owner` has or had with `peer`.
    pub fn number(&self, owner: NodeId, peer: NodeId) -> Option<u64> {
        self.ends.get(&(owner, peer)).map(|side| side.link)
    }

    /// The node at the other end of the link of this number, present or past.
    pub fn peer(&self, owner: NodeId, link: u64) -> Option<NodeId> {
        self.peers.get(&(owner, link)).copied()
    }

    /// Whether both ends have the same open link.
    fn is_whole(&self, one: NodeId, other: NodeId) -> bool {
        let number = |owner, peer| {
            self.ends.get(&(owner, peer)).filter(|side| side.open).map(|side| side.link)
        };
        number(one, other).is_some() && number(one, other) == number(other, one)
    }

    /// All nodes that have or had a link with `node`.
    fn peers_of(&self, node: NodeId) -> Vec<NodeId> {
        self.ends.keys().filter(|(owner, _)| *owner == node).map(|(_, peer)| *peer).collect()
    }

    /// The places of all workers that have a link with the worker at `place`.
    pub fn workers_of(&self, place: usize) -> Vec<usize> {
        let ends = self.ends.range((NodeId::Worker(place), NodeId::Coordinator(0))..);
        let own = ends.take_while(|((owner, _), _)| *owner == NodeId::Worker(place));
        let open = own.filter(|(_, side)| side.open).map(|((_, peer), _)| *peer);
        open.filter_map(|peer| if let NodeId::Worker(other) = peer { Some(other) } else { None })
            .collect()
    }

    fn close(&mut self, owner: NodeId, peer: NodeId) -> bool {
        let side = self.ends.get_mut(&(owner, peer)).filter(|side| side.open);
        side.map(|side| side.open = false).is_some()
    }

    /// Discards all items on a lane.
    fn clear(&mut self, from: NodeId, to: NodeId) {
        self.lanes.remove(&(from, to));
    }

    /// Removes a node's ends of links: a new process starts there without any.
    fn forget(&mut self, node: NodeId) {
        self.ends.retain(|(owner, _), _| *owner != node);
    }
}

impl World {
    /// Puts an item on the control lane between two nodes.
    pub(super) fn put_on_lane(&mut self, from: NodeId, to: NodeId, item: Item) {
        let Some(link) =
            self.network.links.number(from, to).filter(|_| self.network.links.is_open(from, to))
        else {
            return;
        };
        let soonest = self.now + self.delay(from, to, None);
        let fresh = || ControlLane { link, items: VecDeque::new(), last: Time(0) };
        let lane = self.network.links.lanes.entry((from, to)).or_insert_with(fresh);
        lane.items.push_back(item);
        lane.last = lane.last.max(soonest);
        self.queue.put(lane.last, Event::Deliver(from, to, link));
    }

    /// The first item of a lane arrives.
    pub(super) fn deliver(&mut self, from: NodeId, to: NodeId, link: u64) -> Result<(), Violation> {
        let waits = self.workers.wait_at_the_door(from, to);
        let now = self.now;
        let lane = self.network.links.lanes.get_mut(&(from, to)).filter(|lane| lane.link == link);
        let Some(lane) = lane else { return Ok(()) };
        // A process notices the end of a link even if it leaves the earlier messages unread.
        if waits
            && lane.last <= now
            && let Some(Item::Closed(end)) = lane.items.back().cloned()
        {
            return self.lose(to, from, end);
        }
        if waits {
            return self.leave_at_the_door(to, Event::Deliver(from, to, link));
        }
        let waiting = lane.items.len();
        let Some(item) = lane.items.pop_front() else { return Ok(()) };
        let between = matches!((from, to), (NodeId::Coordinator(_), NodeId::Coordinator(_)));
        let kind = if between { QueueKind::Coordinators } else { QueueKind::Control };
        self.observe(Observation::Queued(kind, waiting))?;
        if !self.network.links.is_open(to, from)
            || self.network.links.number(to, from) != Some(link)
        {
            return Ok(());
        }
        match item {
            Item::Message(message) => self.hear(from, to, *message),
            Item::Closed(end) => self.lose(to, from, end),
        }
    }

    /// The travel time from one node to another.
    pub(super) fn delay(&mut self, from: NodeId, to: NodeId, lane: Option<Lane>) -> Duration {
        let way = (self.workers.machine(from), self.workers.machine(to));
        self.random.delay() + self.network.roads.extra(way, lane, self.now, &mut self.random)
    }

    /// Until when nothing arrives on the road between two processes.
    pub(super) fn shut_until(&self, from: NodeId, to: NodeId) -> Option<Time> {
        self.network
            .roads
            .shut_until((self.workers.machine(from), self.workers.machine(to)), self.now)
    }

    /// Whether a packet sent now arrives, and its answer too.
    pub(super) fn reach(&self, one: NodeId, other: NodeId) -> bool {
        self.shut_until(one, other).is_none() && self.shut_until(other, one).is_none()
    }

    // Starts and ends of links.

    /// Opens a link for both nodes, and returns its number.
    pub(super) fn link(&mut self, one: NodeId, other: NodeId) -> u64 {
        self.network.links.count += 1;
        let link = self.network.links.count;
        for (owner, peer) in [(one, other), (other, one)] {
            let side = Side { link, open: true, silent_since: None, due: None };
            self.network.links.ends.insert((owner, peer), side);
            self.network.links.clear(owner, peer);
            self.network.drop_streams(owner, peer);
            self.network.links.peers.insert((owner, link), peer);
        }
        self.review(one, other);
        self.review(other, one);
        self.begin_to_probe(one, other);
        link
    }

    /// `owner` learns that its link is gone. All items on the way to it are lost.
    pub(super) fn lose(&mut self, owner: NodeId, peer: NodeId, end: End) -> Result<(), Violation> {
        let number = self.network.links.number(owner, peer).unwrap_or_default();
        if !self.network.links.close(owner, peer) {
            return Ok(());
        }
        self.note(format_args!("{owner} loses {peer}: {}", end.reason));
        self.network.links.clear(peer, owner);
        self.network.drop_streams(peer, owner);
        self.review(peer, owner);
        let End { sign, reason } = end;
        match (owner, peer) {
            (NodeId::Operator | NodeId::Client(_), NodeId::Coordinator(place)) => {
                self.reconnect(owner, place, None);
                Ok(())
            }
            (NodeId::Coordinator(place), _) => {
                match peer {
                    // Of two coordinators the one with the lower number dials, whichever has lost
                    // the link.
                    NodeId::Coordinator(other) => {
                        self.reconnect(
                            NodeId::Coordinator(place.min(other)),
                            place.max(other),
                            None,
                        );
                    }
                    // A refusal is no proof: alone it explains no loss of a living worker.
                    NodeId::Worker(worker) if sign != Sign::Refused => {
                        self.checkers.liveness.unlinked(self.now, place, worker)
                    }
                    _ => {}
                }
                if sign == Sign::Expelled {
                    self.later(Event::Removed(place));
                }
                let end = match sign {
                    Sign::Gone => LinkEnd::Goodbye(reason),
                    Sign::Refused => LinkEnd::Refused,
                    Sign::Lost | Sign::Expelled => LinkEnd::Closed(reason),
                };
                let link = coordination::LinkId(number);
                self.step_coordinator(place, ShellInput::Disconnected { link, end })
            }
            (NodeId::Worker(place), NodeId::Worker(peer)) => self.lose_peer(place, peer, reason),
            (NodeId::Worker(place), NodeId::Coordinator(coordinator)) => {
                self.reconnect(owner, coordinator, None);
                self.step_worker(place, Input::CoordinatorLost { link: LinkId(number) })
            }
            _ => Ok(()),
        }
    }

    /// A process closes its end of a link, and gives the reason.
    pub(super) fn close_link(&mut self, owner: NodeId, peer: NodeId, end: End) {
        self.put_on_lane(owner, peer, Item::Closed(end));
        if self.network.links.close(owner, peer) {
            self.network.links.clear(peer, owner);
            self.network.drop_streams(peer, owner);
            self.review(peer, owner);
        }
    }

    /// A coordinator closes a link. Its core hears of that as of any other end.
    pub(super) fn hang_up(&mut self, place: usize, link: coordination::LinkId, end: End) {
        let own = NodeId::Coordinator(place);
        let Some(peer) = self.network.links.peer(own, link.0) else { return };
        if self.network.links.number(own, peer) == Some(link.0) {
            self.close_link(own, peer, end);
        }
        let end = LinkEnd::ClosedHere;
        let closed = node::NodeInput::Shell(ShellInput::Disconnected { link, end });
        self.later(Event::Coordinator(place, closed.into()));
    }

    /// A process says goodbye on all its links.
    pub(super) fn close_links(&mut self, owner: NodeId, reason: &str) {
        for peer in self.network.links.peers_of(owner) {
            self.close_link(owner, peer, End::gone(reason));
        }
    }

    /// A process ends without a word. Some of the lanes on which it sent are lost.
    pub(super) fn cut_links(&mut self, gone: NodeId) {
        for peer in self.network.links.peers_of(gone) {
            if self.random.below(2) == 0 {
                self.network.links.clear(gone, peer);
            }
            self.network.cut_streams(gone, peer, &mut self.random);
            self.network.links.clear(peer, gone);
            self.network.links.close(gone, peer);
            self.review(peer, gone);
        }
    }

    /// A new process has started that has no links yet.
    pub(super) fn forget_links(&mut self, node: NodeId) {
        let peers = self.network.links.peers_of(node);
        self.network.links.forget(node);
        for peer in peers {
            self.review(peer, node);
        }
    }

    // Silence.

    /// The clock of a process.
    fn clock(&self, node: NodeId) -> Clock {
        match node {
            NodeId::Coordinator(place) => *self.coordinators[place].clock(),
            NodeId::Worker(place) => *self.workers[place].clock(),
            NodeId::Operator | NodeId::Client(_) | NodeId::Leader => Clock::new(Time(0), 1000),
        }
    }

    /// Reviews every link of a node.
    pub(super) fn review_node(&mut self, node: NodeId) {
        for peer in self.network.links.peers_of(node) {
            self.review(node, peer);
            self.review(peer, node);
        }
    }

    /// Reviews every link. A fault has begun or ended.
    pub(super) fn review_all(&mut self) {
        let ends: Vec<_> = self.network.links.ends.keys().copied().collect();
        for (owner, peer) in ends {
            self.review(owner, peer);
        }
    }

    /// Reviews a link, since `owner` may hear its peer again, or not any more.
    fn review(&mut self, owner: NodeId, peer: NodeId) {
        if !self.network.links.is_open(owner, peer) {
            return;
        }
        let now = self.now;
        let silence = self.silence(owner, peer);
        let lost_after = self.clock(owner).true_time(IDLE_TIMEOUT);
        let earlier =
            Duration::from_nanos(self.random.below(KEEP_ALIVE_INTERVAL.as_nanos() as u64));
        let Some(side) = self.network.links.ends.get_mut(&(owner, peer)) else { return };
        let Some(why) = silence else {
            (side.silent_since, side.due) = (None, None);
            return;
        };
        let since = *side.silent_since.get_or_insert(now);
        if side.due.is_some_and(|(known, _)| known == why) {
            return;
        }
        let at = match why {
            Silence::Unknown => since + (lost_after - earlier),
            Silence::Refused => now + (MAX_PROBE_TIME - earlier / 10),
            Silence::Forgotten => now + earlier.max(MIN_FORGOTTEN_TIME),
        };
        let due = at.max(now);
        side.due = Some((why, due));
        self.queue.put(due, Event::Idle { owner, peer, due });
    }

    /// Whether `owner` hears its peer at this moment, and its peer acknowledges what it sends.
    pub(super) fn is_heard(&self, owner: NodeId, peer: NodeId) -> bool {
        let answers = self.is_alive(peer) && !self.faults.is_paused(peer);
        answers && self.network.links.is_whole(owner, peer) && self.reach(owner, peer)
    }

    fn silence(&self, owner: NodeId, peer: NodeId) -> Option<Silence> {
        let whole = self.network.links.is_whole(owner, peer);
        let standing = self.faults.is_paused(peer);
        let alive = self.is_alive(peer);
        if alive && !standing && whole && self.shut_until(peer, owner).is_none() {
            return None;
        }
        let probed = [owner, peer].iter().any(|node| matches!(node, NodeId::Coordinator(_)));
        // A process that was started again does not know the links of the one before.
        let known = self.network.links.number(peer, owner).is_some();
        let refused = self.faults.is_refused(self.workers.machine(peer), self.now);
        Some(match () {
            () if refused && matches!(owner, NodeId::Coordinator(_)) => Silence::Refused,
            () if !self.reach(owner, peer) => Silence::Unknown,
            () if !alive && probed => Silence::Refused,
            () if alive && !standing && !whole && known => Silence::Forgotten,
            () => Silence::Unknown,
        })
    }

    /// A silent link may be due to be lost now.
    pub(super) fn on_idle(
        &mut self,
        owner: NodeId,
        peer: NodeId,
        due: Time,
    ) -> Result<(), Violation> {
        let side = self.network.links.ends.get(&(owner, peer)).and_then(|side| side.due);
        let end = match side.filter(|(_, at)| *at == due) {
            None => return Ok(()),
            Some((Silence::Unknown, _)) => End::lost("nothing was heard for too long"),
            Some((Silence::Refused, _)) => End::refused("no process listens there any more"),
            Some((Silence::Forgotten, _)) => End::lost("the peer does not know this link"),
        };
        self.lose(owner, peer, end)
    }
}

//! Links between processes, with what QUIC promises of them: a control lane keeps its order and
//! loses nothing until the link is lost; a link on which nothing is heard for [`IDLE`] is lost for
//! whoever listens, and then for the other end, which hears nothing any more.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use everstep_coordinator::core as coordination;
use everstep_transport::protocol::Message;
use everstep_transport::time::Time;
use everstep_worker::step::event::{Input, Lane};

use super::types::Happening;
use super::{Node, World};
use crate::check::{Observation, Violation};

/// The transport's idle time-out.
const IDLE: Duration = Duration::from_secs(3);
/// How often an idle link says something: so much earlier the last sign of life may have been.
const KEEP_ALIVE: Duration = Duration::from_millis(500);

/// On its way on a control lane.
#[derive(Debug)]
pub enum Item {
    /// Something is said.
    Message(Box<Message>),
    /// The link is closed, and why.
    Closed(String),
}

/// All links, by their ends, and what is on them.
#[derive(Debug, Default)]
pub struct Links {
    ends: BTreeMap<(Node, Node), End>,
    lanes: BTreeMap<(Node, Node), ControlLane>,
}

/// One process's end of a link.
#[derive(Debug)]
struct End {
    open: bool,
    /// Since when nothing can be heard of the peer.
    silent_since: Option<Time>,
}

#[derive(Debug, Default)]
struct ControlLane {
    items: VecDeque<Item>,
    /// When the last that was put on it arrives.
    last: Time,
}

impl Links {
    /// `owner`'s end of the link is up; one that was lost stays so.
    pub fn open(&mut self, owner: Node, peer: Node) {
        self.ends.entry((owner, peer)).or_insert(End { open: true, silent_since: None });
    }

    /// Whether `owner` takes the link for one that works.
    pub fn is_open(&self, owner: Node, peer: Node) -> bool {
        self.ends.get(&(owner, peer)).is_some_and(|end| end.open)
    }

    /// Whether `owner` has had the link, and lost it.
    pub fn is_lost(&self, owner: Node, peer: Node) -> bool {
        self.ends.get(&(owner, peer)).is_some_and(|end| !end.open)
    }

    /// Everyone who has or had a link with `node`.
    fn peers(&self, node: Node) -> Vec<Node> {
        self.ends.keys().filter(|(owner, _)| *owner == node).map(|(_, peer)| *peer).collect()
    }

    fn close(&mut self, owner: Node, peer: Node) -> bool {
        let end = self.ends.get_mut(&(owner, peer)).filter(|end| end.open);
        end.map(|end| end.open = false).is_some()
    }

    /// Everything that is on the lane is gone.
    fn clear(&mut self, from: Node, to: Node) {
        self.lanes.remove(&(from, to));
    }

    /// A process without links starts: what an earlier one at the same place had is gone.
    fn forget(&mut self, node: Node) {
        self.ends.retain(|(owner, _), _| *owner != node);
    }
}

impl World {
    /// Puts something on the control lane between two nodes.
    pub(super) fn put_on_lane(&mut self, from: Node, to: Node, item: Item) {
        if !self.links.is_open(from, to) {
            return;
        }
        let soonest = self.now + self.delay(from, to, None);
        let lane = self.links.lanes.entry((from, to)).or_default();
        lane.items.push_back(item);
        lane.last = lane.last.max(soonest);
        self.queue.put(lane.last, Happening::Deliver(from, to));
    }

    /// The first item of a lane arrives.
    pub(super) fn deliver(&mut self, from: Node, to: Node) -> Result<(), Violation> {
        let Some(lane) = self.links.lanes.get_mut(&(from, to)) else { return Ok(()) };
        let waiting = lane.items.len();
        let Some(item) = lane.items.pop_front() else { return Ok(()) };
        self.observe(Observation::Queued("control lane", waiting))?;
        if !self.links.is_open(to, from) {
            return Ok(());
        }
        match item {
            Item::Message(message) => self.hear(from, to, *message),
            Item::Closed(reason) => self.lose(to, from, &reason),
        }
    }

    /// How long something takes from one node to another.
    pub(super) fn delay(&mut self, from: Node, to: Node, lane: Option<Lane>) -> Duration {
        let way = (self.machine(from), self.machine(to));
        self.random.delay() + self.roads.extra(way, lane, self.now, &mut self.random)
    }

    /// Until when nothing arrives on the way between two processes.
    pub(super) fn shut_until(&self, from: Node, to: Node) -> Option<Time> {
        self.roads.shut_until((self.machine(from), self.machine(to)), self.now)
    }

    /// The slot that a process is in, or the process itself.
    pub(super) fn machine(&self, node: Node) -> Node {
        match node {
            Node::Worker(place) => {
                Node::Worker(self.workers.get(place).map_or(place, |worker| worker.slot()))
            }
            other => other,
        }
    }

    // Ups and downs.

    /// A link is up for both.
    pub(super) fn link(&mut self, one: Node, other: Node) {
        for (owner, peer) in [(one, other), (other, one)] {
            if self.is_alive(owner) {
                self.links.open(owner, peer);
            }
        }
        self.review(one, other);
        self.review(other, one);
    }

    /// `owner` learns that its link is gone, with all that was on the way to it.
    pub(super) fn lose(&mut self, owner: Node, peer: Node, reason: &str) -> Result<(), Violation> {
        if !self.links.close(owner, peer) {
            return Ok(());
        }
        self.note(format_args!("{owner} loses {peer}: {reason}"));
        self.links.clear(peer, owner);
        self.drop_streams(peer, owner);
        self.review(peer, owner);
        let reason = reason.to_string();
        match (owner, peer) {
            (Node::Operator, _) => {
                self.operator.give_up(format!("the coordinator is gone: {reason}"));
                Ok(())
            }
            (Node::Coordinator, _) => {
                self.coordinate(coordination::Input::Disconnected { link: peer.link(), reason })
            }
            (Node::Worker(place), Node::Worker(peer)) => match self.member_at(peer) {
                Some(from) if self.workers[place].is_member() => {
                    self.feed(place, Input::PeerLost { from, reason })
                }
                _ => Ok(()),
            },
            (Node::Worker(place), _) => self.feed(place, Input::CoordinatorLost(reason)),
        }
    }

    /// A process closes its end, and says why.
    pub(super) fn close_link(&mut self, owner: Node, peer: Node, reason: &str) {
        self.put_on_lane(owner, peer, Item::Closed(reason.to_string()));
        if self.links.close(owner, peer) {
            self.links.clear(peer, owner);
            self.drop_streams(peer, owner);
            self.review(peer, owner);
        }
    }

    /// A process says goodbye on all its links.
    pub(super) fn close_links(&mut self, owner: Node, reason: &str) {
        for peer in self.links.peers(owner) {
            self.close_link(owner, peer, reason);
        }
    }

    /// A process is gone without a word. Of the lanes that it has used, some are lost.
    pub(super) fn cut_links(&mut self, gone: Node) {
        for peer in self.links.peers(gone) {
            if self.random.below(2) == 0 {
                self.links.clear(gone, peer);
            }
            self.cut_streams(gone, peer);
            self.links.clear(peer, gone);
            self.links.close(gone, peer);
            self.review(peer, gone);
        }
    }

    /// A new process is there that has no links yet.
    pub(super) fn forget_links(&mut self, node: Node) {
        self.links.forget(node);
    }

    // Silence.

    /// Looks at every link of a node anew.
    pub(super) fn review_node(&mut self, node: Node) {
        for peer in self.links.peers(node) {
            self.review(node, peer);
            self.review(peer, node);
        }
    }

    /// Looks at every link anew.
    pub(super) fn review_all(&mut self) {
        let ends: Vec<_> = self.links.ends.keys().copied().collect();
        for (owner, peer) in ends {
            self.review(owner, peer);
        }
    }

    /// Whether `owner` can hear its peer has perhaps changed.
    fn review(&mut self, owner: Node, peer: Node) {
        if !self.links.is_open(owner, peer) {
            return;
        }
        let silent = !self.is_alive(peer)
            || self.paused.contains_key(&peer)
            || !self.links.is_open(peer, owner)
            || self.shut_until(peer, owner).is_some();
        let now = self.now;
        let Some(end) = self.links.ends.get_mut(&(owner, peer)) else { return };
        match (silent, end.silent_since) {
            (true, None) => {
                end.silent_since = Some(now);
                let patience = self.clock(owner).true_time(IDLE);
                let earlier = self.random.below(KEEP_ALIVE.as_nanos() as u64);
                let at = now + (patience - Duration::from_nanos(earlier));
                self.queue.put(at, Happening::Idle { owner, peer, since: now });
            }
            (false, Some(_)) => end.silent_since = None,
            _ => {}
        }
    }

    /// The idle time-out of a link that was silent at `since`.
    pub(super) fn idle(&mut self, owner: Node, peer: Node, since: Time) -> Result<(), Violation> {
        let end = self.links.ends.get(&(owner, peer));
        if end.and_then(|end| end.silent_since) != Some(since) {
            return Ok(());
        }
        self.lose(owner, peer, "nothing was heard for too long")
    }
}

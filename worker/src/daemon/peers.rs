//! The workers that this worker talks to: the members of its generation and the joiners fed in it.
//!
//! Each pair of workers shares one link, which outlives generations. The newer worker dials the
//! older one. A link of a worker that is not a peer is pending. It is unread, and limits
//! on number and time bound such links. A record or an AcceptPeer that names the worker may be
//! under way.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use actix::Recipient;
use everstep_transport::identity::Role;
use everstep_transport::protocol::{Generation, NodeName, Record, Step, WorkerId};
use everstep_transport::quic::{Endpoint, Link};

use super::event::{Heard, PeerConnected, PeerInput};
use super::peer::{PEER_LINK_TIMEOUT, Peer, PeerConnection};
use super::reader::ReaderContext;
use super::wire_item::Encoder;
use crate::step::event::{Input, Lane, StreamItem};

/// The most pending links. This worker closes further ones.
const MAX_PENDING_LINKS: usize = 1024;
/// How many beginnings of generations a pending link may wait for.
const MAX_PENDING_GENERATIONS: u32 = 4;

/// The peers, and the pending links of workers that may become peers.
pub struct Peers {
    endpoint: Arc<Endpoint>,
    reader_context: ReaderContext,
    arrivals: Recipient<PeerConnected>,
    own: Option<WorkerId>,
    generation: Generation,
    known: BTreeMap<WorkerId, Peer>,
    pending: Vec<PendingLink>,
    /// The number of links that have been attached.
    links: u64,
    /// The worker at the other end of each link, by the number of the link.
    by_link: BTreeMap<u64, WorkerId>,
    encoder: Encoder,
}

struct PendingLink {
    connection: PeerConnection,
    /// Generations that have begun since the link came.
    waited: u32,
}

impl Peers {
    /// No peers yet. Links that this worker dials go to `arrivals`, inputs from peers to
    /// `reader_context`.
    pub fn new(
        endpoint: Arc<Endpoint>,
        reader_context: ReaderContext,
        arrivals: Recipient<PeerConnected>,
    ) -> Self {
        Self {
            endpoint,
            reader_context,
            arrivals,
            own: None,
            generation: Generation(0),
            known: BTreeMap::new(),
            pending: Vec::new(),
            links: 0,
            by_link: BTreeMap::new(),
            encoder: Encoder::default(),
        }
    }

    /// A generation begins for this worker, which is `own`. Its members are the only peers. Returns
    /// inputs for the core.
    pub fn enter(&mut self, own: Option<WorkerId>, record: &Record) -> Vec<Input> {
        (self.own, self.generation) = (own, record.number);
        let members: BTreeSet<WorkerId> = record.members.iter().map(|it| it.worker).collect();
        let before = std::mem::take(&mut self.known).into_iter();
        let (mut stay, left): (BTreeMap<_, _>, BTreeMap<_, _>) =
            before.partition(|(worker, _)| members.contains(worker));
        let left = left.into_values().map(|peer| (peer.name.clone(), peer));
        let mut left: BTreeMap<NodeName, Peer> = left.collect();
        for member in record.members.iter().filter(|member| Some(member.worker) != own) {
            let (name, address) = (member.name.clone(), member.address);
            // An evicted worker that is back has another id. What has come over its link may be of
            // this generation.
            let moved = || left.remove(&name).map(|peer| peer.moved(address));
            let peer = stay.remove(&member.worker).or_else(moved);
            let mut peer = peer.unwrap_or_else(|| Peer::new(name, address, record.number));
            peer.renew(record.number, &self.reader_context);
            self.known.insert(member.worker, peer);
        }
        let numbered = |(worker, peer): (&WorkerId, &Peer)| Some((peer.link_number()?, *worker));
        self.by_link = self.known.iter().filter_map(numbered).collect();
        self.pending.iter_mut().for_each(|pending_link| pending_link.waited += 1);
        let left = left.into_values().filter_map(Peer::into_connection);
        self.pending.extend(left.map(|connection| PendingLink { connection, waited: 0 }));
        self.connect()
    }

    /// Makes a joiner a peer of this generation, or expects a new link to a peer that lost its
    /// link. Returns inputs for the core.
    pub fn accept(&mut self, worker: WorkerId, name: NodeName, address: SocketAddr) -> Vec<Input> {
        let mut told = Vec::new();
        if Some(worker) != self.own {
            let generation = self.generation;
            let older = self.known.range(..worker).find(|(_, peer)| peer.name == name);
            if let Some(from) = older.map(|(id, _)| *id) {
                let left = self.known.remove(&from).and_then(Peer::into_connection);
                self.pending.extend(left.map(|connection| PendingLink { connection, waited: 0 }));
                let reason = format!("it is back as {worker}");
                told.push(Input::PeerLost { from, reason });
            }
            let peer = self.known.entry(worker);
            peer.or_insert_with(|| Peer::new(name, address, generation)).expect();
        }
        told.extend(self.connect());
        told
    }

    /// A link is up. Returns an input for the core, if there is one.
    pub fn admit(&mut self, connection: PeerConnection) -> Option<Input> {
        let link = &connection.link;
        let identity = link.identity();
        let of_name = |(_, peer): &(&WorkerId, &mut Peer)| peer.name == identity.name;
        if identity.role != Role::Worker {
            return Some(refuse(link, "only workers call workers"));
        }
        // Of two with one name, the older one is gone.
        let Some((worker, peer)) = self.known.iter_mut().rev().find(of_name) else {
            return self.wait(connection);
        };
        self.links += 1;
        peer.link_number().and_then(|before| self.by_link.remove(&before));
        self.by_link.insert(self.links, *worker);
        let cut = peer.attach(connection, self.links, &self.reader_context);
        let reason = "it has connected anew".into();
        cut.then_some(Input::PeerLost { from: *worker, reason })
    }

    /// The input for the core. None if the link is no peer's any more.
    pub fn hear(&mut self, PeerInput { link, heard }: PeerInput) -> Option<Input> {
        let from = self.at_link(link)?;
        if matches!(heard, Heard::Lost(_)) {
            self.known.get_mut(&from)?.lose();
            self.by_link.remove(&link);
        }
        Some(match heard {
            Heard::Message(message) => Input::Peer { from, message: *message },
            Heard::Chunk(chunk, values) => Input::Chunk { from, chunk, values },
            Heard::Refused => Input::Refused,
            Heard::Lost(reason) => Input::PeerLost { from, reason },
        })
    }

    /// The peer at the other end of a link. None if the link is no peer's any more.
    pub fn at_link(&self, number: u64) -> Option<WorkerId> {
        let worker = *self.by_link.get(&number)?;
        self.known.get(&worker).filter(|peer| peer.link_number() == Some(number))?;
        Some(worker)
    }

    /// The peer with this id. None if the worker is not a peer.
    pub fn peer(&mut self, worker: WorkerId) -> Option<&mut Peer> {
        self.known.get_mut(&worker)
    }

    /// Queues an item for the peer with this id, if the worker is one.
    pub fn stream(&mut self, to: WorkerId, lane: Lane, step: Step, item: StreamItem) {
        if let Some(peer) = self.known.get_mut(&to) {
            peer.stream(lane, step, self.encoder.encode(item));
        }
    }

    /// Inputs for the core, one for each peer with an overdue link. Each peer is reported once.
    pub fn overdue(&mut self) -> Vec<Input> {
        let now = Instant::now();
        let overdue = self.known.iter_mut().filter_map(|(worker, peer)| {
            let reason = || format!("no link to it came up within {PEER_LINK_TIMEOUT:?}");
            peer.is_overdue(now).then(|| Input::PeerLost { from: *worker, reason: reason() })
        });
        overdue.collect()
    }

    /// Closes all links to other workers, and states this reason to them.
    pub fn clear(&mut self, reason: &str) {
        let known = std::mem::take(&mut self.known).into_values();
        self.by_link.clear();
        let pending = self.pending.drain(..).map(|pending_link| pending_link.connection);
        let connections = known.filter_map(Peer::into_connection).chain(pending);
        connections.for_each(|connection| connection.link.close(reason));
    }

    /// Gives every peer the link that waits for it. Dials the other peers that are older than this
    /// worker.
    fn connect(&mut self) -> Vec<Input> {
        let waiting = std::mem::take(&mut self.pending);
        let mut told = Vec::new();
        for PendingLink { connection, waited } in waiting {
            let link = &connection.link;
            let is_peer = self.known.values().any(|peer| peer.name == link.identity().name);
            if link.ended().is_some() {
                continue;
            }
            if is_peer {
                told.extend(self.admit(connection));
            } else if waited < MAX_PENDING_GENERATIONS {
                self.pending.push(PendingLink { connection, waited });
            } else {
                told.push(refuse(link, "this node is not a member of the generation"));
            }
        }
        for (worker, peer) in &mut self.known {
            if self.own > Some(*worker) {
                let arrivals = self.arrivals.clone();
                peer.call(&self.endpoint, move |link| arrivals.do_send(PeerConnected(link)));
            }
        }
        told
    }

    fn wait(&mut self, connection: PeerConnection) -> Option<Input> {
        let link = &connection.link;
        self.pending.retain(
            |PendingLink { connection: PeerConnection { link: other, .. }, .. }| {
                other.ended().is_none() && other.identity() != link.identity()
            },
        );
        if self.pending.len() >= MAX_PENDING_LINKS {
            return Some(refuse(link, "too many nodes wait to become members"));
        }
        self.pending.push(PendingLink { connection, waited: 0 });
        None
    }
}

fn refuse(link: &Link, reason: &str) -> Input {
    tracing::warn!(peer = %link.identity(), reason, "refused a node");
    link.close(reason);
    Input::Refused
}

#[cfg(test)]
mod tests;

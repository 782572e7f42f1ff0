//! The workers that this worker talks to: the members of its generation and the learners fed in it.
//!
//! Each pair of workers shares one link, which outlives generations. The newer worker dials the
//! older one. A link of a worker that is not a peer waits as a stranger's. It is unread, and limits
//! on number and time bound such links. A record or a Meet that names the stranger may be under
//! way.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use actix::Recipient;
use everstep_transport::identity::Role;
use everstep_transport::protocol::{Generation, NodeName, Record, WorkerId};
use everstep_transport::quic::{Endpoint, Link};

use super::event::{Arrival, Heard, LinkOf};
use super::peer::{PATIENCE, Peer};
use super::reception::Inlet;
use crate::step::event::Input;

/// The most links of strangers. This worker closes further ones.
const MAX_STRANGERS: usize = 1024;
/// How many beginnings of generations a stranger's link may wait for.
const MAX_WAIT: u32 = 4;

/// The peers, and the strangers that may become peers.
pub struct Peers {
    endpoint: Arc<Endpoint>,
    inlet: Inlet,
    arrivals: Recipient<Arrival>,
    own: Option<WorkerId>,
    generation: Generation,
    known: BTreeMap<WorkerId, Peer>,
    strangers: Vec<Stranger>,
    /// The number of links that have been attached.
    links: u64,
}

struct Stranger {
    link: Link,
    /// Generations that have begun since the link came.
    waited: u32,
}

impl Peers {
    /// No peers yet. Links that this worker dials go to `arrivals`, inputs from peers to `inlet`.
    pub fn new(endpoint: Arc<Endpoint>, inlet: Inlet, arrivals: Recipient<Arrival>) -> Self {
        Self {
            endpoint,
            inlet,
            arrivals,
            own: None,
            generation: Generation(0),
            known: BTreeMap::new(),
            strangers: Vec::new(),
            links: 0,
        }
    }

    /// A generation begins for this worker, which is `own`. Its members are the only peers. Returns
    /// inputs for the core.
    pub fn enter(&mut self, own: Option<WorkerId>, record: &Record) -> Vec<Input> {
        (self.own, self.generation) = (own, record.number);
        let mut before = std::mem::take(&mut self.known);
        for member in record.members.iter().filter(|member| Some(member.worker) != own) {
            let (name, address) = (member.name.clone(), member.address);
            let peer = before.remove(&member.worker);
            let mut peer = peer.unwrap_or_else(|| Peer::new(name, address, record.number));
            peer.renew(record.number, &self.inlet);
            self.known.insert(member.worker, peer);
        }
        self.strangers.iter_mut().for_each(|stranger| stranger.waited += 1);
        let left = before.into_values().filter_map(Peer::into_link);
        self.strangers.extend(left.map(|link| Stranger { link, waited: 0 }));
        self.connect()
    }

    /// Makes a learner a peer of this generation, or expects a new link to a peer that lost its
    /// link. Returns inputs for the core.
    pub fn meet(&mut self, worker: WorkerId, name: NodeName, address: SocketAddr) -> Vec<Input> {
        if Some(worker) != self.own {
            let generation = self.generation;
            let peer = self.known.entry(worker);
            peer.or_insert_with(|| Peer::new(name, address, generation)).expect();
        }
        self.connect()
    }

    /// A link is up. Returns an input for the core, if there is one.
    pub fn admit(&mut self, link: Link) -> Option<Input> {
        let identity = link.identity();
        let of_name = |(_, peer): &(&WorkerId, &mut Peer)| peer.name == identity.name;
        if identity.role != Role::Worker {
            return Some(refuse(&link, "only workers call workers"));
        }
        let Some((worker, peer)) = self.known.iter_mut().find(of_name) else {
            return self.wait(link);
        };
        self.links += 1;
        let (worker, number) = (*worker, self.links);
        let cut = peer.attach(link, LinkOf { worker, number }, &self.inlet);
        let reason = "it has connected anew".into();
        cut.then_some(Input::PeerLost { from: worker, reason })
    }

    /// Whether to give the core an input of this link. Only if the link is still its worker's.
    pub fn hear(&mut self, Heard { from, input }: &Heard) -> bool {
        let peer = self.known.get_mut(&from.worker);
        let Some(peer) = peer.filter(|peer| peer.link_number() == Some(from.number)) else {
            return false;
        };
        if matches!(input, Input::PeerLost { .. }) {
            peer.lose();
        }
        true
    }

    /// The peer with this id. None if the worker is not a peer.
    pub fn peer(&mut self, worker: WorkerId) -> Option<&mut Peer> {
        self.known.get_mut(&worker)
    }

    /// Inputs for the core, one for each peer with an overdue link. Each peer is reported once.
    pub fn overdue(&mut self) -> Vec<Input> {
        let now = Instant::now();
        let overdue = self.known.iter_mut().filter_map(|(worker, peer)| {
            let reason = || format!("no link to it came up within {PATIENCE:?}");
            peer.is_overdue(now).then(|| Input::PeerLost { from: *worker, reason: reason() })
        });
        overdue.collect()
    }

    /// Closes all links.
    pub fn clear(&mut self, reason: &str) {
        let links = std::mem::take(&mut self.known).into_values().filter_map(Peer::into_link);
        let strangers = self.strangers.drain(..).map(|stranger| stranger.link);
        links.chain(strangers).for_each(|link| link.close(reason));
    }

    /// Gives every peer the link that waits for it. Dials the other peers that are older than this
    /// worker.
    fn connect(&mut self) -> Vec<Input> {
        let waiting = std::mem::take(&mut self.strangers);
        let mut told = Vec::new();
        for Stranger { link, waited } in waiting {
            let is_peer = self.known.values().any(|peer| peer.name == link.identity().name);
            if link.ended().is_some() {
                continue;
            }
            if is_peer {
                told.extend(self.admit(link));
            } else if waited < MAX_WAIT {
                self.strangers.push(Stranger { link, waited });
            } else {
                told.push(refuse(&link, "this node is not a member of the generation"));
            }
        }
        for (worker, peer) in &mut self.known {
            if self.own > Some(*worker) {
                let arrivals = self.arrivals.clone();
                peer.call(&self.endpoint, move |link| arrivals.do_send(Arrival(link)));
            }
        }
        told
    }

    fn wait(&mut self, link: Link) -> Option<Input> {
        self.strangers.retain(|stranger| {
            stranger.link.ended().is_none() && stranger.link.identity() != link.identity()
        });
        if self.strangers.len() == MAX_STRANGERS {
            return Some(refuse(&link, "too many nodes wait to become members"));
        }
        self.strangers.push(Stranger { link, waited: 0 });
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

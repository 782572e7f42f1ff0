//! Another worker of the generation, as the shell sees it: a link, and what waits for it.
//!
//! A peer outlives generations, and so does its link; what is said and sent belongs to one of them.

use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::{Generation, Message, NodeName, Step};
use everstep_transport::quic::{Endpoint, Expected, Link};
use tokio::task::JoinSet;

use super::event::LinkOf;
use super::lane::Lanes;
use super::reception::{self, Inlet};
use crate::step::event::{Lane, Parcel};

/// How long a link may take to come up.
pub const PATIENCE: Duration = Duration::from_secs(3);
/// Between two calls, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// One other worker.
pub struct Peer {
    /// The name in its certificate.
    pub name: NodeName,
    address: SocketAddr,
    link: Option<Attached>,
    /// Messages that wait for a link.
    unsaid: Vec<Message>,
    lanes: Lanes,
    /// It is a member of this generation, and not only fed in it.
    is_member: bool,
    /// Whether anything was said or sent in this generation.
    is_used: bool,
    /// Since when a link is awaited, until it is up or was said to be missing.
    awaited: Option<Instant>,
    /// The task that calls the peer, while it does.
    call: JoinSet<()>,
}

/// A link that is read.
struct Attached {
    link: Link,
    number: u64,
    /// They end with this.
    _readers: JoinSet<()>,
}

impl Peer {
    /// A learner without a link, in `generation`; a member from [`Peer::renew`] on.
    pub fn new(name: NodeName, address: SocketAddr, generation: Generation) -> Self {
        Self {
            name,
            address,
            link: None,
            unsaid: Vec::new(),
            lanes: Lanes::new(generation),
            is_member: false,
            is_used: false,
            awaited: Some(Instant::now()),
            call: JoinSet::new(),
        }
    }

    /// Another generation begins, of which it is a member: what waits is dropped, what is under way
    /// is given up. A link that lives is kept.
    pub fn renew(&mut self, generation: Generation, inlet: &Inlet) {
        self.unsaid.clear();
        self.lanes = Lanes::new(generation);
        self.is_member = true;
        self.is_used = false;
        self.link.take_if(|attached| attached.link.ended().is_some());
        match &self.link {
            Some(attached) => self.lanes.start(&attached.link, &inlet.traffic),
            None => self.awaited = Some(Instant::now()),
        }
    }

    /// A link is due, if there is none: nothing was said on it yet.
    pub fn expect(&mut self) {
        if self.link.is_none() {
            self.unsaid.clear();
            self.is_used = false;
            self.awaited.get_or_insert_with(Instant::now);
        }
    }

    /// A link is up. True if it takes the place of one on which something was said or sent in this
    /// generation: who called had lost that one, and nobody knows what arrived.
    pub fn attach(&mut self, link: Link, from: LinkOf, inlet: &Inlet) -> bool {
        self.call.abort_all();
        self.awaited = None;
        let replaced = self.link.take();
        if let Some(before) = &replaced {
            before.link.close("a newer link takes its place");
            self.lanes = Lanes::new(self.lanes.generation());
        }
        self.lanes.start(&link, &inlet.traffic);
        for message in mem::take(&mut self.unsaid) {
            let _ = link.send(message); // an error means that the link is gone: its reader tells
        }
        let _readers = reception::listen(&link, from, inlet);
        self.link = Some(Attached { link, number: from.number, _readers });
        replaced.is_some() && self.is_used
    }

    /// Says something.
    pub fn send(&mut self, message: Message) {
        self.is_used = true;
        match &self.link {
            None => self.unsaid.push(message),
            Some(Attached { link, .. }) => {
                // What cannot be said ends the link, and so the generation: nobody waits in vain.
                if let Err(error) = link.send(message) {
                    link.close(&error.to_string());
                }
            }
        }
    }

    /// Queues a parcel on its lane; not what it learns, if it does not keep up with that.
    pub fn stream(&mut self, lane: Lane, step: Step, parcel: Parcel) {
        self.is_used = true;
        match lane {
            Lane::Learned => self.lanes.feed(lane, step, parcel),
            Lane::Parameters if !self.is_member => self.lanes.feed(lane, step, parcel),
            _ => self.lanes.queue(lane, step, parcel),
        }
    }

    /// Calls the peer until there is a link, which `arrived` is given; nothing, if there is one or
    /// it is called already.
    pub fn call(&mut self, endpoint: &Arc<Endpoint>, arrived: impl FnOnce(Link) + Send + 'static) {
        while self.call.try_join_next().is_some() {}
        if self.link.is_some() || !self.call.is_empty() {
            return;
        }
        let identity = Identity { role: Role::Worker, name: self.name.clone() };
        let (endpoint, address) = (endpoint.clone(), self.address);
        self.call.spawn(async move {
            arrived(connect(&endpoint, address, &Expected::Node(identity)).await);
        });
    }

    /// The number of its link.
    pub fn link_number(&self) -> Option<u64> {
        self.link.as_ref().map(|attached| attached.number)
    }

    /// Its link has ended, and with it the lanes. A member gets others in the next generation.
    pub fn lose(&mut self) {
        self.link = None;
        if !self.is_member {
            self.lanes = Lanes::new(self.lanes.generation());
        }
    }

    /// True once, when a link has been awaited for too long.
    pub fn is_overdue(&mut self, now: Instant) -> bool {
        self.awaited.take_if(|since| now.duration_since(*since) >= PATIENCE).is_some()
    }

    /// What is left when the worker is no peer any more: its link, unread.
    pub fn into_link(self) -> Option<Link> {
        self.link.map(|attached| attached.link)
    }
}

async fn connect(endpoint: &Endpoint, address: SocketAddr, expected: &Expected) -> Link {
    let (mut pause, longest) = PAUSES;
    loop {
        match endpoint.connect(address, expected).await {
            Ok(link) => return link,
            Err(error) => tracing::debug!(%address, %error, "trying again"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}

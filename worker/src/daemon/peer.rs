//! Another worker of the generation, as the shell sees it: a link, and the messages that wait for
//! it.
//!
//! A peer outlives generations, and so does its link. Its messages and chunks belong to one
//! generation.

use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::{Generation, Message, NodeName, Step};
use everstep_transport::quic::{DialBackoff, DialSettings, Endpoint, Expected, Link};
use tokio::task::JoinSet;

use super::event::PeerLink;
use super::lane::Lanes;
use super::reader::{self, ReaderContext};
use super::shared_memory::SharedMemory;
use super::wire_item::WireItem;
use crate::step::event::Lane;

/// How long a link may take to come up before the core hears of it.
pub const PEER_LINK_TIMEOUT: Duration = Duration::from_secs(3);
/// The pace of calls. A peer is there when its record comes, so each call may last.
const PEER_DIALS: DialSettings =
    DialSettings { first_timeout: DialSettings::DEFAULT.longest_timeout, ..DialSettings::DEFAULT };

/// The link, the queues and the state of one other worker.
pub struct Peer {
    /// The name in its certificate.
    pub name: NodeName,
    address: SocketAddr,
    link: Option<Attached>,
    /// Messages that wait for a link.
    unsaid: Vec<Message>,
    lanes: Lanes,
    /// The peer is a member of this generation. False if it is a joiner that the members feed.
    is_member: bool,
    /// Whether this worker has sent anything to it in this generation.
    is_used: bool,
    /// Since when a link is missing. None once it is up, or once the core has heard that it is
    /// missing.
    awaited: Option<Instant>,
    /// The task that dials the peer. Empty while none runs.
    call: JoinSet<()>,
}

/// A link with its tasks.
struct Attached {
    link: Link,
    number: u64,
    memory: SharedMemory,
    /// The tasks that read, and that share memory. They end when this is dropped.
    _tasks: JoinSet<()>,
}

impl Peer {
    /// A joiner without a link, in `generation`. It becomes a member with [`Peer::renew`].
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

    /// Another generation begins, and the peer is a member of it. Drops queued messages and resets
    /// streams under way. Keeps the link if it is alive.
    pub fn renew(&mut self, generation: Generation, reader_context: &ReaderContext) {
        self.unsaid.clear();
        self.lanes = Lanes::new(generation);
        self.is_member = true;
        self.is_used = false;
        self.link.take_if(|attached| attached.link.ended().is_some());
        match &self.link {
            Some(Attached { link, memory, .. }) => {
                self.lanes.start(link, memory, &reader_context.traffic);
            }
            None => self.awaited = Some(Instant::now()),
        }
    }

    /// If there is no link, waits for a new one, on which nothing has been sent yet.
    pub fn expect(&mut self) {
        if self.link.is_none() {
            self.unsaid.clear();
            self.is_used = false;
            self.awaited.get_or_insert_with(Instant::now);
        }
    }

    /// A link is up. True if it replaces a link that carried anything in this generation. Its
    /// dialler had lost the old link, and it is unknown what arrived.
    pub fn attach(&mut self, link: Link, from: PeerLink, reader_context: &ReaderContext) -> bool {
        self.call.abort_all();
        self.awaited = None;
        let replaced = self.link.take();
        if let Some(before) = &replaced {
            before.link.close("a newer link takes its place");
            self.lanes = Lanes::new(self.lanes.generation());
        }
        let mut tasks = JoinSet::new();
        let memory = match reader_context.shares_memory {
            true => SharedMemory::begin(&link, &mut tasks),
            false => SharedMemory::none(),
        };
        self.lanes.start(&link, &memory, &reader_context.traffic);
        for message in mem::take(&mut self.unsaid) {
            let _ = link.send(message); // an error means a lost link, which its reader reports
        }
        reader::listen(&link, (from, &memory), reader_context, &mut tasks);
        self.link = Some(Attached { link, number: from.number, memory, _tasks: tasks });
        replaced.is_some() && self.is_used
    }

    /// Sends a message, or keeps it until there is a link.
    pub fn send(&mut self, message: Message) {
        self.is_used = true;
        match &self.link {
            None => self.unsaid.push(message),
            Some(Attached { link, .. }) => {
                // A message that cannot be sent ends the link, and so the generation: no worker
                // waits in vain.
                if let Err(error) = link.send(message) {
                    link.close(&error.to_string());
                }
            }
        }
    }

    /// Queues an item on its lane. If a fed worker does not keep up, drops the items that feed
    /// it.
    pub fn stream(&mut self, lane: Lane, step: Step, item: WireItem) {
        self.is_used = true;
        match lane {
            Lane::CatchUp => self.lanes.feed(lane, step, item),
            Lane::Parameters if !self.is_member => self.lanes.feed(lane, step, item),
            _ => self.lanes.queue(lane, step, item),
        }
    }

    /// Dials the peer until there is a link, and passes it to `arrived`. Does nothing if there is a
    /// link or a call is under way.
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

    /// The number of its link. None without a link.
    pub fn link_number(&self) -> Option<u64> {
        self.link.as_ref().map(|attached| attached.number)
    }

    /// Its link has ended, and with it the lanes. A member gets new lanes in the next generation.
    pub fn lose(&mut self) {
        self.link = None;
        if !self.is_member {
            self.lanes = Lanes::new(self.lanes.generation());
        }
    }

    /// True once, when a link has been missing for too long.
    pub fn is_overdue(&mut self, now: Instant) -> bool {
        self.awaited.take_if(|since| now.duration_since(*since) >= PEER_LINK_TIMEOUT).is_some()
    }

    /// Whether tensors to it go through memory.
    #[cfg(test)]
    pub fn shares_memory(&self) -> bool {
        self.link.as_ref().is_some_and(|attached| attached.memory.is_shared())
    }

    /// Its link, without its tasks, for a worker that is no longer a peer.
    pub fn into_link(self) -> Option<Link> {
        self.link.map(|attached| attached.link)
    }
}

async fn connect(endpoint: &Endpoint, address: SocketAddr, expected: &Expected) -> Link {
    let mut backoff = DialBackoff::new(PEER_DIALS);
    loop {
        match backoff.dial(endpoint, address, expected).await {
            Ok(link) => return link,
            Err(error) => tracing::debug!(%address, %error, "trying again"),
        }
        backoff.pause().await;
    }
}

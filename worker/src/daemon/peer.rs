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

/// A link, and the memory that its ends share. Both outlive generations, also one in which the
/// worker at the other end is no peer.
pub struct PeerConnection {
    /// The link to the peer, over which messages go.
    pub link: Link,
    /// None until the worker is a peer for the first time.
    memory: Option<ConnectionMemory>,
}

/// The memory, and the task that shares it. The task ends when this is dropped.
struct ConnectionMemory {
    shared: SharedMemory,
    _task: JoinSet<()>,
}

impl From<Link> for PeerConnection {
    fn from(link: Link) -> Self {
        Self { link, memory: None }
    }
}

impl PeerConnection {
    /// The memory, from now on. None of it is shared unless `shares_memory`.
    fn memory(&mut self, shares_memory: bool) -> SharedMemory {
        let link = &self.link;
        let memory = self.memory.get_or_insert_with(|| {
            let mut task = JoinSet::new();
            let shared = match shares_memory {
                true => SharedMemory::begin(link, &mut task),
                false => SharedMemory::none(),
            };
            ConnectionMemory { shared, _task: task }
        });
        memory.shared.clone()
    }
}

/// A connection with its reading tasks.
struct Attached {
    connection: PeerConnection,
    number: u64,
    /// The reading tasks. They end when this is dropped.
    _readers: JoinSet<()>,
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

    /// The same worker, as a peer with another id, which listens at this address.
    pub fn moved(self, address: SocketAddr) -> Self {
        Self { address, call: JoinSet::new(), ..self }
    }

    /// Another generation begins, and the peer is a member of it. Drops queued messages and resets
    /// streams under way. Keeps the link if it is alive.
    pub fn renew(&mut self, generation: Generation, reader_context: &ReaderContext) {
        self.unsaid.clear();
        self.lanes = Lanes::new(generation);
        self.is_member = true;
        self.is_used = false;
        self.link.take_if(|attached| attached.connection.link.ended().is_some());
        match &mut self.link {
            Some(Attached { connection, .. }) => {
                let memory = connection.memory(reader_context.shares_memory);
                self.lanes.start(&connection.link, &memory, &reader_context.traffic);
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

    /// A link is up, with this number. True if it replaces a link that carried anything in this
    /// generation. Its dialler had lost the old link, and it is unknown what arrived.
    pub fn attach(
        &mut self,
        mut connection: PeerConnection,
        number: u64,
        reader_context: &ReaderContext,
    ) -> bool {
        self.call.abort_all();
        self.awaited = None;
        let replaced = self.link.take();
        if let Some(before) = &replaced {
            before.connection.link.close("a newer link takes its place");
            self.lanes = Lanes::new(self.lanes.generation());
        }
        let memory = connection.memory(reader_context.shares_memory);
        let link = &connection.link;
        self.lanes.start(link, &memory, &reader_context.traffic);
        for message in mem::take(&mut self.unsaid) {
            let _ = link.send(message); // an error means a lost link, which its reader reports
        }
        let _readers = reader::listen(link, number, &memory, reader_context);
        self.link = Some(Attached { connection, number, _readers });
        replaced.is_some() && self.is_used
    }

    /// Sends a message, or keeps it until there is a link.
    pub fn send(&mut self, message: Message) {
        self.is_used = true;
        match &self.link {
            None => self.unsaid.push(message),
            Some(Attached { connection: PeerConnection { link, .. }, .. }) => {
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
        let memory = self.link.as_ref().and_then(|attached| attached.connection.memory.as_ref());
        memory.is_some_and(|memory| memory.shared.is_shared())
    }

    /// Its connection, without the reading tasks, for a worker that is no longer a peer.
    pub fn into_connection(self) -> Option<PeerConnection> {
        self.link.map(|attached| attached.connection)
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

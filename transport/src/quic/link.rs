//! A link: what two nodes that have proved who they are say to each other.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quinn::{Connection, RecvStream, SendStream};
use tokio::sync::{Mutex, Semaphore, mpsc};
use tokio::time::timeout;

use super::bulk::{BulkReceiver, BulkSender};
use super::control::{self, Outgoing};
use super::enrol::EnrolError;
use super::error::LinkError;
use super::renewal::Asker;
use super::site::Site;
use super::wire::Wire;
use crate::identity::{Credentials, Identity};
use crate::protocol::chunk::MAX_MESSAGE_CHUNK;
use crate::protocol::{Message, codec};

/// Messages that were read and that nobody has asked for; beyond, the peer is held back.
const ARRIVALS: usize = 16;
/// Bytes of messages that may wait for the peer: the largest message, or many small ones.
const QUEUE_BYTES: usize = MAX_MESSAGE_CHUNK as usize;
/// How long [`Link::finish`] waits for the peer to have read everything.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection to one peer. Clones are handles on the same link; when the last one is dropped, the
/// link closes at once.
#[derive(Clone)]
pub struct Link {
    inner: Arc<Inner>,
}

struct Inner {
    wire: Wire,
    identity: Identity,
    queue: mpsc::Sender<Outgoing>,
    /// What is left of [`QUEUE_BYTES`]; a message gives its part back when it is written.
    room: Arc<Semaphore>,
    arrivals: Mutex<mpsc::Receiver<Message>>,
}

/// A message as it goes onto the wire. Clones share the bytes.
#[derive(Clone, Debug)]
pub struct Encoded {
    name: &'static str,
    bytes: Bytes,
}

/// A link's counters since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// UDP payload that the path carries now, bytes.
    pub path_mtu: u16,
    /// Smoothed round trip.
    pub rtt: Duration,
    /// Packets sent and lost.
    pub lost_packets: u64,
    /// Packets sent.
    pub sent_packets: u64,
    /// Bytes sent, packet headers included.
    pub sent_bytes: u64,
    /// Bytes received, packet headers included.
    pub received_bytes: u64,
    /// How often the path seemed to swallow large packets, and the MTU fell back.
    pub black_holes: u64,
}

impl Link {
    /// Starts a link's tasks on the current runtime; `lane` is its control stream.
    pub(super) fn start(
        site: &Arc<Site>,
        wire: Wire,
        identity: Identity,
        lane: (SendStream, RecvStream),
    ) -> Self {
        let (sender, receiver) = lane;
        let _ = sender.set_priority(control::PRIORITY); // an error means that the link is gone
        let (queue, outgoing) = mpsc::channel(site.settings.control_queue);
        let (deliver, arrivals) = mpsc::channel(ARRIVALS);
        // Their errors are the connection's, which whoever uses the link next will meet.
        tokio::spawn(control::write(wire.clone(), sender, outgoing));
        tokio::spawn(control::read(site.clone(), wire.clone(), receiver, deliver));
        let (room, arrivals) = (Arc::new(Semaphore::new(QUEUE_BYTES)), Mutex::new(arrivals));
        Self { inner: Arc::new(Inner { wire, identity, queue, room, arrivals }) }
    }

    /// Who the peer has proved to be.
    pub fn identity(&self) -> &Identity {
        &self.inner.identity
    }

    /// Where the peer is.
    pub fn remote_address(&self) -> SocketAddr {
        self.inner.wire.connection.remote_address()
    }

    /// Queues a message; never waits. Messages arrive in the order in which they were queued.
    ///
    /// # Errors
    /// [`LinkError::Full`] when `Settings::control_queue` messages wait already, or when more than
    /// 64 MiB would wait with this one; [`LinkError::TooLarge`]; else the link is gone.
    pub fn send(&self, message: Message) -> Result<(), LinkError> {
        self.send_encoded(&Encoded::new(&message))
    }

    /// As [`Link::send`], of a message that goes to many and was encoded once.
    ///
    /// # Errors
    /// As [`Link::send`].
    pub fn send_encoded(&self, message: &Encoded) -> Result<(), LinkError> {
        let Encoded { name, bytes } = message;
        if bytes.len() > MAX_MESSAGE_CHUNK as usize {
            return Err(LinkError::TooLarge { name, bytes: bytes.len() });
        }
        let room = self.inner.room.clone().try_acquire_many_owned(bytes.len() as u32);
        let room = room.map_err(|_| LinkError::Full)?;
        let queued = self.inner.queue.try_send(Outgoing::Message(bytes.clone(), room));
        queued.map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => LinkError::Full,
            mpsc::error::TrySendError::Closed(_) => self.inner.wire.failure(),
        })
    }

    /// The next message. Cancel-safe. Messages that arrived before the link ended are still given.
    ///
    /// # Errors
    /// Why the link has ended.
    pub async fn receive(&self) -> Result<Message, LinkError> {
        let message = self.inner.arrivals.lock().await.recv().await;
        message.ok_or_else(|| self.inner.wire.failure())
    }

    /// Opens a stream of chunks. Waits while the peer has as many open as it allows
    /// (`Settings::bulk_streams`); the peer sees the stream with its first chunk.
    ///
    /// # Errors
    /// Why the link has ended.
    pub async fn bulk(&self) -> Result<BulkSender, LinkError> {
        let wire = self.inner.wire.clone();
        let stream = wire.connection.open_uni().await.map_err(|_| wire.failure())?;
        Ok(BulkSender::new(wire, stream))
    }

    /// The next stream of chunks that the peer has opened. Cancel-safe.
    ///
    /// # Errors
    /// Why the link has ended.
    pub async fn accept_bulk(&self) -> Result<BulkReceiver, LinkError> {
        let wire = self.inner.wire.clone();
        let stream = wire.connection.accept_uni().await.map_err(|_| wire.failure())?;
        Ok(BulkReceiver::new(wire, stream))
    }

    /// Asks the peer, a coordinator, for newer credentials of the node that holds these. An
    /// endpoint does so by itself when its own are due (`Settings::renewal_check`).
    ///
    /// # Errors
    /// [`EnrolError`]: the peer refuses, or the link is gone.
    pub async fn renew(&self, held: &Credentials) -> Result<Credentials, EnrolError> {
        self.asker().ask(held).await
    }

    pub(super) fn asker(&self) -> Asker {
        Asker { wire: self.inner.wire.clone(), queue: self.inner.queue.clone() }
    }

    /// Closes at once; what is still queued or on its way may be lost. The peer is told the reason,
    /// and that this node lives on.
    pub fn close(&self, reason: &str) {
        self.inner.wire.close(reason);
    }

    /// Says goodbye: closes when the peer has received every message that was sent before; returns
    /// then, or after two seconds at the latest. To the peer this node is gone.
    pub async fn finish(&self) {
        let told = async {
            if self.inner.queue.send(Outgoing::End).await.is_ok() {
                self.inner.wire.connection.closed().await;
            }
        };
        let _ = timeout(FINISH_TIMEOUT, told).await; // a peer that does not read is cut off
        self.inner.wire.leave("finished");
    }

    /// Returns when the link has ended, with the reason.
    pub async fn closed(&self) -> LinkError {
        self.inner.wire.connection.closed().await;
        self.inner.wire.failure()
    }

    /// Why the link has ended, if it has.
    pub fn ended(&self) -> Option<LinkError> {
        let wire = &self.inner.wire;
        wire.connection.close_reason().map(|_| wire.failure())
    }

    /// What the link has counted.
    pub fn stats(&self) -> LinkStats {
        LinkStats::of(&self.inner.wire.connection)
    }
}

impl Encoded {
    /// Encodes a message.
    pub fn new(message: &Message) -> Self {
        Self { name: message.name(), bytes: Bytes::from_owner(codec::encode(message)) }
    }
}

impl LinkStats {
    pub(super) fn of(connection: &Connection) -> Self {
        let stats = connection.stats();
        Self {
            path_mtu: stats.path.current_mtu,
            rtt: stats.path.rtt,
            lost_packets: stats.path.lost_packets,
            sent_packets: stats.path.sent_packets,
            sent_bytes: stats.udp_tx.bytes,
            received_bytes: stats.udp_rx.bytes,
            black_holes: stats.path.black_holes_detected,
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link({} at {})", self.identity(), self.remote_address())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.wire.close("the node let go of the link");
    }
}

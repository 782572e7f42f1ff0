//! A link between two nodes that have proved their identities to each other.

use std::fmt;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quinn::{RecvStream, SendStream};
use tokio::sync::{Mutex, Semaphore, mpsc};
use tokio::time::timeout;

use super::bulk::{BulkReceiver, BulkSender};
use super::control::{self, Outgoing};
use super::endpoint::protocol_of;
use super::endpoint_state::EndpointState;
use super::enrol::EnrolError;
use super::error::LinkError;
use super::renewal::RenewalClient;
use super::wire::Wire;
use crate::identity::{Credentials, Identity};
use crate::protocol::chunk::MAX_MESSAGE_CHUNK;
use crate::protocol::version::version_of;
use crate::protocol::{Message, codec};

/// Messages read from the peer before the caller asks for them. Beyond that, the peer is held back.
const ARRIVALS: usize = 16;
/// Bytes of messages that may wait for the peer: one message of the largest size, or many small
/// ones.
const QUEUE_BYTES: usize = MAX_MESSAGE_CHUNK as usize;
/// How long [`Link::finish`] waits until the peer has read everything.
const LINK_FINISH_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection to one peer. Clones are handles on the same link. The drop of the last one closes
/// the link at once.
#[derive(Clone)]
pub struct Link {
    inner: Arc<Inner>,
}

struct Inner {
    wire: Wire,
    identity: Identity,
    queue: mpsc::Sender<Outgoing>,
    /// What is left of [`QUEUE_BYTES`]. A message gives its part back once it is written.
    room: Arc<Semaphore>,
    arrivals: Mutex<mpsc::Receiver<Message>>,
}

/// A message as it goes onto the wire. Clones share the bytes.
#[derive(Clone, Debug)]
pub struct Encoded {
    name: &'static str,
    bytes: Bytes,
}

impl Link {
    /// Starts a link's tasks on the current runtime. `lane` is its control stream.
    pub(super) fn start(
        shared: &Arc<EndpointState>,
        wire: Wire,
        identity: Identity,
        lane: (SendStream, RecvStream),
    ) -> Self {
        let (sender, receiver) = lane;
        let _ = sender.set_priority(control::PRIORITY); // an error means that the link is gone
        let (queue, outgoing) = mpsc::channel(shared.settings.control_queue);
        let (deliver, arrivals) = mpsc::channel(ARRIVALS);
        // Their errors are the connection's. The next user of the link gets them from there.
        tokio::spawn(control::write(wire.clone(), sender, outgoing));
        tokio::spawn(control::read(shared.clone(), wire.clone(), receiver, deliver));
        let (room, arrivals) = (Arc::new(Semaphore::new(QUEUE_BYTES)), Mutex::new(arrivals));
        Self { inner: Arc::new(Inner { wire, identity, queue, room, arrivals }) }
    }

    /// The identity that the peer has proved.
    pub fn identity(&self) -> &Identity {
        &self.inner.identity
    }

    /// The version of the protocol that both sides speak on this link.
    ///
    /// # Panics
    /// If the connection did not agree on one: the endpoint makes links from such connections only.
    pub fn protocol_version(&self) -> u16 {
        let protocol = protocol_of(&self.inner.wire.connection);
        protocol.and_then(|name| version_of(&name)).expect("the handshake agreed on a version")
    }

    /// The peer's present address and port.
    pub fn remote_address(&self) -> SocketAddr {
        self.inner.wire.connection.remote_address()
    }

    /// Whether this side has dialled.
    pub fn is_dialled(&self) -> bool {
        self.inner.wire.connection.side().is_client()
    }

    /// Whether the peer's address is one of this host, or of this container. A system that lets
    /// sockets have addresses of other hosts may say so of another host.
    pub fn is_within_host(&self) -> bool {
        UdpSocket::bind((self.remote_address().ip(), 0)).is_ok()
    }

    /// A secret that only the two sides of this connection know. Each purpose has another one.
    ///
    /// # Panics
    /// Never: the handshake is over, and 64 bytes are not too many.
    pub fn secret(&self, purpose: &str) -> [u8; 64] {
        let mut secret = [0; 64];
        let (connection, label) = (&self.inner.wire.connection, b"EXPORTER-everstep");
        let exported = connection.export_keying_material(&mut secret, label, purpose.as_bytes());
        exported.expect("a connection after its handshake exports 64 bytes");
        secret
    }

    /// Queues a message and never waits. Messages arrive in the order of the queue.
    ///
    /// # Errors
    /// [`LinkError::Full`] if `Settings::control_queue` messages wait already, or if more than 64
    /// MiB would wait with this one. [`LinkError::TooLarge`] for a message over the limit.
    /// Otherwise the link has ended.
    pub fn send(&self, message: Message) -> Result<(), LinkError> {
        self.send_encoded(&Encoded::new(&message))
    }

    /// As [`Link::send`], for a message that is encoded once and goes to many peers.
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

    /// The next message. Cancel-safe. Messages that arrived before the end of the link still come
    /// out.
    ///
    /// # Errors
    /// The reason why the link has ended.
    pub async fn receive(&self) -> Result<Message, LinkError> {
        let message = self.inner.arrivals.lock().await.recv().await;
        message.ok_or_else(|| self.inner.wire.failure())
    }

    /// Opens a stream of chunks. Waits while the peer has as many open as it allows
    /// (`Settings::bulk_streams`). The peer sees the stream with its first chunk.
    ///
    /// # Errors
    /// The reason why the link has ended.
    pub async fn bulk(&self) -> Result<BulkSender, LinkError> {
        let wire = self.inner.wire.clone();
        let stream = wire.connection.open_uni().await.map_err(|_| wire.failure())?;
        Ok(BulkSender::new(wire, stream))
    }

    /// The next stream of chunks that the peer has opened. Cancel-safe.
    ///
    /// # Errors
    /// The reason why the link has ended.
    pub async fn accept_bulk(&self) -> Result<BulkReceiver, LinkError> {
        let wire = self.inner.wire.clone();
        let stream = wire.connection.accept_uni().await.map_err(|_| wire.failure())?;
        Ok(BulkReceiver::new(wire, stream))
    }

    /// Asks the peer, a coordinator, for newer credentials of the node that holds these. An
    /// endpoint does so by itself when its own credentials are due (`Settings::renewal_check`).
    ///
    /// # Errors
    /// [`EnrolError`]: the peer refuses, or the link has ended.
    pub async fn renew(&self, held: &Credentials) -> Result<Credentials, EnrolError> {
        self.renewal_client().ask(held).await
    }

    pub(super) fn renewal_client(&self) -> RenewalClient {
        RenewalClient { wire: self.inner.wire.clone(), queue: self.inner.queue.clone() }
    }

    /// Closes at once. Queued messages and those on their way may be lost. The peer gets the
    /// reason, and learns that this node lives on.
    pub fn close(&self, reason: &str) {
        self.inner.wire.close(reason);
    }

    /// Closes at once, as [`Link::close`] does, since a message could not be sent for this error.
    pub fn close_unsent(&self, error: LinkError) {
        self.inner.wire.close_unsent(error);
    }

    /// Says goodbye. The link closes when the peer has received every earlier message. Returns
    /// then, or after two seconds at the latest. To the peer this node is then gone.
    pub async fn finish(&self) {
        let told = async {
            if self.inner.queue.send(Outgoing::End).await.is_ok() {
                self.inner.wire.connection.closed().await;
            }
        };
        let _ = timeout(LINK_FINISH_TIMEOUT, told).await; // a peer that does not read is cut off
        self.inner.wire.leave("finished");
    }

    /// Returns when the link has ended, with the reason.
    pub async fn closed(&self) -> LinkError {
        self.inner.wire.connection.closed().await;
        self.inner.wire.failure()
    }

    /// The reason why the link has ended. `None` while it lives.
    pub fn ended(&self) -> Option<LinkError> {
        let wire = &self.inner.wire;
        wire.connection.close_reason().map(|_| wire.failure())
    }
}

impl Encoded {
    /// Encodes a message once for any number of links.
    pub fn new(message: &Message) -> Self {
        Self { name: message.name(), bytes: Bytes::from_owner(codec::encode(message)) }
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

//! An endpoint: one UDP port that listens and connects.
//!
//! Input: credentials, an allow list, and peers from outside. Output: [`Link`]s after their
//! handshake, with a peer that is known and wanted. A failed handshake costs no other peer
//! anything. The endpoint counts and logs it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex as Lock};
use std::time::Duration;

use quinn::crypto::rustls::HandshakeData;
use quinn::{
    ClientConfig, Connection, ConnectionError, Incoming, ServerConfig, TransportErrorCode,
};
use rustls::pki_types::CertificateDer;
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use tokio::sync::{Mutex, mpsc};
use tokio::time::timeout;

use super::allow_list::NOT_LISTED;
use super::endpoint_state::EndpointState;
use super::error::{
    ConnectError, GOODBYE, HandshakeError, NO_CERTIFICATE, NOT_ADMITTED, PeerIdentityError,
};
use super::host_port::BoundSocket;
use super::link::Link;
use super::links::EndpointStats;
use super::presented::PresentedCredentials;
use super::probe::{Probes, Signs};
use super::settings::{Settings, SettingsError};
use super::slots::{Slot, Slots};
use super::socket::{Batches, SocketBuffers, Udp};
use super::timer::TokioTimers;
use super::{ENROL_PROTOCOL, control, enrol, tls};
use crate::identity::{Credentials, Enrolment, Identity, Role};
use crate::protocol::version::spoken;

/// The host name that TLS asks for. Nodes are told apart by their identities, so all of them have
/// this one.
pub(super) const SERVER_NAME: &str = "everstep";
/// Most links that the endpoint has let in before [`Endpoint::accept`] takes them.
const BACKLOG: usize = 64;
/// How long a closing endpoint waits until its peers have heard of it.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long TLS may take, up to the client's certificate, while many handshakes are in progress.
const CROWDED_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(1);
/// The purpose for which the authority gives a secret: it makes the keys of stateless resets.
const RESETS: &str = "everstep: stateless resets of QUIC links";

/// One UDP port of this process. Its drop closes all its links. To their peers the node is then
/// gone.
pub struct Endpoint {
    quinn: quinn::Endpoint,
    configs: Lock<ConnectionConfigs>,
    shared: Arc<EndpointState>,
    buffers: SocketBuffers,
    local_address: SocketAddr,
    arrivals: Mutex<mpsc::Receiver<Link>>,
}

/// The peers that a connecting node accepts at the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Any node of the cluster.
    Anyone,
    /// Any node of this role.
    Role(Role),
    /// Only the node with this identity.
    Node(Identity),
}

/// Why an endpoint could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The address is in use, or not of this machine.
    #[error("cannot listen on {address}: {source}")]
    Socket {
        /// The address that was asked for.
        address: SocketAddr,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The credentials do not fit together.
    #[error("the node's credentials cannot be used: {0}")]
    Credentials(#[from] rustls::Error),
    /// A setting is not valid.
    #[error("settings: {0}")]
    Settings(#[from] SettingsError),
}

impl Endpoint {
    /// Listens on `listen` (port 0: any free port). With an `enrolment`, nodes without a
    /// certificate may connect to enrol, and for nothing else, and nodes with one may renew it.
    ///
    /// # Errors
    /// [`BindError`].
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn bind(
        listen: SocketAddr,
        credentials: &Credentials,
        settings: Settings,
        enrolment: Option<Enrolment>,
    ) -> Result<Self, BindError> {
        Self::open(BoundSocket::bind(listen, &settings)?, credentials, settings, enrolment)
    }

    /// As [`Endpoint::bind`], at a port that the caller has already taken.
    ///
    /// # Errors
    /// As [`Endpoint::bind`].
    ///
    /// # Panics
    /// As [`Endpoint::bind`].
    pub fn open(
        bound: BoundSocket,
        credentials: &Credentials,
        settings: Settings,
        enrolment: Option<Enrolment>,
    ) -> Result<Self, BindError> {
        let clock = Arc::new(DefaultTimeProvider);
        Self::open_with_clock(bound, credentials, settings, enrolment, clock)
    }

    /// As [`Endpoint::open`], with another clock to measure the validity of certificates.
    ///
    /// # Errors
    /// As [`Endpoint::bind`].
    ///
    /// # Panics
    /// As [`Endpoint::bind`].
    pub fn open_with_clock(
        bound: BoundSocket,
        credentials: &Credentials,
        settings: Settings,
        enrolment: Option<Enrolment>,
        clock: Arc<dyn TimeProvider>,
    ) -> Result<Self, BindError> {
        settings.validate()?;
        let BoundSocket { socket, buffers, address: local_address } = bound;
        let failed = |source| BindError::Socket { address: local_address, source };
        let presented = Arc::new(PresentedCredentials::new(credentials)?);
        let (links, allow_list, renewing, failures) = Default::default();
        let signs = Arc::new(Signs::default());
        let probes =
            settings.probe.map(|_| Probes::open(local_address.ip(), signs.clone())).transpose();
        let probes = probes.map_err(failed)?.flatten();
        let slots = Slots::new(settings.max_handshakes);
        let shared = Arc::new(EndpointState {
            settings,
            links,
            allow_list,
            presented,
            enrolment,
            clock,
            renewing,
            slots,
            failures,
            probes,
        });
        let configs = ConnectionConfigs::of(&shared)?;
        let server = configs.server.clone();
        let secret =
            shared.enrolment.as_ref().map(|enrolment| reset_secret(enrolment, credentials));
        let (runtime, config) = (Arc::new(TokioTimers), shared.settings.endpoint(secret));
        let socket = Arc::new(Udp::new(socket).map_err(failed)?);
        let socket = Arc::new(Batches::new(socket, shared.settings.largest_mtu, signs));
        let quinn =
            quinn::Endpoint::new_with_abstract_socket(config, Some(server), socket, runtime)
                .map_err(failed)?;
        let (deliver, arrivals) = mpsc::channel(BACKLOG);
        tokio::spawn(Arc::new(Listener { shared: shared.clone(), deliver }).run(quinn.clone()));
        let arrivals = Mutex::new(arrivals);
        let configs = Lock::new(configs);
        Ok(Self { quinn, configs, shared, buffers, local_address, arrivals })
    }

    /// Sets how many peers share the budget of the windows. New links get their windows
    /// accordingly. Existing links keep theirs, since a granted window cannot be taken back.
    pub fn share_among(&self, peers: u32) {
        let mut configs = self.configs.lock().expect("nothing panics meanwhile");
        if configs.peers != peers {
            configs.share_among(&self.shared.settings, peers);
            self.quinn.set_server_config(Some(configs.server.clone()));
        }
    }

    /// Presents these renewed credentials of the same node from now on. Existing links stay up,
    /// even if they outlive their certificates. An endpoint that has a link to a coordinator renews
    /// its credentials by itself.
    ///
    /// # Errors
    /// [`BindError::Credentials`]. The endpoint then keeps the previous credentials.
    pub fn renew(&self, credentials: &Credentials) -> Result<(), BindError> {
        Ok(self.shared.presented.replace(credentials)?)
    }

    /// The newest credentials that the endpoint presents.
    pub fn credentials(&self) -> Arc<Credentials> {
        self.shared.presented.credentials()
    }

    /// Restricts links from now on to the nodes that this predicate, the allow list, admits. The
    /// endpoint asks it at the end of every handshake, and now for every peer. A peer that the
    /// list does not admit loses its link at once. The predicate must not use the endpoint. Until
    /// this call, the endpoint lets every node of the cluster in.
    pub fn admit_only(&self, allow_list: impl Fn(&Identity) -> bool + Send + Sync + 'static) {
        self.shared.allow_list.replace(allow_list);
        // A node that ends its handshake now is checked again once its link is in the table.
        self.shared.links.expel(|peer| self.shared.allow_list.admits(peer));
    }

    /// Sets whether the endpoint rests: while nothing depends on noticing a death at once, it
    /// probes its peers less often.
    pub fn rest(&self, rests: bool) {
        self.shared.links.rests.store(rests, Ordering::Relaxed);
    }

    /// Keeps slots for handshakes free for these addresses, since nodes of the cluster are there.
    /// An endpoint learns the sources of its links by itself.
    pub fn expect_from(&self, hosts: impl IntoIterator<Item = IpAddr>) {
        hosts.into_iter().for_each(|host| self.shared.slots.know(host));
    }

    /// Connects to a node. Returns when both nodes have let each other in.
    ///
    /// # Errors
    /// [`ConnectError`], in words for the user.
    pub async fn connect(
        &self,
        address: SocketAddr,
        expected: &Expected,
    ) -> Result<Link, ConnectError> {
        self.connect_within(address, expected, self.shared.settings.handshake_timeout).await
    }

    /// As [`Endpoint::connect`], but gives up after `limit`, as without an answer.
    ///
    /// # Errors
    /// [`ConnectError`], in words for the user.
    pub async fn connect_within(
        &self,
        address: SocketAddr,
        expected: &Expected,
        limit: Duration,
    ) -> Result<Link, ConnectError> {
        let limit = limit.min(self.shared.settings.handshake_timeout);
        let connected = timeout(limit, self.attempt(address, expected)).await;
        connected.unwrap_or(Err(ConnectError::NoAnswer { address }))
    }

    async fn attempt(
        &self,
        address: SocketAddr,
        expected: &Expected,
    ) -> Result<Link, ConnectError> {
        let failed = |reason| ConnectError::Failed { address, reason };
        let offered = spoken(&self.shared.settings.protocol_versions);
        let handshake = |error| ConnectError::handshake(address, &offered, error);
        let client = self.configs.lock().expect("nothing panics meanwhile").client.clone();
        let connecting = self.quinn.connect_with(client, address, SERVER_NAME);
        let connecting = connecting.map_err(|error| failed(error.to_string()))?;
        let connection = connecting.await.map_err(handshake)?;
        let met = identity_of(&connection).map_err(|error| failed(error.to_string()))?;
        if !expected.admits(&met) {
            connection.close(NOT_ADMITTED, b"another node was expected at this address");
            return Err(ConnectError::Stranger { address, expected: expected.to_string(), met });
        }
        if !self.shared.allow_list.admits(&met) {
            connection.close(NOT_ADMITTED, NOT_LISTED.as_bytes());
            return Err(ConnectError::NotListed { address, met });
        }
        // In TLS 1.3 a client is done before the server has seen its certificate. The server opens
        // the lane, so only the lane tells the client that the server let it in.
        let lane = connection.accept_bi().await.map_err(handshake)?;
        Ok(self.shared.link(connection, met, lane))
    }

    /// The next node that has connected. `None` once the endpoint is closed. Cancel-safe.
    pub async fn accept(&self) -> Option<Link> {
        self.arrivals.lock().await.recv().await
    }

    /// The address where it listens.
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// The socket's buffers as the kernel granted them.
    pub fn socket_buffers(&self) -> SocketBuffers {
        self.buffers
    }

    /// The counters of the endpoint and its links.
    pub fn stats(&self) -> EndpointStats {
        self.shared.links.stats()
    }

    /// Closes all links and waits, a second at most, until the peers can have heard of it. A
    /// process calls this before it exits.
    pub async fn close(&self, reason: &str) {
        self.quinn.close(GOODBYE, reason.as_bytes());
        let _ = timeout(CLOSE_TIMEOUT, self.quinn.wait_idle()).await; // silent peers time out
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.quinn.close(GOODBYE, b"the node has closed its endpoint");
    }
}

impl Expected {
    fn admits(&self, met: &Identity) -> bool {
        match self {
            Self::Anyone => true,
            Self::Role(role) => met.role == *role,
            Self::Node(identity) => met == identity,
        }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anyone => f.write_str("any node"),
            Self::Role(role) => write!(f, "a node with the role {role}"),
            Self::Node(identity) => identity.fmt(f),
        }
    }
}

/// The secret of a node's stateless resets. It stays the same when the node starts again. No other
/// node has it: the resets of such a node would end this one's links.
fn reset_secret(enrolment: &Enrolment, own: &Credentials) -> [u8; 32] {
    let secret = enrolment.secret_for(RESETS);
    *blake3::keyed_hash(&secret, own.identity().to_string().as_bytes()).as_bytes()
}

/// How both sides of an endpoint present themselves and behave, on links that begin now.
struct ConnectionConfigs {
    client: ClientConfig,
    server: ServerConfig,
    /// Number of peers that share the budget of the windows.
    peers: u32,
}

impl ConnectionConfigs {
    fn of(shared: &EndpointState) -> Result<Self, rustls::Error> {
        let (presented, clock) = (&shared.presented, &shared.clock);
        let versions = &shared.settings.protocol_versions;
        let client = tls::client(presented.clone(), clock.clone(), versions)?;
        let server =
            tls::server(presented.clone(), clock.clone(), versions, shared.enrolment.is_some())?;
        let mut server = ServerConfig::with_crypto(Arc::new(server));
        server.migration(false).max_incoming(shared.settings.max_handshakes);
        let client = ClientConfig::new(Arc::new(client));
        let mut configs = Self { client, server, peers: shared.settings.peers };
        configs.share_among(&shared.settings, shared.settings.peers);
        Ok(configs)
    }

    fn share_among(&mut self, settings: &Settings, peers: u32) {
        self.peers = peers;
        let transport = settings.transport(peers);
        self.client.transport_config(transport.clone());
        self.server.transport_config(transport);
    }
}

/// The listening side: it admits connecting nodes.
struct Listener {
    shared: Arc<EndpointState>,
    deliver: mpsc::Sender<Link>,
}

impl Listener {
    async fn run(self: Arc<Self>, quinn: quinn::Endpoint) {
        while let Some(incoming) = quinn.accept().await {
            let address = incoming.remote_address();
            let Some(slot) = self.shared.slots.take(address.ip()) else {
                incoming.refuse();
                self.shared.handshake_failed(address, &HandshakeError::TooMany);
                continue;
            };
            if slot.is_crowded && !incoming.remote_address_validated() {
                // Under load only a peer that is reachable at its address gets further.
                let _ = incoming.retry(); // an unvalidated address always allows a retry
                continue;
            }
            let listener = self.clone();
            tokio::spawn(async move {
                listener.meet(incoming, &slot).await;
                drop(slot);
            });
        }
    }

    async fn meet(&self, incoming: Incoming, slot: &Slot) {
        let address = incoming.remote_address();
        let longest = self.shared.settings.handshake_timeout;
        let proof = if slot.is_crowded { longest.min(CROWDED_HANDSHAKE_TIMEOUT) } else { longest };
        let welcomed = timeout(longest, self.welcome(incoming, proof)).await;
        match welcomed.unwrap_or(Err(HandshakeError::TooLong)) {
            // While the backlog is full, the link waits and keeps its slot.
            Ok(Some(link)) => drop(self.deliver.send(link).await),
            Ok(None) => {}
            Err(error) => self.shared.handshake_failed(address, &error),
        }
    }

    /// A link to a node with a certificate. `None` for a node that has enrolled, or that wants no
    /// link any more. TLS may take as long as `proof`.
    async fn welcome(
        &self,
        incoming: Incoming,
        proof: Duration,
    ) -> Result<Option<Link>, HandshakeError> {
        let proven = timeout(proof, incoming.into_future()).await;
        let connection = match proven.map_err(|_| HandshakeError::TooLong)? {
            Err(error) if is_withdrawn(&error) => {
                tracing::debug!("a peer has changed its mind");
                return Ok(None);
            }
            connected => connected?,
        };
        if let Some(enrolment) = &self.shared.enrolment
            && protocol_of(&connection).as_deref() == Some(ENROL_PROTOCOL.as_bytes())
        {
            let node = enrol::serve(&self.shared, enrolment, &connection).await?;
            let node = node.map_err(HandshakeError::Refused)?;
            tracing::info!(%node, "enrolled");
            return Ok(None);
        }
        let identity = identity_of(&connection).inspect_err(|_| {
            connection.close(NOT_ADMITTED, NO_CERTIFICATE.as_bytes());
        })?;
        if !self.shared.allow_list.admits(&identity) {
            connection.close(NOT_ADMITTED, NOT_LISTED.as_bytes());
            return Err(HandshakeError::NotListed(identity));
        }
        let (mut sender, receiver) = connection.open_bi().await?;
        sender.write_all(&control::EMPTY.to_le_bytes()).await?;
        Ok(Some(self.shared.link(connection, identity, (sender, receiver))))
    }
}

/// Whether the peer withdrew. A node that dials several peers may drop its other dials when one
/// answers. (TLS hides why a peer ends a handshake. A peer that finds a stranger here looks the
/// same, and reports it at its own end.)
fn is_withdrawn(error: &ConnectionError) -> bool {
    let harmless = [TransportErrorCode::APPLICATION_ERROR, TransportErrorCode::NO_ERROR];
    match error {
        ConnectionError::ApplicationClosed(_) => true,
        ConnectionError::ConnectionClosed(close) => harmless.contains(&close.error_code),
        _ => false,
    }
}

/// The protocol of the connection, as the ALPN names it.
pub(super) fn protocol_of(connection: &Connection) -> Option<Vec<u8>> {
    connection.handshake_data()?.downcast::<HandshakeData>().ok()?.protocol
}

/// The identity in the peer's certificate. TLS has verified the certificate.
pub(super) fn identity_of(connection: &Connection) -> Result<Identity, PeerIdentityError> {
    Ok(Identity::of(&certificate_of(connection)?)?)
}

/// The certificate that the peer has proved to be its own.
pub(super) fn certificate_of(
    connection: &Connection,
) -> Result<CertificateDer<'static>, PeerIdentityError> {
    let chain = connection.peer_identity();
    let chain = chain.and_then(|chain| chain.downcast::<Vec<CertificateDer<'static>>>().ok());
    let leaf = chain.and_then(|chain| chain.into_iter().next());
    leaf.ok_or(PeerIdentityError::NoCertificate)
}

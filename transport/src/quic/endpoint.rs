//! An endpoint: one UDP port that listens and connects.
//!
//! In: credentials, and peers from outside. Out: [`Link`]s whose handshake is done and whose peer
//! is known. A handshake that fails costs nobody else anything: it is counted and logged.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use quinn::crypto::rustls::HandshakeData;
use quinn::{
    ClientConfig, Connection, Incoming, RecvStream, SendStream, ServerConfig, TokioRuntime,
};
use rustls::pki_types::CertificateDer;
use tokio::sync::{Mutex, Semaphore, mpsc};
use tokio::time::timeout;

use super::error::{ConnectError, GOODBYE, NO_CERTIFICATE, NOT_ADMITTED};
use super::link::Link;
use super::links::{EndpointStats, Links};
use super::settings::{Settings, SettingsError};
use super::socket::{self, SocketBuffers};
use super::wire::Wire;
use super::{ENROL_ALPN, control, enrol, probe, tls};
use crate::identity::{Credentials, Enrolment, Identity, Role};
use crate::protocol::ALPN;

/// TLS wants a host's name; identities take its place, so all nodes have this one.
pub(super) const SERVER_NAME: &str = "everstep";
/// Links that were let in and not yet taken by [`Endpoint::accept`].
const BACKLOG: usize = 64;
/// How long a closing endpoint waits for its peers to have heard of it.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// One UDP port of this process. Dropped, it closes all its links: to their peers it is gone.
pub struct Endpoint {
    quinn: quinn::Endpoint,
    /// As of the newest credentials.
    client: RwLock<ClientConfig>,
    site: Site,
    enrols: bool,
    buffers: SocketBuffers,
    local_address: SocketAddr,
    arrivals: Mutex<mpsc::Receiver<Link>>,
}

/// Whom a connecting node expects to meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Any node of the cluster.
    Anyone,
    /// Any node of this role.
    Role(Role),
    /// This node.
    Node(Identity),
}

/// Why an endpoint could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The address is in use, or not of this machine.
    #[error("cannot listen on {address}: {source}")]
    Socket {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The credentials do not fit together.
    #[error("the node's credentials cannot be used: {0}")]
    Credentials(#[from] rustls::Error),
    /// A setting cannot be.
    #[error("settings: {0}")]
    Settings(#[from] SettingsError),
}

impl Endpoint {
    /// Listens on `listen` (port 0: any free port). With an `enrolment`, nodes without a
    /// certificate may connect to enrol, and for nothing else.
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
        settings.validate()?;
        let enrols = enrolment.is_some();
        let (client, server) = configurations(credentials, &settings, enrols)?;
        let failed = |source| BindError::Socket { address: listen, source };
        let (socket, buffers) = socket::open(listen, settings.socket_buffer).map_err(failed)?;
        let local_address = socket.local_addr().map_err(failed)?;
        let runtime = Arc::new(TokioRuntime);
        let quinn = quinn::Endpoint::new(settings.endpoint(), Some(server), socket, runtime)
            .map_err(failed)?;
        let (deliver, arrivals) = mpsc::channel(BACKLOG);
        let role = credentials.identity().role;
        let site = Site { role, settings, links: Arc::default() };
        let door = Door { site: site.clone(), enrolment, deliver };
        tokio::spawn(Arc::new(door).attend(quinn.clone()));
        let (client, arrivals) = (RwLock::new(client), Mutex::new(arrivals));
        Ok(Self { quinn, client, site, enrols, buffers, local_address, arrivals })
    }

    /// Shows these credentials from now on: they are the node's own, renewed. Links that are up
    /// stay up.
    ///
    /// # Errors
    /// [`BindError::Credentials`].
    pub fn renew(&self, credentials: &Credentials) -> Result<(), BindError> {
        let (client, server) = configurations(credentials, &self.site.settings, self.enrols)?;
        self.quinn.set_server_config(Some(server));
        *self.client.write().expect("cloning and replacing do not panic") = client;
        Ok(())
    }

    /// Connects to a node; returns when both have let each other in.
    ///
    /// # Errors
    /// [`ConnectError`], in words for the user.
    pub async fn connect(
        &self,
        address: SocketAddr,
        expected: &Expected,
    ) -> Result<Link, ConnectError> {
        let attempt = self.attempt(address, expected);
        let connected = timeout(self.site.settings.handshake_timeout, attempt).await;
        connected.unwrap_or(Err(ConnectError::NoAnswer { address }))
    }

    async fn attempt(
        &self,
        address: SocketAddr,
        expected: &Expected,
    ) -> Result<Link, ConnectError> {
        let failed = |reason| ConnectError::Failed { address, reason };
        let handshake = |error| ConnectError::handshake(address, ALPN, error);
        let client = self.client.read().expect("cloning and replacing do not panic").clone();
        let connecting = self.quinn.connect_with(client, address, SERVER_NAME);
        let connecting = connecting.map_err(|error| failed(error.to_string()))?;
        let connection = connecting.await.map_err(handshake)?;
        let met = identity_of(&connection).map_err(failed)?;
        if !expected.admits(&met) {
            connection.close(NOT_ADMITTED, b"another node was expected at this address");
            return Err(ConnectError::Stranger { address, expected: expected.to_string(), met });
        }
        // In TLS 1.3 a client is done before the server has seen its certificate: only the lane,
        // which the server opens, tells that it was let in.
        let lane = connection.accept_bi().await.map_err(handshake)?;
        Ok(self.site.link(connection, met, lane))
    }

    /// The next node that has connected; `None` once the endpoint is closed. Cancel-safe.
    pub async fn accept(&self) -> Option<Link> {
        self.arrivals.lock().await.recv().await
    }

    /// Where it listens.
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// The socket's buffers as the kernel granted them.
    pub fn socket_buffers(&self) -> SocketBuffers {
        self.buffers
    }

    /// What the endpoint and its links have counted.
    pub fn stats(&self) -> EndpointStats {
        self.site.links.stats()
    }

    /// Closes all links and waits, a second at most, until the peers can have heard of it: what a
    /// process does before it exits.
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

/// How both sides of an endpoint present and conduct themselves.
fn configurations(
    credentials: &Credentials,
    settings: &Settings,
    enrols: bool,
) -> Result<(ClientConfig, ServerConfig), rustls::Error> {
    let transport = settings.transport();
    let mut client = ClientConfig::new(Arc::new(tls::client(credentials)?));
    client.transport_config(transport.clone());
    let mut server = ServerConfig::with_crypto(Arc::new(tls::server(credentials, enrols)?));
    server.transport_config(transport).migration(false).max_incoming(settings.max_handshakes);
    Ok((client, server))
}

/// What all links of an endpoint share, whoever called.
#[derive(Clone)]
struct Site {
    role: Role,
    settings: Settings,
    links: Arc<Links>,
}

impl Site {
    /// The link on a connection whose peer is known and has its control lane.
    fn link(&self, connection: Connection, met: Identity, lane: (SendStream, RecvStream)) -> Link {
        let wire = Wire::new(connection, self.links.clone());
        // Workers hear of each other's deaths from the coordinators.
        let watched = [self.role, met.role].contains(&Role::Coordinator);
        if let Some(interval) = self.settings.probe.filter(|_| watched) {
            tokio::spawn(probe::watch(wire.clone(), interval));
        }
        Link::start(wire, met, lane, self.settings.control_queue)
    }
}

/// The listening side: lets in whom it may.
struct Door {
    site: Site,
    enrolment: Option<Enrolment>,
    deliver: mpsc::Sender<Link>,
}

impl Door {
    async fn attend(self: Arc<Self>, quinn: quinn::Endpoint) {
        let most = self.site.settings.max_handshakes;
        let slots = Arc::new(Semaphore::new(most));
        while let Some(incoming) = quinn.accept().await {
            let Ok(slot) = slots.clone().try_acquire_owned() else {
                incoming.refuse();
                self.failed("too many handshakes are in progress");
                continue;
            };
            let crowded = slots.available_permits() < most / 2;
            if crowded && !incoming.remote_address_validated() {
                // Under load only who can be reached at its address gets further.
                let _ = incoming.retry(); // an unvalidated address may always be asked
                continue;
            }
            let door = self.clone();
            tokio::spawn(async move {
                door.meet(incoming).await;
                drop(slot);
            });
        }
    }

    async fn meet(&self, incoming: Incoming) {
        let address = incoming.remote_address();
        let welcomed = timeout(self.site.settings.handshake_timeout, self.welcome(incoming)).await;
        match welcomed.unwrap_or(Err("the handshake took too long".into())) {
            // Waits, in its slot, while the backlog is full.
            Ok(Some(link)) => drop(self.deliver.send(link).await),
            Ok(None) => {}
            Err(reason) => self.failed(&format!("{address}: {reason}")),
        }
    }

    /// A link to a node with a certificate; none for a node that has enrolled.
    async fn welcome(&self, incoming: Incoming) -> Result<Option<Link>, String> {
        let connection = incoming.await.map_err(|error| error.to_string())?;
        if let Some(enrolment) = &self.enrolment
            && protocol_of(&connection).as_deref() == Some(ENROL_ALPN)
        {
            let admitted = enrol::serve(enrolment, &connection).await?;
            let admitted = admitted.ok_or("an enrolment was refused")?;
            tracing::info!(node = %admitted, "enrolled");
            return Ok(None);
        }
        let identity = identity_of(&connection).inspect_err(|_| {
            connection.close(NOT_ADMITTED, NO_CERTIFICATE.as_bytes());
        })?;
        let (mut sender, receiver) =
            connection.open_bi().await.map_err(|error| error.to_string())?;
        let written = sender.write_all(&control::EMPTY.to_le_bytes()).await;
        written.map_err(|error| error.to_string())?;
        Ok(Some(self.site.link(connection, identity, (sender, receiver))))
    }

    fn failed(&self, reason: &str) {
        self.site.links.failed_handshakes.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(reason, "a handshake failed");
    }
}

fn protocol_of(connection: &Connection) -> Option<Vec<u8>> {
    connection.handshake_data()?.downcast::<HandshakeData>().ok()?.protocol
}

/// Who the peer's certificate says it is; TLS has verified the certificate.
pub(super) fn identity_of(connection: &Connection) -> Result<Identity, String> {
    let chain = connection.peer_identity();
    let chain = chain.and_then(|chain| chain.downcast::<Vec<CertificateDer<'static>>>().ok());
    let chain = chain.ok_or("the peer has no certificate")?;
    let leaf = chain.first().ok_or("the peer has no certificate")?;
    Identity::of(leaf).map_err(|error| error.to_string())
}

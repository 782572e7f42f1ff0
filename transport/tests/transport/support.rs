//! A small world: one authority, endpoints on loopback, and a peer that speaks raw QUIC.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use everstep_transport::identity::{Authority, Credentials, Identity, NODE_LIFETIME, Role};
use everstep_transport::protocol::NodeName;
use everstep_transport::protocol::version::{PROTOCOL_VERSIONS, alpn};
use everstep_transport::quic::{Endpoint, Expected, Link, Settings};
use quinn::crypto::rustls::QuicClientConfig;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::time_provider::TimeProvider;

pub struct World {
    pub authority: Arc<Authority>,
}

pub fn name(name: &str) -> NodeName {
    NodeName::parse(name).expect("a valid name")
}

pub fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

pub fn settings() -> Settings {
    Settings::for_address(loopback().ip())
}

impl World {
    pub fn new() -> Self {
        Self { authority: Arc::new(Authority::create().unwrap()) }
    }

    pub fn credentials(&self, role: Role, node: &str) -> Credentials {
        self.authority.issue(&Identity { role, name: name(node) }, NODE_LIFETIME).unwrap()
    }

    pub fn worker(&self, node: &str) -> Endpoint {
        let credentials = self.credentials(Role::Worker, node);
        Endpoint::bind(loopback(), &credentials, settings(), None).unwrap()
    }

    /// Two workers, and the ends of the link between them: the first one's, then the second one's.
    pub async fn pair(&self) -> Pair {
        let endpoints = (self.worker("worker-1"), self.worker("worker-2"));
        let (here, there) = link(&endpoints.0, &endpoints.1).await;
        Pair { here, there, endpoints }
    }
}

/// Endpoints close their links when they are dropped, so this keeps them.
pub struct Pair {
    pub here: Link,
    pub there: Link,
    pub endpoints: (Endpoint, Endpoint),
}

pub async fn link(from: &Endpoint, to: &Endpoint) -> (Link, Link) {
    let connected = from.connect(to.local_address(), &Expected::Anyone);
    let (here, there) = tokio::join!(connected, to.accept());
    (here.unwrap(), there.unwrap())
}

/// Waits until the endpoint has counted so many failed handshakes. A peer may learn of its failure
/// before the endpoint counts it.
pub async fn counts_failed_handshakes(endpoint: &Endpoint, expected: u64) {
    let counted = async {
        while endpoint.stats().failed_handshakes < expected {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(20), counted).await;
    assert_eq!(endpoint.stats().failed_handshakes, expected);
}

/// The credentials and protocol of a peer that does not use this transport.
pub struct RawPeer {
    pub credentials: Option<Credentials>,
    pub protocol: Vec<u8>,
}

impl RawPeer {
    /// A node of the cluster that will misbehave.
    pub fn member(world: &World) -> Self {
        let credentials = Some(world.credentials(Role::Worker, "rogue"));
        Self { credentials, protocol: alpn(&PROTOCOL_VERSIONS).remove(0) }
    }

    pub async fn connect(self, address: SocketAddr) -> Raw {
        self.connect_from(loopback(), address).await
    }

    pub async fn connect_from(self, own: SocketAddr, address: SocketAddr) -> Raw {
        let endpoint = self.endpoint(own);
        let connection = endpoint.connect(address, "everstep").unwrap().await;
        Raw { connection, _endpoint: endpoint }
    }

    /// A raw endpoint at this address.
    pub fn endpoint(self, own: SocketAddr) -> quinn::Endpoint {
        let mut endpoint = quinn::Endpoint::client(own).unwrap();
        endpoint.set_default_client_config(self.config());
        endpoint
    }

    fn config(self) -> quinn::ClientConfig {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Credulous));
        let mut config = match self.credentials {
            Some(own) => builder.with_client_auth_cert(own.chain(), own.key().into()).unwrap(),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![self.protocol];
        quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(config).unwrap()))
    }
}

/// A raw connection, with the endpoint that keeps it alive.
pub struct Raw {
    pub connection: Result<quinn::Connection, quinn::ConnectionError>,
    _endpoint: quinn::Endpoint,
}

/// Accepts any server: other tests check how the transport's own client judges certificates.
#[derive(Debug)]
struct Credulous;

impl ServerCertVerifier for Credulous {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        provider.signature_verification_algorithms.supported_schemes()
    }
}

/// A clock that a test puts forward, so that a certificate's life passes in no time.
#[derive(Debug)]
pub struct Clock(AtomicU64);

impl Clock {
    /// A clock that begins at the machine's time.
    pub fn new() -> Arc<Self> {
        Arc::new(Self(UnixTime::now().as_secs().into()))
    }

    pub fn forward(&self, hours: u64) {
        self.0.fetch_add(hours * 3600, Ordering::Relaxed);
    }
}

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = Duration::from_secs(self.0.load(Ordering::Relaxed));
        Some(UnixTime::since_unix_epoch(seconds))
    }
}

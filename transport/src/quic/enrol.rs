//! Carries an enrolment: one request, one answer, on a connection of its own.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use quinn::{ClientConfig, Connection, SendStream, TokioRuntime, WriteError};
use tokio::time::timeout;

use super::endpoint::{SERVER_NAME, identity_of};
use super::endpoint_state::EndpointState;
use super::error::{CLOSED, ConnectError, HandshakeError, LinkError, NOT_ADMITTED};
use super::settings::Settings;
use super::{ENROL_PROTOCOL, socket, tls};
use crate::identity::{
    Application, Credentials, Enrolment, EnrolmentError, Granted, Identity, JoinToken,
    MAX_ENROLMENT, NodeKey, Refusal, Role, answer,
};

/// Binds the proof to one TLS session (RFC 8446, section 7.5).
const EXPORTER_LABEL: &[u8] = b"EXPORTER-everstep-enrol";

/// Exchanges a join token for the credentials of a node of this role, at the coordinator that
/// listens on `address`. The token must be of the same role. This function makes the node's key.
/// The name follows from the key, and the credentials' identity states it. Each try is another
/// node: if the coordinators count the token's uses, a try with a lost answer has cost a use. See
/// [`enrol_as`].
///
/// # Errors
/// [`EnrolError`], in words for the user.
pub async fn enrol(
    address: SocketAddr,
    token: &JoinToken,
    role: Role,
) -> Result<Credentials, EnrolError> {
    let key = NodeKey::create().map_err(EnrolmentError::from)?;
    enrol_as(address, token, role, &key).await
}

/// As [`enrol`], with a key that outlives the try. All tries with it, at any coordinators, are one
/// node, and spend one use of the token.
///
/// # Errors
/// As [`enrol`].
pub async fn enrol_as(
    address: SocketAddr,
    token: &JoinToken,
    role: Role,
    key: &NodeKey,
) -> Result<Credentials, EnrolError> {
    apply(address, token, Application::new(token, role, key)?).await
}

/// Enrols a node again after its certificate has expired without a link for a renewal. The key, and
/// so the name, stay the same, and no use of the token is spent.
///
/// # Errors
/// As [`enrol`].
pub async fn renew(
    address: SocketAddr,
    token: &JoinToken,
    held: &Credentials,
) -> Result<Credentials, EnrolError> {
    apply(address, token, Application::again(token, held)?).await
}

async fn apply(
    address: SocketAddr,
    token: &JoinToken,
    application: Application<'_>,
) -> Result<Credentials, EnrolError> {
    let settings = Settings::for_address(address.ip());
    let endpoint = client(address, token, &settings)?;
    let attempt = async {
        let connecting = endpoint.connect(address, SERVER_NAME);
        let connecting = connecting.map_err(|error| failed(address, error))?;
        let handshake = |error| ConnectError::handshake(address, ENROL_PROTOCOL, error);
        let connection = connecting.await.map_err(handshake)?;
        let met = identity_of(&connection).map_err(|error| failed(address, error))?;
        if met.role != Role::Coordinator {
            let expected = "a coordinator".into();
            return Err(ConnectError::Stranger { address, expected, met }.into());
        }
        let request = application.request(&session(&connection))?;
        let answer = ask(&connection, &request).await.map_err(|error| failed(address, error));
        // A closed connection has stated its reason.
        let answer = answer.map_err(|error| connection.close_reason().map_or(error, handshake))?;
        connection.close(CLOSED, b"enrolled or refused");
        Ok(application.credentials(&answer)?)
    };
    let enrolled = timeout(settings.handshake_timeout, attempt).await;
    let enrolled = enrolled.unwrap_or(Err(ConnectError::NoAnswer { address }.into()));
    endpoint.close(CLOSED, b"");
    let _ = timeout(Duration::from_millis(100), endpoint.wait_idle()).await; // a courtesy
    enrolled
}

/// Answers the request on a connection without a certificate. Returns the node that it admitted.
pub(super) async fn serve(
    shared: &EndpointState,
    enrolment: &Enrolment,
    connection: &Connection,
) -> Result<Result<Identity, Refusal>, HandshakeError> {
    let exchange = async {
        let (mut send, mut receive) = connection.accept_bi().await?;
        let request = receive.read_to_end(MAX_ENROLMENT).await?;
        let session = session(connection);
        let decision = enrolment.admit(&session, &request, shared.now());
        let decided = decide(shared, decision, &mut send).await?;
        connection.closed().await; // only the joiner knows that it has the answer
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(decided)
    };
    exchange.await.map_err(|error| {
        connection.close(NOT_ADMITTED, b"no enrolment request was understood");
        HandshakeError::Enrolment(error)
    })
}

/// Waits for a decision, sends it to the peer, and returns the node that it is about. The peer
/// waits as long as for a handshake. The decision may take half of that, so that the peer hears if
/// there is none.
pub(super) async fn decide(
    shared: &EndpointState,
    decision: impl Future<Output = Result<Granted, Refusal>>,
    peer: &mut SendStream,
) -> Result<Result<Identity, Refusal>, WriteError> {
    let decision = timeout(shared.settings.handshake_timeout / 2, decision).await;
    let decision = decision.unwrap_or(Err(Refusal::Undecided));
    peer.write_all(&answer(&decision)).await?;
    let _ = peer.finish(); // an error means that the peer has gone
    Ok(decision.map(|granted| granted.identity))
}

async fn ask(
    connection: &Connection,
    request: &[u8],
) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
    let (mut send, mut receive) = connection.open_bi().await?;
    send.write_all(request).await?;
    send.finish()?;
    Ok(receive.read_to_end(MAX_ENROLMENT).await?)
}

fn client(
    address: SocketAddr,
    token: &JoinToken,
    settings: &Settings,
) -> Result<quinn::Endpoint, ConnectError> {
    let unspecified: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let failed = |error: std::io::Error| failed(address, error);
    let (socket, _) = socket::open(unspecified, settings.socket_buffer).map_err(failed)?;
    let runtime = Arc::new(TokioRuntime);
    let mut endpoint =
        quinn::Endpoint::new(settings.endpoint(None), None, socket, runtime).map_err(failed)?;
    let tls = tls::enrolling(token.authority()).map_err(|error| self::failed(address, error))?;
    let mut config = ClientConfig::new(Arc::new(tls));
    config.transport_config(settings.transport(settings.peers));
    endpoint.set_default_client_config(config);
    Ok(endpoint)
}

fn session(connection: &Connection) -> [u8; 32] {
    let mut material = [0; 32];
    connection
        .export_keying_material(&mut material, EXPORTER_LABEL, &[])
        .expect("32 bytes are within what TLS can export");
    material
}

fn failed(address: SocketAddr, error: impl ToString) -> ConnectError {
    ConnectError::Failed { address, reason: error.to_string() }
}

/// Why a node gets no new credentials.
#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    /// The coordinator could not be reached, or is not of the token's cluster.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The link that carried the request has ended.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The coordinator refused, or its answer is of no use.
    #[error(transparent)]
    Enrolment(#[from] EnrolmentError),
}

impl EnrolError {
    /// Whether another try, or another coordinator, may succeed.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::Connect(ConnectError::NoAnswer { .. } | ConnectError::Busy { .. })
                | Self::Enrolment(EnrolmentError::Refused(Refusal::Undecided))
        )
    }
}

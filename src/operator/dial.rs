//! The link to one coordinator. It is made again after each loss.
//!
//! In: an address. Out: the start of each link, the messages on it, and the reason when there is
//! none.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use everstep_transport::identity::Role;
use everstep_transport::protocol::Message;
use everstep_transport::quic::{Endpoint, Expected, Link};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// The pause between two dials, at first and at most.
const DIAL_BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));
/// How long a dial may take, at first and at most. QUIC asks a silent port ever less often.
const DIAL_TIMEOUT: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(3));

/// An event of a link or a dial.
pub(super) struct LinkEvent {
    /// The dialled address.
    pub(super) address: SocketAddr,
    /// The event.
    pub(super) what: LinkChange,
}

#[allow(clippy::large_enum_variant)] // taken one at a time
pub(super) enum LinkChange {
    /// There is a link.
    Up(Link),
    /// A message of the coordinator.
    Received(Message),
    /// There is no link, for this reason.
    Lost(String),
}

/// Dials again and again until the receiver of the events is dropped.
pub(super) async fn run(
    endpoint: Arc<Endpoint>,
    address: SocketAddr,
    events: mpsc::Sender<LinkEvent>,
) {
    let (mut pause, mut limit) = (DIAL_BACKOFF.0, DIAL_TIMEOUT.0);
    loop {
        let expected = Expected::Role(Role::Coordinator);
        let dialed = timeout(limit, endpoint.connect(address, &expected)).await;
        let why = match dialed {
            Ok(Ok(link)) => {
                (pause, limit) = (DIAL_BACKOFF.0, DIAL_TIMEOUT.0);
                listen(link, address, &events).await
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "nobody answers there".into(),
        };
        if events.send(LinkEvent { address, what: LinkChange::Lost(why) }).await.is_err() {
            return;
        }
        sleep(pause).await;
        (pause, limit) = ((pause * 2).min(DIAL_BACKOFF.1), (limit * 2).min(DIAL_TIMEOUT.1));
    }
}

/// Reports the messages of a link until it ends. Returns the reason of the end.
async fn listen(link: Link, address: SocketAddr, events: &mpsc::Sender<LinkEvent>) -> String {
    let mut what = LinkChange::Up(link.clone());
    loop {
        if events.send(LinkEvent { address, what }).await.is_err() {
            return "nobody listens".into();
        }
        match link.receive().await {
            Ok(message) => what = LinkChange::Received(message),
            Err(error) => return error.to_string(),
        }
    }
}

//! The link to one coordinator. It is made again after each loss.
//!
//! In: an address. Out: the start of each link, the messages on it, and the reason when there is
//! none.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use everstep_transport::identity::Role;
use everstep_transport::protocol::Message;
use everstep_transport::quic::{ConnectError, DialBackoff, DialSettings, Endpoint, Expected, Link};
use tokio::sync::mpsc;

/// The pace of dials. An operator waits for the answer.
const OPERATOR_DIALS: DialSettings =
    DialSettings { longest_pause: Duration::from_millis(500), ..DialSettings::DEFAULT };

/// An event of a link or a dial.
pub(super) struct LinkEvent {
    pub(super) address: SocketAddr,
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
    let mut backoff = DialBackoff::new(OPERATOR_DIALS);
    loop {
        let expected = Expected::Role(Role::Coordinator);
        let why = match backoff.dial(&endpoint, address, &expected).await {
            Ok(link) => {
                backoff.reset();
                listen(link, address, &events).await
            }
            Err(ConnectError::NoAnswer { .. }) => "no coordinator answers there".into(),
            Err(error) => error.to_string(),
        };
        if events.send(LinkEvent { address, what: LinkChange::Lost(why) }).await.is_err() {
            return;
        }
        backoff.pause().await;
    }
}

/// Reports the messages of a link until it ends. Returns the reason of the end.
async fn listen(link: Link, address: SocketAddr, events: &mpsc::Sender<LinkEvent>) -> String {
    let mut what = LinkChange::Up(link.clone());
    loop {
        if events.send(LinkEvent { address, what }).await.is_err() {
            return "the operator reads no more events".into();
        }
        match link.receive().await {
            Ok(message) => what = LinkChange::Received(message),
            Err(error) => return error.to_string(),
        }
    }
}

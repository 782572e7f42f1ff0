//! The link to one coordinator, made again whenever it is lost.
//!
//! In: an address. Out: when there is a link, what is said on it, and why there is none.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use everstep_transport::identity::Role;
use everstep_transport::protocol::Message;
use everstep_transport::quic::{Endpoint, Expected, Link};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// Between two calls, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));
/// How long a call may take, at first and at most: QUIC asks a silent port ever less often.
const CALLS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(3));

/// What has come of a call.
pub(super) struct Heard {
    /// Who was called.
    pub(super) address: SocketAddr,
    /// What.
    pub(super) what: What,
}

#[allow(clippy::large_enum_variant)] // taken one at a time
pub(super) enum What {
    /// There is a link.
    Up(Link),
    /// The coordinator says something.
    Said(Message),
    /// There is no link, and why.
    Lost(String),
}

/// Calls until nobody listens any more.
pub(super) async fn keep(endpoint: Arc<Endpoint>, address: SocketAddr, tell: mpsc::Sender<Heard>) {
    let (mut pause, mut limit) = (PAUSES.0, CALLS.0);
    loop {
        let expected = Expected::Role(Role::Coordinator);
        let called = timeout(limit, endpoint.connect(address, &expected)).await;
        let why = match called {
            Ok(Ok(link)) => {
                (pause, limit) = (PAUSES.0, CALLS.0);
                listen(link, address, &tell).await
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "nobody answers there".into(),
        };
        if tell.send(Heard { address, what: What::Lost(why) }).await.is_err() {
            return;
        }
        sleep(pause).await;
        (pause, limit) = ((pause * 2).min(PAUSES.1), (limit * 2).min(CALLS.1));
    }
}

/// Tells what is said until the link ends; returns why it has.
async fn listen(link: Link, address: SocketAddr, tell: &mpsc::Sender<Heard>) -> String {
    let mut what = What::Up(link.clone());
    loop {
        if tell.send(Heard { address, what }).await.is_err() {
            return "nobody listens".into();
        }
        match link.receive().await {
            Ok(message) => what = What::Said(message),
            Err(error) => return error.to_string(),
        }
    }
}

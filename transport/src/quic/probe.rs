//! Notices that a peer's process is dead, which QUIC cannot: asks the peer's kernel.
//!
//! A killed process takes no leave, and silence alone does not tell the dead from the slow. But the
//! kernel of a dead process's machine answers what comes to its port: with ICMP, which Linux
//! reports to *connected* UDP sockets only. So each watched link has one of these, which sends the
//! peer's port a byte now and then. A living endpoint drops it unanswered: it is no QUIC packet. A
//! stopped process's socket takes it, too, so who is paused is not dead.
//!
//! In: a link's connection. Out: the link's end, when nobody listens at the peer's port. Where a
//! firewall keeps ICMP back, the idle time-out has to do.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::sleep;

use super::wire::Wire;

/// No QUIC packet has this length, whatever is in it.
const PROBE: [u8; 1] = [0];
/// Refusals in a row until the peer is taken for dead: a single one may be a stray.
const REFUSALS: u32 = 2;
/// A process that watches many links asks each less often, so that it sends at most 2,000 a second.
const SPACING: Duration = Duration::from_micros(500);

/// Asks every `interval` until the link ends, and ends it when nobody listens any more.
pub(super) async fn watch(wire: Wire, interval: Duration) {
    let peer = wire.connection.remote_address();
    let socket = match connected(peer) {
        Ok(socket) => socket,
        Err(error) => return tracing::warn!(%peer, %error, "its death will be noticed late"),
    };
    let watched = Watched::new(&wire);
    tokio::select! {
        _ = wire.connection.closed() => {}
        () = refused(&socket, interval, &watched) => wire.gone("nobody listens at its port"),
    }
}

/// Returns when the peer's kernel has refused enough probes in a row.
async fn refused(socket: &UdpSocket, interval: Duration, watched: &Watched<'_>) {
    let mut refusals = 0;
    while refusals < REFUSALS {
        let sent = socket.send(&PROBE);
        sleep(interval.max(SPACING * watched.count())).await;
        // What comes back is the socket's next error, whoever asks first.
        let refusal = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        let answer = socket.take_error().ok().flatten();
        let is_refused =
            sent.is_err_and(|error| refusal(&error)) || answer.is_some_and(|e| refusal(&e));
        refusals = if is_refused { refusals + 1 } else { 0 };
    }
}

fn connected(peer: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = match peer {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(peer)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Counts a link among those that are watched, while it is.
struct Watched<'a>(&'a Wire);

impl<'a> Watched<'a> {
    fn new(wire: &'a Wire) -> Self {
        wire.links.watched.fetch_add(1, Ordering::Relaxed);
        Self(wire)
    }

    /// How many links of the endpoint are watched.
    fn count(&self) -> u32 {
        self.0.links.watched.load(Ordering::Relaxed)
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.0.links.watched.fetch_sub(1, Ordering::Relaxed);
    }
}

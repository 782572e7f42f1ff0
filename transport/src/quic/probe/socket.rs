//! The port from which an endpoint probes all its peers, and the answers of their hosts.
//!
//! Linux reports ICMP errors to a connected socket, or to any socket that asks for its error queue
//! (`IP_RECVERR`, ip(7)): each entry says to which address the refused datagram was sent. So one
//! unconnected socket serves all links. Other systems have no such queue, and no probes.
//!
//! Input: probes to send. Output: a notice to each watcher of an address that has refused one. The
//! port reads and drops what strangers send to it. Otherwise that would fill the buffer that the
//! refusals need.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use quinn::Connection;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, yield_now};

use super::distrusted::DistrustedPeers;
use super::queue;
use super::signs::{Signs, Tag};
use crate::quic::socket;

/// Buffer to request from the kernel for what waits to be read: some hundred refusals.
const BUFFER: usize = 256 << 10;
/// How many entries and datagrams a read takes before other tasks have their turn.
const BATCH: usize = 64;
/// A socket reports errors of earlier probes, to any peer, instead of sending. So a probe is tried
/// this often.
const TRIES: usize = 4;

/// What the port waits for: errors and datagrams.
const ARRIVALS: Interest = Interest::ERROR.add(Interest::READABLE);

/// An endpoint's port for probes. Its drop closes the port.
pub(in crate::quic) struct Probes {
    probe_socket: Arc<ProbeSocket>,
    signs: Arc<Signs>,
    distrusted: Arc<DistrustedPeers>,
    listener: AbortHandle,
}

struct ProbeSocket {
    /// No task waits until it can be written: each datagram that leaves would wake the process.
    socket: AsyncFd<UdpSocket>,
    watchers: Mutex<HashMap<Peer, Vec<Arc<Notify>>>>,
}

/// A peer's address and port. IPv4 addresses are not mapped here.
type Peer = (IpAddr, u16);

/// One link's share of the port. Its drop ends the notices.
pub(in crate::quic) struct Watcher {
    probe_socket: Arc<ProbeSocket>,
    signs: Arc<Signs>,
    distrusted: Arc<DistrustedPeers>,
    peer: SocketAddr,
    /// The tag that both ends of this link send.
    tag: Tag,
    refused: Arc<Notify>,
    /// Probes that have arrived from the peer.
    arrived: Arc<AtomicU64>,
}

impl Probes {
    /// Opens the port for an endpoint that listens on `own` and counts `signs`. `None`: the system
    /// reports no refusals.
    pub(in crate::quic) fn open(own: IpAddr, signs: Arc<Signs>) -> io::Result<Option<Self>> {
        let (socket, _) = socket::open((own, 0).into(), BUFFER)?;
        if !queue::enable(&socket, own)? {
            return Ok(None);
        }
        let socket = socket::watch(socket, ARRIVALS)?;
        let probe_socket = Arc::new(ProbeSocket { socket, watchers: Mutex::default() });
        let listener = tokio::spawn(listen(probe_socket.clone())).abort_handle();
        Ok(Some(Self { probe_socket, signs, distrusted: Arc::default(), listener }))
    }

    /// Watches the peer of a link.
    pub(in crate::quic) fn watch(&self, link: &Connection) -> Watcher {
        self.watch_at(link.remote_address(), Tag::of(link))
    }

    fn watch_at(&self, peer: SocketAddr, tag: Tag) -> Watcher {
        let (refused, arrived) = (Arc::new(Notify::new()), self.signs.expect(tag));
        let mut watchers = self.probe_socket.watchers.lock().expect(NO_PANIC);
        watchers.entry(key(peer)).or_default().push(refused.clone());
        let (probe_socket, signs) = (self.probe_socket.clone(), self.signs.clone());
        let distrusted = self.distrusted.clone();
        Watcher { probe_socket, signs, distrusted, peer, tag, refused, arrived }
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

impl Watcher {
    /// Sends the peer a probe, if the socket's buffer has room.
    pub(super) fn probe(&self) {
        for _ in 0..TRIES {
            match self.probe_socket.socket.get_ref().send_to(self.tag.bytes(), self.peer) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {}
                _ => return,
            }
        }
    }

    /// Whether refusals of the peer are known to be wrong.
    pub(super) fn is_distrusted(&self) -> bool {
        self.distrusted.contain(self.peer, Instant::now())
    }

    /// A refusal of the peer was wrong.
    pub(super) fn distrust(&self) {
        self.distrusted.notice(self.peer, Instant::now());
    }

    /// How many probes have arrived from the peer.
    pub(super) fn signs(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }

    /// Returns when the peer's host has refused a probe since the last call. Cancel-safe.
    pub(super) async fn refused(&self) {
        self.refused.notified().await;
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.signs.forget(self.tag);
        let mut watchers = self.probe_socket.watchers.lock().expect(NO_PANIC);
        if let Some(others) = watchers.get_mut(&key(self.peer)) {
            others.retain(|other| !Arc::ptr_eq(other, &self.refused));
            if others.is_empty() {
                watchers.remove(&key(self.peer));
            }
        }
    }
}

const NO_PANIC: &str = "the table of watchers is changed without a panic";

fn key(peer: SocketAddr) -> Peer {
    (peer.ip().to_canonical(), peer.port())
}

/// Tells the watchers about refusals, until the runtime ends.
async fn listen(probe_socket: Arc<ProbeSocket>) {
    while let Ok(mut arrivals) = probe_socket.socket.ready(ARRIVALS).await {
        let socket = probe_socket.socket.get_ref();
        let refusals = read(|| {
            let refusal = queue::next_refusal(socket)?;
            refusal.into_iter().for_each(|peer| probe_socket.refused(peer));
            Ok(())
        });
        let datagrams = read(|| socket.recv_from(&mut [0]).map(drop));
        if refusals && datagrams {
            arrivals.clear_ready();
        }
        yield_now().await;
    }
}

/// Reads one thing after the other, at most a batch. Returns whether nothing is left.
fn read(mut next: impl FnMut() -> io::Result<()>) -> bool {
    let ended = (0..BATCH).find_map(|_| next().err());
    ended.is_some_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

impl ProbeSocket {
    fn refused(&self, peer: SocketAddr) {
        let watchers = self.watchers.lock().expect(NO_PANIC);
        let told = watchers.get(&key(peer)).into_iter().flatten();
        told.for_each(|watcher| watcher.notify_one());
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::time::Duration;

    use tokio::time::{sleep, timeout};

    use super::*;

    fn open(own: IpAddr) -> Probes {
        Probes::open(own, Arc::default()).expect("a port").expect("Linux reports refusals")
    }

    fn tag() -> Tag {
        Tag::new([7; 12])
    }

    /// Probes until the watcher hears of a refusal, at most for this long.
    async fn is_refused(watcher: &Watcher, longest: Duration) -> bool {
        let probing = async {
            loop {
                watcher.probe();
                sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            told = timeout(longest, watcher.refused()) => told.is_ok(),
            () = probing => unreachable!("probing does not end"),
        }
    }

    #[tokio::test]
    async fn each_watcher_is_told_of_its_own_peer_only() {
        for own in ["127.0.0.1", "::1"] {
            let own: IpAddr = own.parse().expect("an address");
            let Ok(living) = std::net::UdpSocket::bind((own, 0)) else { continue };
            let dead = std::net::UdpSocket::bind((own, 0)).expect("bound");
            let [living_address, dead_address] =
                [&living, &dead].map(|socket| socket.local_addr().expect("bound"));
            drop(dead);
            let probes = open(own);
            let watchers = [dead_address, dead_address, living_address];
            let watchers = watchers.map(|peer| probes.watch_at(peer, tag()));
            assert!(is_refused(&watchers[0], Duration::from_secs(20)).await);
            assert!(is_refused(&watchers[1], Duration::from_secs(20)).await, "of the same peer");
            assert!(!is_refused(&watchers[2], Duration::from_millis(200)).await);
            assert!(living.recv(&mut [0; 64]).is_ok_and(|bytes| bytes == tag().bytes().len()));
            drop(watchers);
            assert!(probes.probe_socket.watchers.lock().expect(NO_PANIC).is_empty());
        }
    }

    #[tokio::test]
    async fn a_later_link_with_a_peer_knows_that_its_refusals_were_wrong() {
        let probes = open([127, 0, 0, 1].into());
        let [peer, neighbour] = [7_071, 7_072].map(|port| ([127, 0, 0, 1], port).into());
        let first = probes.watch_at(peer, tag());
        assert!(!first.is_distrusted());
        first.distrust();
        drop(first);
        assert!(probes.watch_at(peer, tag()).is_distrusted());
        assert!(!probes.watch_at(neighbour, tag()).is_distrusted());
    }

    /// A buffer full of strangers' datagrams would take no refusals.
    #[tokio::test]
    async fn what_strangers_send_to_the_port_keeps_no_refusal_out() {
        let own: IpAddr = [127, 0, 0, 1].into();
        let dead = std::net::UdpSocket::bind((own, 0)).and_then(|socket| socket.local_addr());
        let dead = dead.expect("bound, and closed again");
        let probes = open(own);
        let probe_socket = probes.probe_socket.socket.get_ref().local_addr().expect("bound");
        let stranger = std::net::UdpSocket::bind((own, 0)).expect("bound");
        (0..2000).for_each(|_| drop(stranger.send_to(&[7; 1200], probe_socket)));
        assert!(is_refused(&probes.watch_at(dead, tag()), Duration::from_secs(20)).await);
    }
}

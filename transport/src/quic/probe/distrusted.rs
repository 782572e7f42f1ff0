//! Peers whose refusals are known to be wrong: their hosts refused probes while they lived.
//!
//! One link finds that out, in a few hundred milliseconds. Later links with the same address and
//! port know it from their beginning, so a pause of the peer does not end them. Another process of
//! the same host is judged by itself: its death is noticed as soon as any other.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Instant;

use super::check::REFUSALS_FORGOTTEN_AFTER;

/// The most peers that an endpoint remembers. The links of further ones find out by themselves.
const MAX_DISTRUSTED: usize = 1024;

/// The peers, each with the time of the newest notice. Old notices are forgotten.
#[derive(Debug, Default)]
pub(super) struct DistrustedPeers(Mutex<HashMap<SocketAddr, Instant>>);

impl DistrustedPeers {
    /// A link has found at `now` that a refusal of its peer was wrong.
    pub(super) fn notice(&self, peer: SocketAddr, now: Instant) {
        let mut peers = self.0.lock().expect(NO_PANIC);
        let key = canonical(peer);
        peers.retain(|_, noticed| is_fresh(*noticed, now));
        if peers.len() < MAX_DISTRUSTED || peers.contains_key(&key) {
            peers.insert(key, now);
        }
    }

    /// Whether refusals of a peer are known to be wrong.
    pub(super) fn contain(&self, peer: SocketAddr, now: Instant) -> bool {
        let peers = self.0.lock().expect(NO_PANIC);
        peers.get(&canonical(peer)).is_some_and(|noticed| is_fresh(*noticed, now))
    }
}

const NO_PANIC: &str = "the table of peers is changed without a panic";

/// The one form of an address. IPv4 addresses are not mapped.
fn canonical(peer: SocketAddr) -> SocketAddr {
    SocketAddr::new(peer.ip().to_canonical(), peer.port())
}

fn is_fresh(noticed: Instant, now: Instant) -> bool {
    now.saturating_duration_since(noticed) < REFUSALS_FORGOTTEN_AFTER
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_peer_is_distrusted_for_ten_minutes_by_either_form_of_its_address() {
        let peers = DistrustedPeers::default();
        let address = Ipv4Addr::new(10, 0, 0, 1);
        let [one, neighbour] = [7_071, 7_072].map(|port| SocketAddr::from((address, port)));
        let now = Instant::now();
        peers.notice((address.to_ipv6_mapped(), 7_071).into(), now);
        let soon = now + REFUSALS_FORGOTTEN_AFTER - Duration::from_secs(1);
        assert!(peers.contain(one, soon));
        assert!(!peers.contain(neighbour, soon), "another process is judged by itself");
        assert!(!peers.contain(one, now + REFUSALS_FORGOTTEN_AFTER));
        peers.notice(neighbour, now + REFUSALS_FORGOTTEN_AFTER);
        assert_eq!(peers.0.lock().expect(NO_PANIC).len(), 1, "old notices are dropped");
    }

    #[test]
    fn a_limited_number_of_peers_is_remembered() {
        let peers = DistrustedPeers::default();
        let now = Instant::now();
        let peer = |port: usize| SocketAddr::from((Ipv4Addr::LOCALHOST, port as u16));
        (1..=2 * MAX_DISTRUSTED).for_each(|port| peers.notice(peer(port), now));
        assert_eq!(peers.0.lock().expect(NO_PANIC).len(), MAX_DISTRUSTED);
        let later = now + Duration::from_secs(1);
        peers.notice(peer(1), later);
        assert!(peers.contain(peer(1), now + REFUSALS_FORGOTTEN_AFTER), "a known one is renewed");
    }
}

//! The table of an endpoint's links, and what all of them have counted together.
//!
//! In: each link's connection and peer, when the link comes up. Out: [`EndpointStats`], and the end
//! of links whose peers are not wanted any more. The table holds connections and not links, and
//! only until they have ended: it does not keep a link alive.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use dashmap::DashMap;
use quinn::Connection;

use super::error::LinkError;
use super::link::LinkStats;
use super::wire;
use crate::identity::Identity;

/// What an endpoint and all its links, also those that have ended, have counted since it was bound.
/// Handshakes and enrolments are not among the packets and bytes, except those of links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointStats {
    /// Handshakes from outside that failed, enrolments that were refused among them.
    pub failed_handshakes: u64,
    /// Peers cut off because they sent what no honest node sends.
    pub refused_peers: u64,
    /// Links that live now.
    pub links: u64,
    /// The smallest UDP payload that the path of a living link carries, bytes; 0 without links.
    pub path_mtu: u16,
    /// The largest smoothed round trip of a living link; 0 without links.
    pub rtt: Duration,
    /// Packets sent and lost.
    pub lost_packets: u64,
    /// Packets sent.
    pub sent_packets: u64,
    /// Bytes sent, packet headers included.
    pub sent_bytes: u64,
    /// Bytes received, packet headers included.
    pub received_bytes: u64,
    /// How often a path seemed to swallow large packets, and its MTU fell back.
    pub black_holes: u64,
}

/// A link that lives.
struct Live {
    connection: Connection,
    peer: Identity,
    /// Why this side ended it, once it has.
    ended: Arc<OnceLock<LinkError>>,
}

/// The table; shared by the endpoint, its door and its links.
#[derive(Default)]
pub(super) struct Links {
    pub(super) failed_handshakes: AtomicU64,
    pub(super) refused_peers: AtomicU64,
    /// Links whose peers are asked whether they still live.
    pub(super) watched: AtomicU32,
    /// Peers are asked less often.
    pub(super) rests: AtomicBool,
    /// By the connection's stable id, which is its own while the table holds it.
    live: DashMap<usize, Live>,
    /// The sums of links that have left the table. Locked while a link moves from there to here, so
    /// that none is counted twice or not at all.
    ended: Mutex<EndpointStats>,
}

impl Links {
    /// Enters a link; takes it out when it has ended, and keeps what it has counted.
    pub(super) fn enter(
        self: &Arc<Self>,
        connection: &Connection,
        peer: &Identity,
        ended: &Arc<OnceLock<LinkError>>,
    ) {
        let connection = connection.clone();
        let (peer, ended) = (peer.clone(), ended.clone());
        let live = Live { connection: connection.clone(), peer, ended };
        self.live.insert(connection.stable_id(), live);
        let links = self.clone();
        tokio::spawn(async move {
            connection.closed().await;
            let mut ended = links.ended.lock().expect(NO_PANIC);
            ended.add(&LinkStats::of(&connection));
            links.live.remove(&connection.stable_id());
        });
    }

    /// Closes the links of all peers that are not admitted.
    pub(super) fn expel(&self, admits: impl Fn(&Identity) -> bool) {
        for link in self.live.iter().filter(|link| !admits(&link.peer)) {
            tracing::info!(peer = %link.peer, "link closed: the peer is not in the roster");
            wire::expel(&link.connection, &link.ended);
        }
    }

    pub(super) fn stats(&self) -> EndpointStats {
        let ended = self.ended.lock().expect(NO_PANIC);
        let mut stats = EndpointStats {
            failed_handshakes: self.failed_handshakes.load(Ordering::Relaxed),
            refused_peers: self.refused_peers.load(Ordering::Relaxed),
            ..*ended
        };
        for link in &self.live {
            let counted = LinkStats::of(&link.connection);
            stats.add(&counted);
            // One that has just ended may not have been taken out yet.
            if link.connection.close_reason().is_none() {
                let smallest = if stats.links == 0 { u16::MAX } else { stats.path_mtu };
                stats.path_mtu = smallest.min(counted.path_mtu);
                stats.rtt = stats.rtt.max(counted.rtt);
                stats.links += 1;
            }
        }
        stats
    }
}

const NO_PANIC: &str = "adding numbers up does not panic";

impl EndpointStats {
    fn add(&mut self, link: &LinkStats) {
        self.lost_packets += link.lost_packets;
        self.sent_packets += link.sent_packets;
        self.sent_bytes += link.sent_bytes;
        self.received_bytes += link.received_bytes;
        self.black_holes += link.black_holes;
    }
}

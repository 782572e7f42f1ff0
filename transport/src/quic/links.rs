//! The table of an endpoint's links, and what all of them have counted together.
//!
//! Input: each link's connection and peer, when the link comes up. Output: [`EndpointStats`], and
//! the end of links to peers that are not wanted any more. The table holds connections, not links,
//! so it does not keep a link alive. When a connection has ended, the table drops it, and adds its
//! counters to those of the links before.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use dashmap::DashMap;
use quinn::Connection;

use super::error::LinkError;
use super::wire;
use crate::identity::Identity;

/// What an endpoint and all its links, also those that have ended, have counted since it was bound.
/// Packets of handshakes and enrolments that led to no link do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointStats {
    /// Handshakes from outside that failed, including refused enrolments.
    pub failed_handshakes: u64,
    /// Peers that were cut off because they sent bytes that no honest node sends.
    pub refused_peers: u64,
    /// Links that are alive now.
    pub links: u64,
    /// The smallest UDP payload that the path of a living link carries, bytes. 0 without links.
    pub path_mtu: u16,
    /// All packets that were sent.
    pub sent_packets: u64,
    /// Packets that were sent and lost.
    pub lost_packets: u64,
}

/// A link that has not ended.
struct LiveLink {
    connection: Connection,
    peer: Identity,
    /// Why this side ended the link, if it has.
    ended: Arc<OnceLock<LinkError>>,
}

/// The table of links. The endpoint, its listener and its links share it.
#[derive(Default)]
pub(super) struct Links {
    pub(super) failed_handshakes: AtomicU64,
    pub(super) refused_peers: AtomicU64,
    /// Number of links on which the endpoint probes the peer.
    pub(super) watched: AtomicU32,
    /// The endpoint rests: it probes peers less often.
    pub(super) rests: AtomicBool,
    /// By the connection's stable id, which no other connection has while the table holds this one.
    live: DashMap<usize, LiveLink>,
    /// The sums of links that have left the table. Locked while a link moves from there to here, so
    /// that a reader counts each link exactly once.
    ended: Mutex<EndpointStats>,
}

impl Links {
    /// Adds a link to the table. When the link has ended, takes it out and keeps its counters.
    pub(super) fn insert(
        self: &Arc<Self>,
        connection: &Connection,
        peer: &Identity,
        ended: &Arc<OnceLock<LinkError>>,
    ) {
        let connection = connection.clone();
        let (peer, ended) = (peer.clone(), ended.clone());
        let live = LiveLink { connection: connection.clone(), peer, ended };
        self.live.insert(connection.stable_id(), live);
        let links = self.clone();
        tokio::spawn(async move {
            connection.closed().await;
            let mut ended = links.ended.lock().expect(NO_PANIC);
            ended.add(&connection);
            links.live.remove(&connection.stable_id());
        });
    }

    /// Closes the links of all peers that `admits` rejects.
    pub(super) fn expel(&self, admits: impl Fn(&Identity) -> bool) {
        for link in self.live.iter().filter(|link| !admits(&link.peer)) {
            tracing::info!(peer = %link.peer, "link closed: the peer is not in the allow list");
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
            stats.add(&link.connection);
            // The table may still hold a link that has just ended.
            if link.connection.close_reason().is_none() {
                let smallest = if stats.links == 0 { u16::MAX } else { stats.path_mtu };
                stats.path_mtu = smallest.min(link.connection.stats().path.current_mtu);
                stats.links += 1;
            }
        }
        stats
    }
}

const NO_PANIC: &str = "adding numbers up does not panic";

impl EndpointStats {
    fn add(&mut self, link: &Connection) {
        let path = link.stats().path;
        self.sent_packets += path.sent_packets;
        self.lost_packets += path.lost_packets;
    }
}

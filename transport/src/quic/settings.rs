//! The tuning of an endpoint and its links.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use quinn::congestion::CubicConfig;
use quinn::{EndpointConfig, MtuDiscoveryConfig, TransportConfig, VarInt};
use quinn_proto::HashedConnectionIdGenerator;

use crate::protocol::version::PROTOCOL_VERSIONS;

/// The largest UDP payload an endpoint may send or take, bytes. Four of them make a batch that the
/// kernel takes, and quinn writes a packet's length in 14 bits.
pub const MAX_MTU: u16 = 16_368;
/// The largest payload to look for on an unknown path: Ethernet's jumbo frames.
const JUMBO_MTU: u16 = 8_952;

/// Streams for messages too large for the control lane, and the lane itself.
const CONTROL_STREAMS: u32 = 4;
/// Bytes of QUIC datagrams that may wait here unread. A watcher sends them only to get an
/// acknowledgement.
const DATAGRAMS: usize = 1 << 10;
/// Below this window a stream cannot fill a fast link.
const MIN_STREAM_WINDOW: u64 = 256 << 10;
/// Above this window nothing is gained on any link that training runs on.
const MAX_STREAM_WINDOW: u64 = 16 << 20;

/// The tuning of one endpoint. The defaults suit training. Identity and addresses are not tuning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The versions of the protocol that the endpoint speaks: all that this build knows, except in
    /// tests of upgrades.
    pub protocol_versions: RangeInclusive<u16>,
    /// UDP payload that a link begins with, bytes. Larger packets cost less CPU for each byte: on
    /// loopback 6500 carries three times as much as 1452. If it is too large for the path, the
    /// first packets are lost.
    pub initial_mtu: u16,
    /// UDP payload that every path surely carries, bytes, at least 1200. Losses of larger packets
    /// count as signs that the path has shrunk. Loopback never shrinks. A value equal to
    /// `initial_mtu` keeps congestion there from being mistaken for such a sign.
    pub guaranteed_mtu: u16,
    /// The largest UDP payload to look for and to accept, bytes. At most [`MAX_MTU`].
    pub largest_mtu: u16,
    /// Bytes of bulk data that all peers together may have in flight to this process before it has
    /// read them. Also what this process may have unacknowledged. A bound, not an allocation.
    pub window_budget: u64,
    /// How many peers share the budget, until [`Endpoint::share_among`] sets another number. More
    /// peers may connect. They exceed the budget.
    ///
    /// [`Endpoint::share_among`]: super::Endpoint::share_among
    pub peers: u32,
    /// Bulk streams that a peer may have open at once.
    ///
    /// A link's window is the sum of its streams' windows, including the control lane's. So streams
    /// that are not read, because their time has not come, never hold up control messages.
    pub bulk_streams: u32,
    /// Round-trip time that a link assumes before it has measured one. It rules how soon a lost
    /// handshake packet is sent again.
    pub initial_rtt: Duration,
    /// Bytes in flight before the first acknowledgement, and after. If they exceed the peer's
    /// socket buffer, a busy receiver loses packets.
    pub initial_congestion_window: u64,
    /// A link that hears nothing for this long is lost: the backstop of failure detection.
    pub idle_timeout: Duration,
    /// An idle link sends something this often. A fraction of `idle_timeout`.
    pub keep_alive: Duration,
    /// How often an endpoint probes whether a peer's process lives, on links with a coordinator at
    /// one end. Less often with many links, and at rest. It notices a dead process within this and
    /// 45 ms or six round trips, instead of `idle_timeout`. `None`: never.
    pub probe: Option<Duration>,
    /// Whether streams take turns packet by packet. Without this, a stream's chunks arrive together
    /// and earlier, in the order in which they were sent.
    pub send_fairness: bool,
    /// Buffer size to request from the kernel for each direction of the socket, bytes. The kernel
    /// grants up to its limit (`net.core.rmem_max`, `net.core.wmem_max`).
    pub socket_buffer: usize,
    /// Handshakes in progress at once, from all sources: a bound on what strangers can cost. One
    /// source (an IPv4 address, an IPv6 network of 64 bits) may have half of it, and a quarter is
    /// kept free for sources of nodes. Beyond half of either, the endpoint validates addresses
    /// first.
    pub max_handshakes: usize,
    /// A handshake or an enrolment that takes longer has failed.
    pub handshake_timeout: Duration,
    /// How often a node checks whether to renew its certificate, over its links to coordinators.
    /// Also how soon it asks again after it got no new one.
    pub renewal_check: Duration,
    /// Control messages that may wait for one peer, of 64 MiB together at most. `send` fails for
    /// one more.
    pub control_queue: usize,
}

/// A setting that is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {problem}")]
pub struct SettingsError {
    /// The name of the field in [`Settings`].
    pub field: &'static str,
    /// What is wrong with its value.
    pub problem: &'static str,
}

impl Default for Settings {
    /// For an ordinary network, with an MTU that the link discovers.
    fn default() -> Self {
        Self {
            protocol_versions: PROTOCOL_VERSIONS,
            initial_mtu: 1452,
            guaranteed_mtu: 1200,
            largest_mtu: JUMBO_MTU,
            window_budget: 1 << 30,
            peers: 8,
            bulk_streams: 32,
            initial_rtt: Duration::from_millis(5),
            initial_congestion_window: 256 << 10,
            idle_timeout: Duration::from_secs(3),
            keep_alive: Duration::from_millis(500),
            probe: Some(Duration::from_millis(25)),
            send_fairness: false,
            socket_buffer: 16 << 20,
            max_handshakes: 64,
            handshake_timeout: Duration::from_secs(3),
            renewal_check: Duration::from_secs(60),
            control_queue: 1024,
        }
    }
}

/// The purpose of a key that is derived from an endpoint's secret.
const CONNECTION_IDS: &str = "everstep: ids of QUIC connections";

impl Settings {
    /// For an endpoint that listens on `address`. Loopback carries large packets.
    pub fn for_address(address: IpAddr) -> Self {
        if address.is_loopback() {
            return Self {
                initial_mtu: MAX_MTU,
                guaranteed_mtu: MAX_MTU,
                largest_mtu: MAX_MTU,
                ..Self::default()
            };
        }
        Self::default()
    }

    /// Checks what the fields must satisfy together. The error names the first that does not.
    pub fn validate(&self) -> Result<(), SettingsError> {
        let refuse = |field, problem| Err(SettingsError { field, problem });
        if self.largest_mtu > MAX_MTU || self.largest_mtu < self.initial_mtu {
            return refuse("largest_mtu", "must be initial_mtu to 16368 bytes");
        }
        if self.guaranteed_mtu < 1200 || self.guaranteed_mtu > self.initial_mtu {
            return refuse("guaranteed_mtu", "must be 1200 bytes to initial_mtu");
        }
        if self.keep_alive * 2 > self.idle_timeout {
            return refuse("keep_alive", "must be at most half of idle_timeout");
        }
        if self.idle_timeout > Duration::from_secs(3600) {
            return refuse("idle_timeout", "must be at most an hour");
        }
        if self.probe.is_some_and(|interval| interval.is_zero()) {
            return refuse("probe", "must be longer than nothing");
        }
        if self.renewal_check.is_zero() {
            return refuse("renewal_check", "must be longer than nothing");
        }
        if self.peers == 0 || !(1..=1024).contains(&self.bulk_streams) {
            let words = "must be at least 1, and bulk_streams at most 1024";
            return refuse("peers, bulk_streams", words);
        }
        if self.max_handshakes == 0 || self.control_queue == 0 {
            return refuse("max_handshakes, control_queue", "must be at least 1");
        }
        Ok(())
    }

    /// Bytes in flight on one bulk stream, if this many peers share the budget.
    fn stream_window(&self, peers: u32) -> u64 {
        let streams = u64::from(peers.max(1)) * u64::from(self.bulk_streams + CONTROL_STREAMS);
        (self.window_budget / streams).clamp(MIN_STREAM_WINDOW, MAX_STREAM_WINDOW)
    }

    pub(super) fn transport(&self, peers: u32) -> Arc<TransportConfig> {
        let window = self.stream_window(peers);
        let link_window = window * u64::from(self.bulk_streams + CONTROL_STREAMS);
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(self.largest_mtu);
        let mut congestion = CubicConfig::default();
        congestion.initial_window(self.initial_congestion_window);
        let mut transport = TransportConfig::default();
        transport
            .initial_mtu(self.initial_mtu)
            .min_mtu(self.guaranteed_mtu)
            .mtu_discovery_config(Some(discovery))
            .stream_receive_window(varint(window))
            .receive_window(varint(link_window))
            .send_window(link_window)
            .max_concurrent_uni_streams(self.bulk_streams.into())
            .max_concurrent_bidi_streams(CONTROL_STREAMS.into())
            .initial_rtt(self.initial_rtt)
            .max_idle_timeout(Some(varint(self.idle_timeout.as_millis() as u64).into()))
            .keep_alive_interval(Some(self.keep_alive))
            .send_fairness(self.send_fairness)
            .congestion_controller_factory(Arc::new(congestion))
            .datagram_receive_buffer_size(Some(DATAGRAMS));
        Arc::new(transport)
    }

    /// With a secret that outlives the process, a restarted process can tell the peers of its
    /// predecessor, by QUIC's stateless resets, that their links are lost. So the peers need not
    /// wait for [`Settings::idle_timeout`].
    pub(super) fn endpoint(&self, secret: Option<[u8; 32]>) -> EndpointConfig {
        let mut endpoint = EndpointConfig::default();
        if let Some(secret) = secret {
            // A key of its own: an observer of connection ids may find out the key of their
            // checksums.
            let [a, b, c, d, e, f, g, h, ..] = blake3::derive_key(CONNECTION_IDS, &secret);
            let own_ids = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
            let generator = move || Box::new(HashedConnectionIdGenerator::from_key(own_ids)) as _;
            let key = hmac::Key::new(hmac::HMAC_SHA256, &secret);
            endpoint.reset_key(Arc::new(key)).cid_generator(generator);
        }
        endpoint
            .max_udp_payload_size(self.largest_mtu)
            .expect("a validated MTU is one that QUIC allows");
        endpoint
    }
}

fn varint(value: u64) -> VarInt {
    VarInt::from_u64(value).unwrap_or(VarInt::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_windows_of_all_peers_are_the_budget_or_less_than_fills_a_link() {
        let settings = Settings::default();
        for peers in [1, 8, 63, 100] {
            let streams = u64::from(peers) * u64::from(settings.bulk_streams + CONTROL_STREAMS);
            let together = settings.stream_window(peers) * streams;
            assert!(together <= settings.window_budget, "{peers} peers: {together}");
        }
        assert_eq!(settings.stream_window(1), MAX_STREAM_WINDOW);
        assert_eq!(settings.stream_window(10_000), MIN_STREAM_WINDOW);
    }
}

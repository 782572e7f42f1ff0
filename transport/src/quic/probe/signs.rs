//! Signs of life: the probes that arrive, by link.
//!
//! A probe asks the peer's host, and at the same time tells the peer that its sender lives. So a
//! link with packets that are refused in one direction only is not taken for dead, though its peer
//! has nothing else to say for a moment. Each link's probes carry a tag that only its two ends can
//! make, from the keys of the link's TLS session. The tag travels unencrypted. A host on the path
//! may repeat it. That delays the notice of a death until the idle time-out, and does nothing else.
//!
//! Input: each datagram of an endpoint's socket that has a probe's length. Output: a count for each
//! link.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use quinn::Connection;

/// A probe's length, bytes. No QUIC packet is as short. No endpoint answers a probe, since a
/// stateless reset would have to be shorter than the packet that it answers.
const LENGTH: usize = 13;
/// The first byte of a short header with the fixed bit not set.
const FIRST: u8 = 0;
const EXPORTER_LABEL: &[u8] = b"EXPORTER-everstep-probe";

/// The bytes of a link's probes, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tag([u8; LENGTH]);

/// Counts the probes of each link that have arrived at an endpoint.
#[derive(Debug, Default)]
pub(in crate::quic) struct Signs {
    by_tag: DashMap<Tag, Arc<AtomicU64>>,
}

impl Tag {
    pub(super) fn of(connection: &Connection) -> Self {
        let mut tag = [FIRST; LENGTH];
        connection
            .export_keying_material(&mut tag[1..], EXPORTER_LABEL, &[])
            .expect("12 bytes are within what TLS can export");
        Self(tag)
    }

    #[cfg(test)]
    pub(super) fn new(secret: [u8; LENGTH - 1]) -> Self {
        let mut tag = [FIRST; LENGTH];
        tag[1..].copy_from_slice(&secret);
        Self(tag)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Signs {
    /// Counts from now on the probes with this tag.
    pub(super) fn expect(&self, tag: Tag) -> Arc<AtomicU64> {
        self.by_tag.entry(tag).or_default().clone()
    }

    pub(super) fn forget(&self, tag: Tag) {
        self.by_tag.remove(&tag);
    }

    /// Takes note of datagrams of `stride` bytes each that have arrived.
    pub(in crate::quic) fn arrived(&self, datagrams: &[u8], stride: usize) {
        if stride != LENGTH {
            return;
        }
        let (whole, _) = datagrams.as_chunks::<LENGTH>();
        for count in whole.iter().filter_map(|probe| self.by_tag.get(&Tag(*probe))) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_counts_for_its_own_link() {
        let signs = Signs::default();
        let [one, other] = [1, 2].map(|byte| Tag([byte; LENGTH]));
        let [count, others] = [one, other].map(|tag| signs.expect(tag));
        let both = [one.bytes(), other.bytes(), one.bytes(), &[7; LENGTH]].concat();
        signs.arrived(&both, LENGTH);
        signs.arrived(&both, both.len());
        let counted = [&count, &others].map(|count| count.load(Ordering::Relaxed));
        assert_eq!(counted, [2, 1]);
        signs.forget(one);
        signs.arrived(&both, LENGTH);
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }
}

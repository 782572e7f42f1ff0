//! The slots of handshakes in progress: a bound on what strangers can cost. The slots are shared
//! out so that one host cannot take all of them.
//!
//! Input: the source address of each handshake that begins and ends, and the addresses from which
//! nodes of the cluster have had links. Output: whether a handshake may begin. A *source* is an
//! IPv4 address or an IPv6 network of 64 bits, since a host has as many IPv6 addresses as it likes.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Most sources of nodes that the table remembers.
const MAX_KNOWN: usize = 4096;
/// The least time between two lines of the log about failed handshakes.
const FAILURE_LOG_INTERVAL: Duration = Duration::from_secs(1);

/// The slots of one endpoint. Clones share them.
#[derive(Clone)]
pub(super) struct Slots {
    table: Arc<Mutex<Table>>,
    /// Number of slots in all.
    count: usize,
}

/// A handshake's slot. Its drop frees it.
pub(super) struct Slot {
    slots: Slots,
    source: SourceGroup,
    /// Half of all slots, or half of the source's share, were taken when this one was.
    pub(super) is_crowded: bool,
}

/// A group of addresses that shares one part of the slots: the first 64 bits of an address. IPv4
/// addresses are mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SourceGroup(u128);

#[derive(Default)]
struct Table {
    taken: usize,
    by_source: HashMap<SourceGroup, usize>,
    /// Sources of nodes of the cluster, and when each was last seen.
    known: HashMap<SourceGroup, Instant>,
}

impl Slots {
    pub(super) fn new(count: usize) -> Self {
        Self { table: Arc::default(), count }
    }

    /// Takes a slot. `None` if too many handshakes are in progress, of all sources or of this one.
    /// The last quarter of the slots is for sources of nodes.
    pub(super) fn take(&self, from: IpAddr) -> Option<Slot> {
        let source = SourceGroup::of(from);
        let mut table = self.table.lock().expect(NO_PANIC);
        let reserved = if table.known.contains_key(&source) { 0 } else { self.count / 4 };
        let (taken, own) = (table.taken, table.by_source.get(&source).copied().unwrap_or(0));
        if taken >= self.count - reserved || own >= self.share() {
            return None;
        }
        table.taken += 1;
        table.by_source.insert(source, own + 1);
        let is_crowded = 2 * (taken + 1) > self.count || 2 * (own + 1) > self.share();
        Some(Slot { slots: self.clone(), source, is_crowded })
    }

    /// The most slots that one source may take.
    fn share(&self) -> usize {
        (self.count / 2).max(1)
    }

    /// Remembers that a node of the cluster is at this address.
    pub(super) fn know(&self, node: IpAddr) {
        let mut table = self.table.lock().expect(NO_PANIC);
        let source = SourceGroup::of(node);
        if table.known.len() >= MAX_KNOWN && !table.known.contains_key(&source) {
            let oldest = table.known.iter().min_by_key(|(_, seen)| **seen);
            let oldest = oldest.map(|(source, _)| *source).expect("the table is full");
            table.known.remove(&oldest);
        }
        table.known.insert(source, Instant::now());
    }
}

const NO_PANIC: &str = "counting slots does not panic";

impl Drop for Slot {
    fn drop(&mut self) {
        let mut table = self.slots.table.lock().expect(NO_PANIC);
        table.taken -= 1;
        let own = table.by_source.get_mut(&self.source).expect("the slot was taken");
        *own -= 1;
        if *own == 0 {
            table.by_source.remove(&self.source);
        }
    }
}

impl SourceGroup {
    fn of(address: IpAddr) -> Self {
        let mapped = match address.to_canonical() {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => {
                let network = address.to_bits() >> 64 << 64;
                Ipv6Addr::from_bits(network)
            }
        };
        Self(mapped.to_bits())
    }
}

/// Decides which of many lines about the same trouble are logged: one in each interval.
#[derive(Debug, Default)]
pub(super) struct LogLimit {
    last: Option<Instant>,
    withheld: u64,
}

impl LogLimit {
    /// How many lines were withheld since the last logged one. `None`: withhold this line.
    pub(super) fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < FAILURE_LOG_INTERVAL)
        {
            self.withheld += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.withheld))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    /// Takes slots from this address until it gets no more.
    fn flood(slots: &Slots, from: &str) -> Vec<Slot> {
        std::iter::from_fn(|| slots.take(address(from))).collect()
    }

    #[test]
    fn one_source_takes_half_of_the_slots_at_most() {
        let slots = Slots::new(64);
        let flooded = flood(&slots, "192.0.2.1");
        assert_eq!(flooded.len(), 32);
        assert!(!flooded[15].is_crowded && flooded[16].is_crowded);
        assert!(slots.take(address("::ffff:192.0.2.1")).is_none(), "the same source, mapped");
        assert!(slots.take(address("192.0.2.2")).is_some());
        drop(flooded);
        assert_eq!(flood(&slots, "192.0.2.1").len(), 32, "slots are given back");
    }

    #[test]
    fn a_network_of_64_bits_is_one_source() {
        let slots = Slots::new(64);
        let flooded: Vec<_> = (0..64)
            .filter_map(|host| slots.take(address(&format!("2001:db8::{host:x}:1"))))
            .collect();
        assert_eq!(flooded.len(), 32);
        assert!(slots.take(address("2001:db8:0:1::1")).is_some());
    }

    #[test]
    fn a_quarter_of_the_slots_is_for_nodes_of_the_cluster() {
        let slots = Slots::new(64);
        slots.know(address("10.0.0.1"));
        let strangers = ["192.0.2.1", "192.0.2.2", "192.0.2.3"];
        let flooded: Vec<_> = strangers.iter().flat_map(|from| flood(&slots, from)).collect();
        assert_eq!(flooded.len(), 48);
        assert!(slots.take(address("10.0.0.2")).is_none());
        assert_eq!(flood(&slots, "10.0.0.1").len(), 16);
    }

    #[test]
    fn the_nodes_that_are_known_are_bounded() {
        let slots = Slots::new(64);
        for host in 0..=MAX_KNOWN as u32 {
            slots.know(std::net::Ipv4Addr::from_bits(host).into());
        }
        assert_eq!(slots.table.lock().expect(NO_PANIC).known.len(), MAX_KNOWN);
        assert!(slots.take(address("0.0.16.0")).is_some(), "the newest is known");
    }

    #[test]
    fn a_flood_of_lines_is_one_line_a_second_that_counts_the_others() {
        let (mut limit, begun) = (LogLimit::default(), Instant::now());
        let logged: Vec<_> =
            (0..2000).filter_map(|ms| limit.admit(begun + Duration::from_millis(ms))).collect();
        assert_eq!(logged, [0, 999]);
    }
}

//! The present connections, and which of them end when there are too many.
//!
//! A connection waits until it has sent something and has a slot. Then it is served, or it is a
//! probe. When one waiting connection or probe too many comes, the oldest of its kind ends: the
//! oldest of the same source if that source has too many. A request that is served is never cut off
//! for another one.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tokio::task::AbortHandle;

/// Most connections that wait, in all and of one source.
const WAITING: ConnectionLimits = ConnectionLimits { all: 256, of_one: 64 };
/// Most probes, in all and of one source.
const PROBES: ConnectionLimits = ConnectionLimits { all: 32, of_one: 32 };
/// Most requests that are served at a time, in all and of one source.
const SERVED: ConnectionLimits = ConnectionLimits { all: 128, of_one: 96 };

/// The number of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ConnectionId(u64);

#[derive(Clone, Copy)]
struct ConnectionLimits {
    all: usize,
    of_one: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ConnectionKind {
    Waiting,
    Probe,
    Served,
}

struct Connection<H> {
    kind: ConnectionKind,
    source: IpAddr,
    handle: H,
}

/// All connections, in the order of their coming. `H` is a handle that ends one.
pub(super) struct Connections<H = AbortHandle> {
    count: u64,
    open: BTreeMap<ConnectionId, Connection<H>>,
}

impl<H> Default for Connections<H> {
    fn default() -> Self {
        Self { count: 0, open: BTreeMap::new() }
    }
}

impl<H: Clone> Connections<H> {
    pub(super) fn id(&mut self) -> ConnectionId {
        self.count += 1;
        ConnectionId(self.count)
    }

    /// Adds a connection. Returns another connection that has to end for it.
    pub(super) fn wait(&mut self, id: ConnectionId, source: IpAddr, handle: H) -> Option<H> {
        let goes = self.oldest_too_many(ConnectionKind::Waiting, WAITING, source);
        self.open.insert(id, Connection { kind: ConnectionKind::Waiting, source, handle });
        goes
    }

    /// Makes a connection a probe. Returns another probe that has to end for it.
    pub(super) fn probe(&mut self, id: ConnectionId) -> Option<H> {
        let source = self.open.get(&id)?.source;
        let goes = self.oldest_too_many(ConnectionKind::Probe, PROBES, source);
        self.open.get_mut(&id)?.kind = ConnectionKind::Probe;
        goes
    }

    /// Asks for a slot for a connection. Returns whether it got one.
    pub(super) fn serve(&mut self, id: ConnectionId) -> bool {
        let Some(source) = self.open.get(&id).map(|connection| connection.source) else {
            return false;
        };
        let (all, of_one) = self.count(ConnectionKind::Served, source);
        let is_free = all < SERVED.all && of_one < SERVED.of_one;
        if let Some(connection) = self.open.get_mut(&id).filter(|_| is_free) {
            connection.kind = ConnectionKind::Served;
        }
        is_free
    }

    pub(super) fn leave(&mut self, id: ConnectionId) {
        self.open.remove(&id);
    }

    /// Whether a request is being served.
    pub(super) fn are_served(&self) -> bool {
        self.open.values().any(|connection| connection.kind == ConnectionKind::Served)
    }

    /// Takes out the oldest connection of a kind if there is no room for one more.
    fn oldest_too_many(
        &mut self,
        kind: ConnectionKind,
        bounds: ConnectionLimits,
        source: IpAddr,
    ) -> Option<H> {
        let (all, of_one) = self.count(kind, source);
        let of_source = of_one >= bounds.of_one;
        if !of_source && all < bounds.all {
            return None;
        }
        let goes = |connection: &Connection<H>| {
            connection.kind == kind && (!of_source || connection.source == source)
        };
        let oldest =
            self.open.iter().find(|(_, connection)| goes(connection)).map(|(id, _)| *id)?;
        self.open.remove(&oldest).map(|connection| connection.handle)
    }

    fn count(&self, kind: ConnectionKind, source: IpAddr) -> (usize, usize) {
        let there = self.open.values().filter(|connection| connection.kind == kind);
        there.fold((0, 0), |(all, of_one), connection| {
            (all + 1, of_one + usize::from(connection.source == source))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(number: u8) -> IpAddr {
        [10, 0, 0, number].into()
    }

    #[test]
    fn the_oldest_idle_connection_of_a_crowding_source_goes() {
        let mut connections = Connections::default();
        let mut come = |number: u64, from| {
            let id = connections.id();
            connections.wait(id, from, number)
        };
        assert_eq!(come(0, host(2)), None, "it came first, and stays");
        assert!((1..=64).all(|number| come(number, host(1)).is_none()));
        assert_eq!([come(65, host(1)), come(66, host(1))], [Some(1), Some(2)]);
        assert_eq!(come(67, host(2)), None);
        for number in 0..190 {
            assert_eq!(come(100 + number, host(3 + (number / 60) as u8)), None);
        }
        assert_eq!(come(999, host(9)), Some(0), "of all, since there are too many of all");
    }

    #[test]
    fn a_probe_finds_a_place_whatever_is_served() {
        let mut connections = Connections::default();
        let come = |connections: &mut Connections<u64>, number, from| {
            let id = connections.id();
            assert_eq!(connections.wait(id, from, number), None);
            id
        };
        for number in 0..96 {
            let id = come(&mut connections, number, host(1));
            assert!(connections.serve(id));
        }
        let (one, other) =
            (come(&mut connections, 96, host(1)), come(&mut connections, 97, host(2)));
        assert!(!connections.serve(one), "one source does not take all slots");
        assert!(connections.serve(other));
        let probes: Vec<_> =
            (0..34).map(|number| come(&mut connections, 200 + number, host(1))).collect();
        let went: Vec<_> = probes.iter().filter_map(|probe| connections.probe(*probe)).collect();
        assert_eq!(went, [200, 201]);
        connections.leave(ConnectionId(1));
        assert!(connections.are_served() && connections.serve(one));
    }
}

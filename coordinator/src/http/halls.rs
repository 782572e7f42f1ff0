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
const WAITING: Bounds = Bounds { all: 256, of_one: 64 };
/// Most probes, in all and of one source.
const PROBES: Bounds = Bounds { all: 32, of_one: 32 };
/// Most requests that are served at a time, in all and of one source.
const SERVED: Bounds = Bounds { all: 128, of_one: 96 };

/// The number of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

#[derive(Clone, Copy)]
struct Bounds {
    all: usize,
    of_one: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Hall {
    Waiting,
    Probe,
    Served,
}

struct Guest<H> {
    hall: Hall,
    source: IpAddr,
    handle: H,
}

/// All connections, in the order of their coming. `H` is a handle that ends one.
pub(super) struct Halls<H = AbortHandle> {
    tickets: u64,
    guests: BTreeMap<Ticket, Guest<H>>,
}

impl<H> Default for Halls<H> {
    fn default() -> Self {
        Self { tickets: 0, guests: BTreeMap::new() }
    }
}

impl<H: Clone> Halls<H> {
    pub(super) fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    /// Adds a connection. Returns another connection that has to end for it.
    pub(super) fn wait(&mut self, ticket: Ticket, source: IpAddr, handle: H) -> Option<H> {
        let goes = self.oldest_too_many(Hall::Waiting, WAITING, source);
        self.guests.insert(ticket, Guest { hall: Hall::Waiting, source, handle });
        goes
    }

    /// Makes a connection a probe. Returns another probe that has to end for it.
    pub(super) fn probe(&mut self, ticket: Ticket) -> Option<H> {
        let source = self.guests.get(&ticket)?.source;
        let goes = self.oldest_too_many(Hall::Probe, PROBES, source);
        self.guests.get_mut(&ticket)?.hall = Hall::Probe;
        goes
    }

    /// Asks for a slot for a connection. Returns whether it got one.
    pub(super) fn serve(&mut self, ticket: Ticket) -> bool {
        let Some(source) = self.guests.get(&ticket).map(|guest| guest.source) else { return false };
        let (all, of_one) = self.count(Hall::Served, source);
        let is_free = all < SERVED.all && of_one < SERVED.of_one;
        if let Some(guest) = self.guests.get_mut(&ticket).filter(|_| is_free) {
            guest.hall = Hall::Served;
        }
        is_free
    }

    pub(super) fn leave(&mut self, ticket: Ticket) {
        self.guests.remove(&ticket);
    }

    /// Whether a request is being served.
    pub(super) fn are_served(&self) -> bool {
        self.guests.values().any(|guest| guest.hall == Hall::Served)
    }

    /// Takes out the oldest connection of a hall if there is no room for one more.
    fn oldest_too_many(&mut self, hall: Hall, bounds: Bounds, source: IpAddr) -> Option<H> {
        let (all, of_one) = self.count(hall, source);
        let of_source = of_one >= bounds.of_one;
        if !of_source && all < bounds.all {
            return None;
        }
        let goes = |guest: &Guest<H>| guest.hall == hall && (!of_source || guest.source == source);
        let oldest =
            self.guests.iter().find(|(_, guest)| goes(guest)).map(|(ticket, _)| *ticket)?;
        self.guests.remove(&oldest).map(|guest| guest.handle)
    }

    fn count(&self, hall: Hall, source: IpAddr) -> (usize, usize) {
        let there = self.guests.values().filter(|guest| guest.hall == hall);
        there.fold((0, 0), |(all, of_one), guest| {
            (all + 1, of_one + usize::from(guest.source == source))
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
        let mut halls = Halls::default();
        let mut come = |number: u64, from| {
            let ticket = halls.ticket();
            halls.wait(ticket, from, number)
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
        let mut halls = Halls::default();
        let come = |halls: &mut Halls<u64>, number, from| {
            let ticket = halls.ticket();
            assert_eq!(halls.wait(ticket, from, number), None);
            ticket
        };
        for number in 0..96 {
            let ticket = come(&mut halls, number, host(1));
            assert!(halls.serve(ticket));
        }
        let (one, other) = (come(&mut halls, 96, host(1)), come(&mut halls, 97, host(2)));
        assert!(!halls.serve(one), "one source does not take all slots");
        assert!(halls.serve(other));
        let probes: Vec<_> =
            (0..34).map(|number| come(&mut halls, 200 + number, host(1))).collect();
        let went: Vec<_> = probes.iter().filter_map(|probe| halls.probe(*probe)).collect();
        assert_eq!(went, [200, 201]);
        halls.leave(Ticket(1));
        assert!(halls.are_served() && halls.serve(one));
    }
}

//! Members that cannot reach each other, though both are there.
//!
//! A pair that lost its connection makes a new generation necessary: nothing is sent twice within
//! one. The first time it is renewed with the same members, since most connections are lost by
//! accident. A pair that fails again soon is parted: one of the two is left out. Either end's word
//! counts. This table does not know who is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use everstep_transport::protocol::WorkerId;
use everstep_transport::time::Time;

/// A pair that fails again within this long is not renewed a second time.
const MEMORY: Duration = Duration::from_secs(10);

/// Two members, the lower id first.
pub(super) type Pair = (WorkerId, WorkerId);

#[derive(Debug, Default)]
pub(super) struct Partition {
    /// Of the current generation.
    broken: BTreeSet<Pair>,
    /// What a generation was renewed for, and when.
    renewed: BTreeMap<Pair, Time>,
}

impl Partition {
    /// A member of the current generation cannot reach another. Returns whether that is news.
    pub(super) fn report(&mut self, from: WorkerId, other: WorkerId) -> bool {
        from != other && self.broken.insert((from.min(other), from.max(other)))
    }

    /// A generation begins: whatever was broken may be whole again.
    pub(super) fn renew(&mut self, now: Time) {
        self.renewed.retain(|_, at| now.since(*at) < MEMORY);
        let broken = std::mem::take(&mut self.broken);
        self.renewed.extend(broken.into_iter().map(|pair| (pair, now)));
    }

    /// Pairs that are broken although a generation was renewed for them a short while ago.
    pub(super) fn repeated(&self, now: Time) -> Vec<Pair> {
        let soon = |pair: &&Pair| self.renewed.get(pair).is_some_and(|at| now.since(*at) < MEMORY);
        self.broken.iter().filter(soon).copied().collect()
    }
}

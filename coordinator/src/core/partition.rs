//! Members that cannot reach each other, though both are there.
//!
//! A pair that lost its connection makes a new generation necessary: nothing is sent twice within
//! one generation. The first time the new generation has the same members, since most connections
//! are lost by accident. If the pair fails again soon, one of the two is left out. If neither can
//! be, the leader renews the generation until they reach each other, each time after a longer
//! pause. Either end's word counts. This table does not know which member is left out.
//!
//! A member that was silent has lost its links to others for that reason. The two ends of a link
//! notice the loss at different times, so the pair may be reported in two generations though the
//! road is free. Such a pair gets its generations, but that is not held against it until both
//! members have *settled*.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use everstep_transport::protocol::WorkerId;
use everstep_transport::time::Time;

/// A pair that fails again within this long is not renewed a second time.
const BROKEN_PAIR_KEPT_FOR: Duration = Duration::from_secs(10);
/// The first pause before a pair that cannot be parted is renewed. Each next pause is twice as
/// long.
const PAIR_RENEWAL_BACKOFF_MIN: Duration = Duration::from_millis(500);
/// The longest pause. It is much shorter than [`BROKEN_PAIR_KEPT_FOR`], or the pair would look like
/// a new one.
const PAIR_RENEWAL_BACKOFF_MAX: Duration = Duration::from_secs(4);

/// Two members, the lower id first.
pub(super) type Pair = (WorkerId, WorkerId);

#[derive(Debug, Default)]
pub(super) struct Partition {
    /// The broken pairs of the current generation.
    broken: BTreeSet<Pair>,
    /// The pairs for which a generation was renewed.
    renewed: BTreeMap<Pair, Renewal>,
}

#[derive(Clone, Copy, Debug)]
struct Renewal {
    /// When the last renewal was.
    at: Time,
    /// How many renewals there were, each soon after the one before.
    times: u32,
}

impl Partition {
    /// A member of the current generation cannot reach another member.
    pub(super) fn report(&mut self, from: WorkerId, other: WorkerId) {
        if from != other {
            self.broken.insert((from.min(other), from.max(other)));
        }
    }

    /// Whether it is time for a new generation. It is due at once, unless all broken pairs have
    /// been renewed in vain before.
    pub(super) fn is_due(&self, now: Time) -> bool {
        let due = |pair: &Pair| {
            let last = self.renewed.get(pair);
            last.is_none_or(|last| now.since(last.at) >= pause(last.times))
        };
        self.broken.iter().any(due)
    }

    /// A generation begins: every broken pair may be whole again.
    pub(super) fn renew(&mut self, now: Time, is_settled: impl Fn(WorkerId) -> bool) {
        self.renewed.retain(|_, last| now.since(last.at) < BROKEN_PAIR_KEPT_FOR);
        let broken = std::mem::take(&mut self.broken).into_iter();
        for pair in broken.filter(|(one, other)| is_settled(*one) && is_settled(*other)) {
            let times = self.renewed.get(&pair).map_or(0, |last| last.times);
            self.renewed.insert(pair, Renewal { at: now, times: times + 1 });
        }
    }

    /// Pairs of settled members that are broken although a generation was renewed for them a short
    /// while ago.
    pub(super) fn repeated(&self, now: Time, is_settled: impl Fn(WorkerId) -> bool) -> Vec<Pair> {
        let soon = |pair: &&Pair| self.last(now, pair).is_some();
        let settled = |(one, other): &&Pair| is_settled(*one) && is_settled(*other);
        self.broken.iter().filter(soon).filter(settled).copied().collect()
    }

    /// Pairs for which one generation after the other was renewed.
    pub(super) fn lasting(&self, now: Time) -> impl Iterator<Item = Pair> {
        let again = move |pair: &&Pair| self.last(now, pair).is_some_and(|last| last.times > 1);
        self.renewed.keys().filter(again).copied()
    }

    /// The last renewal for a pair, if it is not long ago.
    fn last(&self, now: Time, pair: &Pair) -> Option<&Renewal> {
        self.renewed.get(pair).filter(|last| now.since(last.at) < BROKEN_PAIR_KEPT_FOR)
    }
}

/// The pause from one renewal for a pair, after `times` renewals, to the next.
fn pause(times: u32) -> Duration {
    match times {
        0..=1 => Duration::ZERO,
        more => (PAIR_RENEWAL_BACKOFF_MIN * (1 << (more - 2).min(8))).min(PAIR_RENEWAL_BACKOFF_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewals_in_vain_are_the_rarer_the_more_there_were() {
        let pauses: Vec<_> = (1..7).map(|times| pause(times).as_millis()).collect();
        assert_eq!(pauses, [0, 500, 1_000, 2_000, 4_000, 4_000]);
        assert_eq!(pause(u32::MAX), PAIR_RENEWAL_BACKOFF_MAX);
    }
}

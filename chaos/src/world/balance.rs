//! I27: while nothing disturbs a run, its steps become at most a tenth longer than they must be.
//!
//! The checker knows how slow each device truly is, and looks for the best shares of the data
//! shards in its own way.

use std::time::Duration;

use everstep_transport::protocol::{Record, Step, WorkerId};
use everstep_transport::time::Time;

use crate::check::{Invariant, Violation};

/// A leader notices slow devices in 30 s and 32 steps. Its first change may come too early to know
/// all paces, and the next one comes a minute after that. A clock that is a tenth slow takes
/// longer.
const BALANCED_WITHIN: Duration = Duration::from_secs(180);
/// The pace of a device follows from 32 steps, and a leader waits for 32 more.
const BALANCED_WITHIN_STEPS: u64 = 128;

/// A member's share of the data shards, and how long one takes its device, in thousandths of the
/// usual time.
type Share = (usize, u64);

/// What the checker remembers.
#[derive(Debug, Default)]
pub struct BalanceChecker {
    /// Since when nothing has disturbed these members with devices of these paces, and the step
    /// that was reached then.
    calm: Option<Calm>,
}

#[derive(Debug, PartialEq)]
struct Calm {
    since: Time,
    step: Step,
    paces: Vec<(WorkerId, u64)>,
}

impl BalanceChecker {
    /// Time passes. `record` is that of a run which nothing disturbs, and `pace` tells how slow a
    /// member's device is. `None` while something does.
    ///
    /// # Errors
    /// I27.
    pub fn passes(
        &mut self,
        now: Time,
        reached: Step,
        record: Option<&Record>,
        pace: impl Fn(WorkerId) -> u64,
    ) -> Result<(), Violation> {
        let Some(record) = record.filter(|record| !record.waiting) else {
            self.calm = None;
            return Ok(());
        };
        let members = record.members.iter().map(|member| member.worker);
        let mut paces: Vec<_> = members.map(|worker| (worker, pace(worker))).collect();
        paces.sort_unstable();
        let calm = match self.calm.take() {
            Some(calm) if calm.paces == paces && calm.step <= reached => calm,
            _ => Calm { since: now, step: reached, paces },
        };
        let calm = self.calm.insert(calm);
        let steps = reached.0 - calm.step.0;
        if now.since(calm.since) < BALANCED_WITHIN || steps < BALANCED_WITHIN_STEPS {
            return Ok(());
        }
        let each = record.members.iter().map(|it| (it.data_shards.len(), pace(it.worker)));
        let each: Vec<Share> = each.collect();
        let (is, best) = (longest(&each), best(&each));
        if 10 * is <= 11 * best {
            return Ok(());
        }
        let seen = format!(
            "a step takes {is} thousandths of a data shard's time, and could take {best}: {each:?}"
        );
        Err(Violation { invariant: Invariant::I27, at: now, seen })
    }
}

fn longest(each: &[Share]) -> u64 {
    each.iter().map(|(share, pace)| *share as u64 * pace).max().unwrap_or(0)
}

/// The shortest time in which these members could compute all of their data shards, with one for
/// each of them at least, where there are so many.
fn best(each: &[Share]) -> u64 {
    let count: usize = each.iter().map(|(share, _)| share).sum();
    let least = u64::from(count >= each.len());
    let slowest = least * each.iter().map(|(_, pace)| *pace).max().unwrap_or(0);
    let times = each.iter().flat_map(|(_, pace)| (1..=count as u64).map(move |share| share * pace));
    let suffices = |time: &u64| {
        let done: u64 = each.iter().map(|(_, pace)| time / pace).sum();
        *time >= slowest && done >= count as u64
    };
    times.filter(suffices).min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_time_is_found() {
        assert_eq!(best(&[(2, 1_000); 4]), 2_000);
        assert_eq!(best(&[(2, 1_000), (2, 1_000), (2, 2_000), (2, 1_000)]), 3_000);
        assert_eq!(best(&[(2, 1_000), (2, 9_000)]), 9_000, "it has one");
        assert_eq!(best(&[(1, 1_000), (0, 1_000)]), 1_000);
        assert_eq!(longest(&[(2, 1_000), (1, 3_000)]), 3_000);
    }
}

//! Shares of the data shards by how fast their members compute.
//!
//! A step takes as long as the member with the longest share. So a share is to take no member
//! longer than it must: each data shard goes to the member that has it done first. Every member has
//! one at least, where there are so many: a device that has none would never be measured again.
//! Equal shares stay as long as others would gain little, since measured times vary.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Shares by pace are worth a change if equal ones take more than this many hundredths of their
/// time.
const WORTHWHILE: u64 = 108;

/// How many of `count` data shards each member is to have, if members with these times for one data
/// shard, microseconds, should have unequal ones. `None` if equal shares are as good whichever
/// members have one more.
pub(super) fn shares(count: usize, paces: &[Option<u64>]) -> Option<Vec<usize>> {
    let paces = filled_in(paces);
    let best = best(count, &paces);
    let (equal, best_time) = (longest_of_equal(count, &paces), longest(&best, &paces));
    is_worthwhile(equal, best_time).then_some(best)
}

/// Whether the best shares are worth a change for members with these.
pub(super) fn are_worth_a_change(shares: &[usize], paces: &[Option<u64>]) -> bool {
    let (count, paces) = (shares.iter().sum(), filled_in(paces));
    // A member that has none is never measured.
    let one_has_none = count >= shares.len() && shares.contains(&0);
    one_has_none || is_worthwhile(longest(shares, &paces), longest(&best(count, &paces), &paces))
}

/// The times of all members. Where one is not known, it counts as the median of the others.
fn filled_in(paces: &[Option<u64>]) -> Vec<u64> {
    let mut known: Vec<u64> = paces.iter().flatten().copied().collect();
    known.sort_unstable();
    let usual = known.get(known.len() / 2).copied().unwrap_or(1);
    paces.iter().map(|pace| pace.unwrap_or(usual)).collect()
}

/// The time of the longest share, microseconds, if shares are equal and the slowest members have
/// one more.
fn longest_of_equal(count: usize, paces: &[u64]) -> u64 {
    let mut descending = paces.to_vec();
    descending.sort_unstable_by_key(|pace| Reverse(*pace));
    longest(&super::blocks::equal(count, paces.len()), &descending)
}

/// Whether a step with the shares that take `then` would be so much shorter than with those that
/// take `now` that a change pays.
fn is_worthwhile(now: u64, then: u64) -> bool {
    now.saturating_mul(100) > then.saturating_mul(WORTHWHILE)
}

/// The time of the longest share, microseconds.
fn longest(shares: &[usize], paces: &[u64]) -> u64 {
    let times = shares.iter().zip(paces).map(|(share, pace)| pace.saturating_mul(*share as u64));
    times.max().unwrap_or(0)
}

/// The shares of which the longest one is as short as can be.
fn best(count: usize, paces: &[u64]) -> Vec<usize> {
    let least = usize::from(count >= paces.len());
    let begun = vec![least; paces.len()];
    filled_up(begun, count - least * paces.len(), paces)
}

/// Shares of members that have so many data shards already, and get `more` of them.
pub(super) fn handed_on(held: Vec<usize>, more: usize, paces: &[Option<u64>]) -> Vec<usize> {
    filled_up(held, more, &filled_in(paces))
}

/// Each of the data shards goes to the member that has it done first. Of several, that is the one
/// that had most at first.
fn filled_up(begun: Vec<usize>, more: usize, paces: &[u64]) -> Vec<usize> {
    let mut shares = begun.clone();
    let next = |rank: usize, share: usize| {
        let done = paces[rank].saturating_mul(share as u64 + 1);
        Reverse((done, Reverse(begun[rank]), rank))
    };
    let mut queue: BinaryHeap<_> = (0..paces.len()).map(|rank| next(rank, shares[rank])).collect();
    for _ in 0..more {
        let Some(Reverse((_, _, rank))) = queue.pop() else { break };
        shares[rank] += 1;
        queue.push(next(rank, shares[rank]));
    }
    shares
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn known(paces: &[u64]) -> Vec<Option<u64>> {
        paces.iter().copied().map(Some).collect()
    }

    #[test]
    fn a_slow_member_has_less() {
        assert_eq!(shares(8, &known(&[10, 10, 20, 10])), Some(vec![3, 2, 1, 2]));
        assert_eq!(shares(8, &known(&[10, 10, 1_000, 10])), Some(vec![3, 2, 1, 2]));
        assert_eq!(shares(16, &known(&[10, 30])), Some(vec![12, 4]));
        assert_eq!(shares(9, &known(&[10, 10, 10, 13])), Some(vec![3, 2, 2, 2]), "not one more");
    }

    #[test]
    fn equal_shares_stay_where_others_gain_little() {
        assert_eq!(shares(8, &known(&[10, 10, 13, 10])), None, "a whole data shard would move");
        assert_eq!(shares(64, &known(&[100, 104])), None);
        assert_eq!(shares(4, &known(&[10, 10, 20, 10])), None, "each has one");
        assert_eq!(shares(2, &known(&[10, 20, 20])), None, "one of them has none");
        assert_eq!(shares(8, &[Some(10), None]), None, "it may be as fast");
    }

    #[test]
    fn a_member_that_is_not_known_counts_as_the_median() {
        assert_eq!(shares(16, &[Some(10), None, Some(30), Some(12)]), Some(vec![6, 5, 1, 4]));
        assert_eq!(shares(16, &[None; 4]), None);
    }

    #[test]
    fn shares_are_worth_a_change_if_the_best_are_much_better_or_one_has_none() {
        let worth = |shares: &[usize], paces: &[u64]| are_worth_a_change(shares, &known(paces));
        assert!(worth(&[2; 4], &[10, 10, 20, 10]) && !worth(&[3, 2, 1, 2], &[10, 10, 20, 10]));
        assert!(!worth(&[32, 32], &[100, 104]), "four hundredths");
        assert!(worth(&[92, 108], &[100, 116]), "beside equal ones it would be less");
        assert!(worth(&[3, 0, 1], &[10, 10, 10]) && !worth(&[1, 0, 1], &[10, 10, 10]));
    }

    /// The numbers come from peers.
    #[test]
    fn absurd_times_stop_no_leader() {
        let paces = [Some(u64::MAX), Some(1 << 63), Some(1), None];
        let found = shares(16, &paces).unwrap_or_else(|| vec![4; 4]);
        assert_eq!(found.iter().sum::<usize>(), 16);
        assert_eq!(handed_on(vec![4; 4], 3, &paces).iter().sum::<usize>(), 19);
        are_worth_a_change(&[4; 4], &paces);
    }

    #[test]
    fn what_a_lost_member_had_goes_to_the_fast_ones() {
        let paces = known(&[10, 20, 10]);
        assert_eq!(handed_on(vec![5, 2, 4], 5, &paces), [7, 3, 6]);
        assert_eq!(handed_on(vec![2, 3], 2, &[None, Some(9)]), [3, 4], "one more where most are");
        assert_eq!(handed_on(vec![9, 1], 2, &[None, None]), [9, 3], "nothing moves");
    }

    proptest! {
        #[test]
        fn no_other_shares_are_shorter(
            paces in proptest::collection::vec(1u64..50, 1..5),
            count in 1usize..12,
            moves in proptest::collection::vec((0usize..5, 0usize..5), 0..20),
        ) {
            let found = best(count, &paces);
            prop_assert_eq!(found.iter().sum::<usize>(), count);
            let least = usize::from(count >= paces.len());
            prop_assert!(found.iter().all(|share| *share >= least));
            // Moves single data shards at random, and never finds anything shorter.
            let mut other = found.clone();
            for (from, to) in moves {
                let (from, to) = (from % paces.len(), to % paces.len());
                if other[from] > least {
                    other[from] -= 1;
                    other[to] += 1;
                }
                prop_assert!(longest(&other, &paces) >= longest(&found, &paces));
            }
        }
    }
}

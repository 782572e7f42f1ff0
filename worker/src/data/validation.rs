//! Which part of the held-out samples a data shard evaluates: a pure function, so members need not
//! agree on it.
//!
//! The parts belong to data shards and not to ranks. So the validation loss, added in the order of
//! the parts, has the same bits for any number of workers.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use everstep_transport::protocol::DataShard;

/// The held-out samples that `part`, below `parts`, evaluates, in ascending order.
///
/// It evaluates at most `limit` of the `len` samples, evenly strided over all of them. It cuts
/// these into `parts` runs, and their lengths differ by at most one.
pub fn validation_part(
    part: DataShard,
    parts: u32,
    len: u64,
    limit: u64,
) -> impl Iterator<Item = u64> {
    let evaluated = len.min(limit);
    let bound = |part: u64| scale(evaluated, part, u64::from(parts));
    let (begin, end) = (bound(u64::from(part.0)), bound(u64::from(part.0) + 1));
    (begin..end).map(move |place| scale(len, place, evaluated))
}

/// `whole * share / shares`, rounded down, for a share of at most `shares`.
fn scale(whole: u64, share: u64, shares: u64) -> u64 {
    (u128::from(whole) * u128::from(share) / u128::from(shares)) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parts(parts: u32, len: u64, limit: u64) -> Vec<Vec<u64>> {
        let part = |part| validation_part(DataShard(part), parts, len, limit).collect();
        (0..parts).map(part).collect()
    }

    #[test]
    fn everything_is_evaluated_where_the_limit_allows() {
        assert_eq!(parts(2, 5, 100), [vec![0, 1], vec![2, 3, 4]]);
    }

    #[test]
    fn a_limit_strides_over_the_whole_set() {
        assert_eq!(parts(2, 100, 4), [[0, 25], [50, 75]]);
    }

    #[test]
    fn an_empty_set_or_a_limit_of_none_evaluates_nothing() {
        assert_eq!(parts(1, 0, 10), [[0; 0]]);
        assert_eq!(parts(1, 10, 0), [[0; 0]]);
    }

    proptest! {
        #[test]
        fn the_parts_are_balanced_and_together_the_same_for_any_cut(
            count in 1u32..20, len in 0..10_000u64, limit in 0..200u64,
        ) {
            let cut = parts(count, len, limit);
            let whole = parts(1, len, limit).concat();
            prop_assert_eq!(&cut.concat(), &whole);
            prop_assert_eq!(whole.len() as u64, len.min(limit));
            prop_assert!(whole.is_sorted_by(|a, b| a < b) && whole.last() < Some(&len.max(1)));
            let lengths = || cut.iter().map(Vec::len);
            prop_assert!(lengths().max() <= lengths().min().map(|least| least + 1));
        }
    }
}

//! The cut of the flat parameter vector into parameter shards: a pure function of its length.
//!
//! Many shards spread evenly over any number of owners. Long ones cost few messages. This module
//! does not know the owners.

use std::ops::Range;

/// There are at least this many shards, unless they would be shorter than [`SHORTEST`].
const FEWEST: usize = 256;
/// The shortest shard, elements. Every shard length is a multiple of it.
const SHORTEST: usize = 1 << 10;
/// The longest shard, elements.
const LONGEST: usize = 1 << 20;

/// The elements of every parameter shard but the last, which may have fewer.
pub fn shard_length(parameters: usize) -> usize {
    let length = parameters / FEWEST / SHORTEST * SHORTEST;
    length.clamp(SHORTEST, LONGEST)
}

/// The number of parameter shards.
pub fn shard_count(parameters: usize) -> usize {
    parameters.div_ceil(shard_length(parameters))
}

/// Where `shard` lies in the flat vector, elements. Empty beyond the last shard.
pub fn shard_range(parameters: usize, shard: usize) -> Range<usize> {
    let length = shard_length(parameters);
    let start = shard.saturating_mul(length).min(parameters);
    start..start.saturating_add(length).min(parameters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_counts_by_table() {
        let table = [
            (0, 1 << 10, 0),
            (1, 1 << 10, 1),
            (1 << 10, 1 << 10, 1),
            ((1 << 10) + 1, 1 << 10, 2),
            (1 << 18, 1 << 10, 256),
            ((1 << 19) - 1, 1 << 10, 512),
            (1 << 19, 1 << 11, 256),
            (10_700_000, 40 << 10, 262),
            (124_439_808, 474 << 10, 257),
            (1 << 28, 1 << 20, 256),
            (1 << 33, 1 << 20, 1 << 13),
        ];
        for (parameters, length, count) in table {
            assert_eq!((shard_length(parameters), shard_count(parameters)), (length, count));
        }
    }

    #[test]
    fn ranges_cover_the_vector_without_gaps() {
        for parameters in [0, 1, 1_024, 1_025, 300_000, 12_345_678] {
            let mut end = 0;
            for shard in 0..shard_count(parameters) {
                let range = shard_range(parameters, shard);
                assert!(range.start == end && !range.is_empty());
                end = range.end;
            }
            assert_eq!(end, parameters);
            assert!(shard_range(parameters, shard_count(parameters)).is_empty());
            assert!(shard_range(parameters, usize::MAX).is_empty());
        }
    }
}

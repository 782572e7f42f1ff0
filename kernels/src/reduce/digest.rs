//! The digest of values. It shows whether a bit of them has changed.
//!
//! It is made block by block, so that a caller that does more with the values can do all of it
//! while a block is in the cache.

use twox_hash::XxHash3_64;

/// Elements of a block. A few blocks fit into the nearest cache.
pub(crate) const DIGEST_BLOCK: usize = 4 << 10;

/// xxh3 over the bytes of each block, little-endian, seeded by the digest of the block before. The
/// first seed ties the digest to the kind of values, or to the values before them.
pub fn digest(seed: u64, values: &[f32]) -> u64 {
    let block =
        |seed, block: &[f32]| XxHash3_64::oneshot_with_seed(seed, bytemuck::cast_slice(block));
    values.chunks(DIGEST_BLOCK).fold(seed, block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_counts_and_the_seed() {
        let values = [1.0_f32, -2.5, 0.0];
        for (place, bit) in [(0, 0), (1, 31), (2, 31)] {
            let mut other = values;
            other[place] = f32::from_bits(other[place].to_bits() ^ 1 << bit);
            assert_ne!(digest(0, &values), digest(0, &other), "value {place}, bit {bit}");
        }
        assert_ne!(digest(0, &values), digest(1, &values));
    }

    #[test]
    fn blocks_follow_each_other() {
        let values: Vec<f32> = (0..2 * DIGEST_BLOCK + 9).map(|index| index as f32).collect();
        let (first, rest) = values.split_at(DIGEST_BLOCK);
        assert_eq!(digest(digest(7, first), rest), digest(7, &values));
        assert_ne!(digest(7, first), digest(7, &values));
    }
}

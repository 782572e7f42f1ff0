//! What values are known by, to whoever wants to know whether a bit of them has changed.

use twox_hash::XxHash3_64;

/// xxh3 over the values' bytes, little-endian; the seed ties it to what the values are, or follow.
pub fn digest(seed: u64, values: &[f32]) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, bytemuck::cast_slice(values))
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
}

//! What a reduced shard is known by, to whoever has nobody to compare it with.

/// xxh3 over the values' bytes, little-endian.
pub fn digest(values: &[f32]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytemuck::cast_slice(values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_counts() {
        let values = [1.0_f32, -2.5, 0.0];
        for (place, bit) in [(0, 0), (1, 31), (2, 31)] {
            let mut other = values;
            other[place] = f32::from_bits(other[place].to_bits() ^ 1 << bit);
            assert_ne!(digest(&values), digest(&other), "value {place}, bit {bit}");
        }
    }
}

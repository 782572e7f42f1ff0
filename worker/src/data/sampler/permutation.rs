//! A seeded order of `0..len` in no memory.
//!
//! A Feistel network is a bijection of numbers of an even number of bits, for any round function.
//! Here the round function is [`Philox`], keyed by seed and epoch (Luby, Rackoff: "How to Construct
//! Pseudorandom Permutations from Pseudorandom Functions", SIAM J. Comput. 17, 1988). The code
//! applies the network to the next even power of two, again and again until the value falls below
//! `len` (cycle walking: Black, Rogaway: "Ciphers with Arbitrary Finite Domains", CT-RSA 2002).
//! That is a bijection of `0..len`: a walk from below `len` must come back there, and two walks
//! never meet. The power is at most four times `len`, so a walk has four steps at most in the mean.

use everstep_kernels::random::Philox;

/// Four rounds already look random for large sets. Halves of one or two bits need more to mix.
const ROUNDS: u64 = 8;

/// The order of one epoch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Permutation {
    len: u64,
    half_bits: u32,
    stream: Philox,
}

impl Permutation {
    /// The order of `0..len`. `len` is at least 1.
    pub(super) fn new(len: u64, seed: u64, epoch: u64) -> Self {
        let bits = u64::BITS - (len - 1).leading_zeros();
        let half_bits = bits.div_ceil(2).max(1);
        Self { len, half_bits, stream: Philox::new(seed, Philox::PERMUTATION, epoch) }
    }

    /// The number at `place`, below `len`.
    pub(super) fn apply(&self, place: u64) -> u64 {
        let mut value = self.network(place);
        while value >= self.len {
            value = self.network(value);
        }
        value
    }

    fn network(&self, value: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for round in 0..ROUNDS {
            // A half has at most 32 bits, so every round has indices of its own.
            let mixed = self.stream.u64(round << 32 | right) & mask;
            (left, right) = (right, left ^ mixed);
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_value_comes_first_about_as_often() {
        for len in [2, 3, 10, 17] {
            let mut first = vec![0u32; len as usize];
            let epochs = 2_000 * len;
            for epoch in 0..epochs {
                first[Permutation::new(len, 5, epoch).apply(0) as usize] += 1;
            }
            // Five standard deviations of a count with mean 2,000.
            assert!(first.iter().all(|count| count.abs_diff(2_000) < 225), "{len}: {first:?}");
        }
    }

    #[test]
    fn the_largest_set_fits() {
        let permutation = Permutation::new(u64::MAX, 1, 0);
        assert_ne!(permutation.apply(0), permutation.apply(u64::MAX - 1));
    }

    proptest! {
        #[test]
        fn it_is_a_permutation_of_any_length(len in 1..3_000u64, seed: u64, epoch: u64) {
            let permutation = Permutation::new(len, seed, epoch);
            let mut order: Vec<u64> = (0..len).map(|place| permutation.apply(place)).collect();
            order.sort();
            prop_assert!(order.into_iter().eq(0..len));
        }
    }
}

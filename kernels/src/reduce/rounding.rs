//! bf16, the form in which parameters travel and members compute, if the run says so.
//!
//! The rounding is to the nearest, ties to even, or at random. Owners round their computing copies
//! too, never their master weights.

use crate::random::Philox;
use multiversion::multiversion;

/// Rounds every value to the nearest bf16 and keeps it as f32.
#[multiversion(targets = "simd")]
pub fn round_bf16(values: &mut [f32]) {
    for value in values {
        *value = f32::from_bits(u32::from(nearest(*value)) << 16);
    }
}

/// Writes `values` as bf16, little-endian. `bytes` has two for each value.
#[multiversion(targets = "simd")]
pub fn encode_bf16(values: &[f32], bytes: &mut [u8]) {
    assert_eq!(bytes.len(), 2 * values.len(), "two bytes for each value");
    for (value, bytes) in values.iter().zip(bytes.as_chunks_mut().0) {
        *bytes = nearest(*value).to_le_bytes();
    }
}

/// Reads the bytes of [`encode_bf16`]. `bytes` has two for each value. Any bytes are some values.
#[multiversion(targets = "simd")]
pub fn decode_bf16(bytes: &[u8], values: &mut [f32]) {
    assert_eq!(bytes.len(), 2 * values.len(), "two bytes for each value");
    for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
        *value = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
    }
}

/// Rounds every value to one of its two neighbours in bf16 at random, and keeps it as f32. It takes
/// the nearer one more often, so that the mean is the value (Gupta et al., "Deep Learning with
/// Limited Numerical Precision", 2015).
///
/// The draw is a function of the seed, of the value's place in the flat vector, which is `first`
/// and on, and of the value itself. So no cut into shards changes a bit, and every holder of the
/// value rounds it in the same way, at whatever step.
#[multiversion(targets = "simd")]
pub fn round_bf16_stochastically(values: &mut [f32], seed: u64, first: u64) {
    for (index, value) in (first..).zip(values) {
        let bits = value.to_bits();
        let random = Philox::new(seed, Philox::ROUNDING, u64::from(bits)).u32(index) & 0xffff;
        // The cut part carries into the last place as often as it is a part of it.
        let rounded = bits.wrapping_add(random) & 0xffff_0000;
        let is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
        *value = f32::from_bits(if is_nan { u32::from(nearest(*value)) << 16 } else { rounded });
    }
}

/// The bits of the nearest bf16: the upper half of the f32's, plus one if the lower half is more
/// than a half of the last place, or a half beside an odd one. A NaN stays one, and gets quiet.
///
/// Both cases are computed and one is selected, so that the loops above vectorise.
#[inline(always)]
fn nearest(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16;
    let quiet = (bits >> 16) as u16 | 0x40;
    if bits & 0x7fff_ffff > 0x7f80_0000 { quiet } else { rounded }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;
    use proptest::prelude::*;

    #[test]
    fn rounding_by_table() {
        let table = [
            (1.0, 1.0),
            (-0.0, -0.0),
            (1.0 + 1.0 / 256.0, 1.0),       // a tie, to the even one below
            (1.0 + 3.0 / 256.0, 1.015_625), // a tie, to the even one above
            (1.0 + 1.1 / 256.0, 1.007_812_5),
            (f32::MAX, f32::INFINITY),
            (f32::NEG_INFINITY, f32::NEG_INFINITY),
        ];
        for (value, expected) in table {
            let mut rounded = [value];
            round_bf16(&mut rounded);
            assert_eq!(rounded[0].to_bits(), f32::to_bits(expected), "{value}");
        }
        let mut nan = [f32::NAN];
        round_bf16(&mut nan);
        assert!(nan[0].is_nan());
    }

    /// Every upper half, and the lower halves at which rounding changes.
    #[test]
    fn rounding_is_that_of_the_half_crate() {
        for upper in 0..=u16::MAX {
            for lower in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let value = f32::from_bits(u32::from(upper) << 16 | lower);
                assert_eq!(nearest(value), bf16::from_f32(value).to_bits(), "{upper:x} {lower:x}");
            }
        }
    }

    fn stochastic(values: &[f32], first: u64) -> Vec<f32> {
        let mut rounded = values.to_vec();
        round_bf16_stochastically(&mut rounded, 1, first);
        rounded
    }

    #[test]
    fn stochastic_rounding_is_right_on_the_mean_whatever_the_cut() {
        // A quarter of the way from 1 to its neighbour.
        let values = [1.0 + 0.25 / 128.0; 40_000];
        let rounded = stochastic(&values, 0);
        assert!(rounded.iter().all(|value| [1.0, 1.0 + 1.0 / 128.0].contains(value)));
        let up = rounded.iter().filter(|value| **value > 1.0).count();
        // Five standard deviations of 87.
        assert!((9_567..10_433).contains(&up), "{up} of 40,000 went up");
        assert_eq!(stochastic(&values[..100], 300), rounded[300..400]);
        let exact = [0.0, -1.5, f32::INFINITY, f32::NEG_INFINITY];
        assert_eq!(stochastic(&exact, 0), exact);
        assert!(stochastic(&[f32::NAN], 0)[0].is_nan());
    }

    /// A weight that moves is not always rounded the same way.
    #[test]
    fn values_that_differ_in_the_last_place_are_rounded_independently() {
        let base = (1.0f32 + 0.25 / 128.0).to_bits();
        let values = (0..4_000).map(|last| stochastic(&[f32::from_bits(base + last)], 7)[0]);
        let up = values.filter(|value| *value > 1.0).count();
        // Between a quarter and a third of the way, with five standard deviations of 29.
        assert!((1_000..1_330).contains(&up), "{up} of 4,000 went up");
    }

    proptest! {
        #[test]
        fn decoding_gives_the_rounded_values(
            values in prop::collection::vec(any::<f32>(), 0..50),
        ) {
            let mut bytes = vec![0; 2 * values.len()];
            encode_bf16(&values, &mut bytes);
            let mut decoded = vec![0.0; values.len()];
            decode_bf16(&bytes, &mut decoded);
            let mut rounded = values;
            round_bf16(&mut rounded);
            let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&decoded), bits(&rounded));
        }
    }
}

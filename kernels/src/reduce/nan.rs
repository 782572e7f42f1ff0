//! One bit pattern for every NaN.
//!
//! The sign and payload of a NaN from an operation differ between kinds of processors: for `inf -
//! inf` it is negative on x86-64, positive on ARM, all ones on a GPU. Code that compares or digests
//! bits must not see the difference.

/// Returns the value, or the canonical NaN: positive, and without a payload.
#[inline(always)]
pub fn canonical(value: f32) -> f32 {
    if value.is_nan() { f32::from_bits(0x7fc0_0000) } else { value }
}

/// As [`canonical`], for an f64.
#[inline(always)]
pub(crate) fn canonical_f64(value: f64) -> f64 {
    if value.is_nan() { f64::from_bits(0x7ff8_0000_0000_0000) } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nan_gets_the_same_bits() {
        for bits in [0x7fc0_0000, 0xffc0_0000, 0x7fff_ffff, 0x7f80_0001, 0xff80_0001] {
            assert_eq!(canonical(f32::from_bits(bits)).to_bits(), 0x7fc0_0000, "{bits:x}");
        }
        for number in [0.0, -0.0, 1.5, f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(1)] {
            assert_eq!(canonical(number).to_bits(), number.to_bits());
        }
        let wide = canonical_f64(-f64::NAN);
        assert_eq!((wide.to_bits(), canonical_f64(-0.5)), (0x7ff8_0000_0000_0000, -0.5));
    }
}

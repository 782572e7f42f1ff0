//! bf16, the form in which parameters travel and members compute where the run says so.
//!
//! The rounding is to the nearest, ties to even; owners round their computing copies too, never
//! their master weights.

use half::bf16;

/// Rounds every value to the nearest bf16 and keeps it as f32.
pub fn round_bf16(values: &mut [f32]) {
    for value in values {
        *value = bf16::from_f32(*value).to_f32();
    }
}

/// Writes `values` as bf16, little-endian. `bytes` has two for each value.
pub fn encode_bf16(values: &[f32], bytes: &mut [u8]) {
    assert_eq!(bytes.len(), 2 * values.len(), "two bytes for each value");
    for (value, bytes) in values.iter().zip(bytes.as_chunks_mut().0) {
        *bytes = bf16::from_f32(*value).to_le_bytes();
    }
}

/// Reads what [`encode_bf16`] wrote. `bytes` has two for each value; any bytes are some values.
pub fn decode_bf16(bytes: &[u8], values: &mut [f32]) {
    assert_eq!(bytes.len(), 2 * values.len(), "two bytes for each value");
    for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
        *value = bf16::from_le_bytes(*bytes).to_f32();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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

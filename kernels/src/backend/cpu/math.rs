//! Elementary functions and sums for f32 loops that the compiler vectorises.
//!
//! All functions are inlined into loops that are compiled for several instruction sets. They use
//! additions, multiplications, divisions and integer operations only, each rounded once, so every
//! instruction set gives the same bits.

/// The number of partial sums: a whole AVX-512 register. Narrower machines use several registers.
pub const LANES: usize = 16;

/// `e^x` for `x` in -87 to 88, and the bound's value beyond. Relative error below 2e-7 (measured
/// against f64). A NaN stays one.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`. `e^r` is a polynomial of degree 7 (Cephes, `expf`).
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer, which then stands in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    let x = x.clamp(-87.0, 88.0);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN_2_HIGH - n * LN_2_LOW;
    let p = polynomial(r, EXP);
    let mantissa = p * (r * r) + r + 1.0;
    mantissa * f32::from_bits(shifted.to_bits().wrapping_add(127) << 23)
}

/// The natural logarithm of a positive normal number. Error below 2e-7 relative, or absolute where
/// the result is small. Infinity and NaN stay what they are.
///
/// `x = 2^e m` with `m` from `sqrt(1/2)` to `sqrt(2)`, then a polynomial in `m - 1` (Cephes,
/// `logf`).
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    const SQRT_HALF_BITS: u32 = 0x3f35_04f3;
    if !x.is_finite() {
        return x;
    }
    let bits = x.to_bits().wrapping_sub(SQRT_HALF_BITS);
    let e = (bits as i32 >> 23) as f32;
    let f = f32::from_bits((bits & 0x007f_ffff) + SQRT_HALF_BITS) - 1.0;
    let p = polynomial(f, LN);
    let square = f * f;
    let tail = p * f * square + e * LN_2_LOW - 0.5 * square;
    f + tail + e * LN_2_HIGH
}

/// `ln 2` in two parts. Products of the first with small integers are exact.
const LN_2_HIGH: f32 = 355.0 / 512.0;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// Coefficients of `(e^r - 1 - r) / r^2`, the highest power first.
const EXP: [f32; 6] =
    [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_6e-1, 0.5];

/// Coefficients of `(ln(1 + f) - f + f^2 / 2) / f^3`, the highest power first.
const LN: [f32; 9] = [
    7.037_683_6e-2,
    -1.151_461e-1,
    1.167_699_8e-1,
    -1.242_014_1e-1,
    1.424_932_3e-1,
    -1.666_805_7e-1,
    2.000_071_4e-1,
    -2.499_999_4e-1,
    3.333_333e-1,
];

/// Horner's rule.
#[inline(always)]
fn polynomial<const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut sum = 0.0;
    for coefficient in coefficients {
        sum = sum * x + coefficient;
    }
    sum
}

/// `K` sums over equally long slices: `term` maps the elements of one index to the terms of the
/// sums. Index `i` goes to lane `i % LANES`. The lanes are added as a balanced tree.
#[inline(always)]
pub fn sums<const N: usize, const K: usize>(
    slices: [&[f32]; N],
    term: impl Fn([f32; N]) -> [f32; K],
) -> [f32; K] {
    assert!(slices.iter().all(|slice| slice.len() == slices[0].len()), "equally long");
    let parts = slices.map(|slice| slice.as_chunks::<LANES>());
    let mut lanes = [[0.0; LANES]; K];
    for chunk in 0..parts[0].0.len() {
        let chunks = parts.map(|(chunks, _)| &chunks[chunk]);
        for lane in 0..LANES {
            let terms = term(chunks.map(|chunk| chunk[lane]));
            for (lanes, term) in lanes.iter_mut().zip(terms) {
                lanes[lane] += term;
            }
        }
    }
    for lane in 0..parts[0].1.len() {
        let terms = term(parts.map(|(_, rest)| rest[lane]));
        for (lanes, term) in lanes.iter_mut().zip(terms) {
            lanes[lane] += term;
        }
    }
    lanes.map(|lanes| fold(lanes, |a, b| a + b))
}

/// The largest element. It ignores NaNs.
#[inline(always)]
pub fn largest(values: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, *value);
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane = larger(*lane, *value);
    }
    fold(lanes, larger)
}

#[inline(always)]
fn fold(mut lanes: [f32; LANES], combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] = combine(lanes[lane], lanes[lane + width]);
        }
        width /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use multiversion::multiversion;
    use proptest::prelude::*;

    #[multiversion(targets = "simd")]
    fn widest(values: &[f32], exps: &mut [f32]) -> [f32; 2] {
        for (exp_of, value) in exps.iter_mut().zip(values) {
            *exp_of = exp(*value);
        }
        sums([values, exps], |[x, e]| [x * e, x + e])
    }

    fn narrowest(values: &[f32]) -> (Vec<f32>, [f32; 2]) {
        let exps: Vec<f32> = values.iter().map(|value| exp(*value)).collect();
        let totals = sums([values, &exps], |[x, e]| [x * e, x + e]);
        (exps, totals)
    }

    #[test]
    fn exp_is_within_its_stated_error() {
        let worst = (-870_000..880_000)
            .map(|i| i as f32 * 1e-4)
            .map(|x| (f64::from(exp(x)) / f64::from(x).exp() - 1.0).abs())
            .fold(0.0, f64::max);
        assert!(worst < 2e-7, "relative error {worst:e}");
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-1e9), exp(-87.0));
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn ln_is_within_its_stated_error() {
        let worst = (1..2_000_000)
            .map(|i| (i as f32 * 1e-4).powi(3))
            .map(|x| (x, f64::from(x).ln()))
            .map(|(x, exact)| (f64::from(ln(x)) - exact).abs() / exact.abs().max(1.0))
            .fold(0.0, f64::max);
        assert!(worst < 2e-7, "error {worst:e}");
        assert_eq!(ln(1.0), 0.0);
        assert!(ln(f32::NAN).is_nan());
    }

    proptest! {
        #[test]
        fn bits_do_not_depend_on_the_instruction_set(
            values in prop::collection::vec(-100f32..100.0, 0..200)
        ) {
            let (exps, totals) = narrowest(&values);
            let mut wide = vec![0.0; values.len()];
            let wide_totals = widest(&values, &mut wide);
            prop_assert_eq!(wide, exps);
            prop_assert_eq!(wide_totals.map(f32::to_bits), totals.map(f32::to_bits));
        }

        #[test]
        fn largest_is_the_largest(values in prop::collection::vec(-1f32..1.0, 1..70)) {
            prop_assert_eq!(largest(&values), values.iter().copied().fold(-2.0, f32::max));
        }
    }
}

//! Random numbers that depend only on their purpose.
//!
//! Philox4x32-10 is a keyed bijection of 128-bit counters (Salmon, Moraes, Dror, Shaw: "Parallel
//! Random Numbers: As Easy as 1, 2, 3", SC 2011). The seed is the key. Purpose, step and index make
//! the counter. So a number is a pure function of these four: any worker, thread or device can
//! compute any of them, in any order, and gets the same bits. This code never calls the platform's
//! mathematical library, which differs between platforms.
//!
//! This file does not know the use of its numbers.

/// A stream of random numbers, one for each index, for one seed, purpose and step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Philox {
    key: [u32; 2],
    /// The upper half of the counter. The lower half is the index.
    stream: [u32; 2],
}

impl Philox {
    /// Purpose: the values of parameters before the first step. Index: the parameter.
    pub const INITIAL_VALUES: u32 = 0;
    /// Purpose: which activations a step drops. Index: the activation.
    pub const DROPOUT: u32 = 1;
    /// Purpose: stochastic rounding. Index: the parameter. Its value stands for the step.
    pub const ROUNDING: u32 = 2;
    /// Purpose: the order of the samples in an epoch, which stands for the step. Index: up to the
    /// permutation.
    pub const PERMUTATION: u32 = 3;
    /// The first purpose that is free for programs. Those below are Everstep's own.
    pub const USER: u32 = 1 << 10;

    /// The stream of `seed`, `purpose` and `step`. Streams are distinct for purposes below 2^16 and
    /// steps below 2^48.
    #[inline(always)]
    pub fn new(seed: u64, purpose: u32, step: u64) -> Self {
        Self { key: halves(seed), stream: halves(step ^ u64::from(purpose) << 48) }
    }

    /// 32 random bits. They are the lower half of [`Philox::u64`] of the same index.
    #[inline(always)]
    pub fn u32(&self, index: u64) -> u32 {
        self.block(index)[0]
    }

    /// The 64 random bits at this index.
    pub fn u64(&self, index: u64) -> u64 {
        let [low, high, ..] = self.block(index);
        u64::from(high) << 32 | u64::from(low)
    }

    /// Uniform in `[0, 1)`, a multiple of 2^-24.
    pub fn unit(&self, index: u64) -> f32 {
        (self.u32(index) >> 8) as f32 * (1.0 / (1 << 24) as f32)
    }

    /// Standard normal, never beyond 8.3 deviations.
    pub fn normal(&self, index: u64) -> f32 {
        // The half keeps both 0 and 1 out. With 52 bits the sum is exact.
        let probability = ((self.u64(index) >> 12) as f64 + 0.5) * (1.0 / (1u64 << 52) as f64);
        normal_quantile(probability) as f32
    }

    #[inline(always)]
    fn block(&self, index: u64) -> [u32; 4] {
        let [low, high] = halves(index);
        philox4x32_10([low, high, self.stream[0], self.stream[1]], self.key)
    }
}

#[inline(always)]
fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

/// The bijection of the paper's section 5, ten rounds. Inlined, so that loops over indices
/// vectorise.
#[inline(always)]
fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut a, mut b, mut c, mut d] = counter;
    let [mut left, mut right] = key;
    for _ in 0..10 {
        let first = u64::from(a) * 0xD251_1F53;
        let second = u64::from(c) * 0xCD9E_8D57;
        a = (second >> 32) as u32 ^ b ^ left;
        c = (first >> 32) as u32 ^ d ^ right;
        b = second as u32;
        d = first as u32;
        left = left.wrapping_add(0x9E37_79B9);
        right = right.wrapping_add(0xBB67_AE85);
    }
    [a, b, c, d]
}

/// The inverse of the normal distribution function, about seven correct digits (Wichura: Algorithm
/// AS 241, routine PPND7, Applied Statistics 37, 1988). `probability` lies strictly between 0
/// and 1.
fn normal_quantile(probability: f64) -> f64 {
    let centred = probability - 0.5;
    if centred.abs() <= 0.425 {
        let r = 0.180625 - centred * centred;
        let above = [3.3871327179, 50.434271938, 159.29113202, 59.109374720];
        let below = [1.0, 17.895169469, 78.757757664, 67.187563600];
        return centred * polynomial(above, r) / polynomial(below, r);
    }
    let r = (-ln(probability.min(1.0 - probability))).sqrt();
    let tail = if r <= 5.0 {
        let above = [1.4234372777, 2.7568153900, 1.3067284816, 0.17023821103];
        polynomial(above, r - 1.6) / polynomial([1.0, 0.73700164250, 0.12021132975], r - 1.6)
    } else {
        let above = [6.6579051150, 3.0812263860, 0.42868294337, 0.017337203997];
        polynomial(above, r - 5.0) / polynomial([1.0, 0.24197894225, 0.012258202635], r - 5.0)
    };
    tail.copysign(centred)
}

/// The natural logarithm of a positive normal number, to about 1e-15: with `value = m 2^e` and `m`
/// about 1, `ln m = 2 artanh((m - 1) / (m + 1))` by its series.
fn ln(value: f64) -> f64 {
    // The mantissa of the square root of 1/2 as the seam: m then lies in [0.707, 1.414).
    const SEAM: u64 = 0x3FE6_A09E_667F_3BCD;
    let above = value.to_bits().wrapping_sub(SEAM) as i64;
    let exponent = above >> 52;
    let mantissa = f64::from_bits(value.to_bits().wrapping_sub((exponent << 52) as u64));
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    // s^2 is below 0.0295: the eleventh term is below 1e-17.
    let series: [f64; 10] = std::array::from_fn(|term| 1.0 / (2 * term + 1) as f64);
    2.0 * s * polynomial(series, s * s) + exponent as f64 * std::f64::consts::LN_2
}

/// A polynomial with coefficients in ascending order.
fn polynomial<const N: usize>(coefficients: [f64; N], x: f64) -> f64 {
    coefficients.iter().rev().fold(0.0, |sum, coefficient| sum * x + coefficient)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bijection_gives_the_known_answers_of_random123() {
        let known = [
            ([0; 4], [0; 2], [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]),
            ([!0; 4], [!0; 2], [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]),
            (
                [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344],
                [0xa4093822, 0x299f31d0],
                [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1],
            ),
        ];
        for (counter, key, answer) in known {
            assert_eq!(philox4x32_10(counter, key), answer);
        }
    }

    #[test]
    fn seed_purpose_step_and_index_each_change_the_number() {
        let number = |seed, purpose, step, index| Philox::new(seed, purpose, step).u64(index);
        let all = [
            number(1, 0, 0, 0),
            number(1 << 32, 0, 0, 0),
            number(0, Philox::DROPOUT, 0, 0),
            number(0, 0, 1, 0),
            number(0, 0, 1 << 32, 0),
            number(0, 0, 0, 1),
            number(0, 0, 0, 1 << 32),
            number(0, 0, 0, 0),
        ];
        for (at, left) in all.iter().enumerate() {
            assert!(all[at + 1..].iter().all(|right| right != left), "{at} repeats");
        }
        assert_eq!(number(0, 0, 0, 0), 0xe169c58d_6627e8d5);
    }

    #[test]
    fn ln_agrees_with_the_platform() {
        for exponent in -60..60 {
            for part in 0..64 {
                let value = 2f64.powi(exponent) * (1.0 + f64::from(part) / 64.0);
                let error = (ln(value) - value.ln()).abs();
                assert!(error <= 4e-16 * value.ln().abs().max(1.0), "ln {value}: {error}");
            }
        }
    }

    /// The normal distribution function by its series, for |x| of a few deviations.
    fn distribution(x: f64) -> f64 {
        let mut term = x;
        let mut sum = x;
        for n in 1..200 {
            term *= x * x / f64::from(2 * n + 1);
            sum += term;
        }
        0.5 + sum * (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt()
    }

    #[test]
    fn the_quantile_inverts_the_distribution_function() {
        for tick in -50..=50 {
            let x = f64::from(tick) / 10.0;
            let error = (normal_quantile(distribution(x)) - x).abs();
            assert!(error < 1e-6 * x.abs().max(1.0), "{x}: {error}");
        }
        // From tables: the series above cannot tell these values from 0 and 1.
        assert!((normal_quantile(1e-9) + 5.997807015).abs() < 1e-6);
        assert!((normal_quantile(1e-15) + 7.941345326).abs() < 1e-6);
    }

    #[test]
    fn units_fill_the_interval_evenly() {
        let stream = Philox::new(3, Philox::DROPOUT, 9);
        let mut tenths = [0; 10];
        for index in 0..100_000 {
            let unit = stream.unit(index);
            assert!((0.0..1.0).contains(&unit));
            tenths[(unit * 10.0) as usize] += 1;
        }
        assert!(tenths.iter().all(|count| (9_600..10_400).contains(count)), "{tenths:?}");
    }

    #[test]
    fn normals_have_the_moments_of_the_standard_normal() {
        let stream = Philox::new(5, Philox::INITIAL_VALUES, 0);
        let count = 200_000;
        let mut moments = [0.0; 4];
        for index in 0..count {
            let value = f64::from(stream.normal(index));
            for (power, moment) in (1..).zip(&mut moments) {
                *moment += value.powi(power) / count as f64;
            }
        }
        // Five standard errors of each moment: variances 1, 2, 15, 96 over the count.
        for (moment, (mean, variance)) in
            moments.iter().zip([(0.0, 1.0), (1.0, 2.0), (0.0, 15.0), (3.0, 96.0_f64)])
        {
            assert!((moment - mean).abs() < 5.0 * (variance / count as f64).sqrt(), "{moments:?}");
        }
    }
}

//! Adam's rule: a running mean of gradients, divided by the root of that of their squares.
//!
//! m, v: the two means, which start at zero and are corrected for it by `1 - beta^step`.

use super::UpdateInputs;
use crate::reduce::canonical;
use multiversion::multiversion;

/// The factors of one step, the same for every element. They are made in f64 and rounded once.
pub(super) struct Step {
    clip: f32,
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    /// Learning rate over the first mean's correction.
    pub(super) rate: f32,
    /// One over the root of the second mean's correction.
    pub(super) root: f32,
}

impl Step {
    pub(super) fn new([beta1, beta2]: [f32; 2], epsilon: f32, inputs: &UpdateInputs) -> Self {
        let correction = |beta: f32| 1.0 - power(f64::from(beta), inputs.step);
        Self {
            clip: inputs.clip,
            beta1,
            beta2,
            epsilon,
            rate: (f64::from(inputs.learning_rate) / correction(beta1)) as f32,
            root: (1.0 / correction(beta2).sqrt()) as f32,
        }
    }

    /// `[weights, m, v]`, all of the gradient's length.
    pub(super) fn update(&self, [weights, mean, square]: [&mut [f32]; 3], gradient: &[f32]) {
        update(self, weights, mean, square, gradient);
    }
}

#[multiversion(targets = "simd")]
fn update(
    step: &Step,
    weights: &mut [f32],
    mean: &mut [f32],
    square: &mut [f32],
    gradient: &[f32],
) {
    for (((w, m), v), g) in weights.iter_mut().zip(mean).zip(square).zip(gradient) {
        let g = g * step.clip;
        *m = canonical(step.beta1 * *m + (1.0 - step.beta1) * g);
        *v = canonical(step.beta2 * *v + (1.0 - step.beta2) * (g * g));
        *w = canonical(*w - step.rate * *m / (v.sqrt() * step.root + step.epsilon));
    }
}

/// `base` to the power of `exponent` by squaring. The platform's own function has other bits on
/// other platforms.
pub fn power(mut base: f64, mut exponent: u64) -> f64 {
    let mut result = 1.0;
    while exponent > 0 {
        if exponent % 2 == 1 {
            result *= base;
        }
        base *= base;
        exponent /= 2;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_those_of_repeated_multiplication() {
        for base in [0.0, 0.5, 0.9, 0.999] {
            let mut plain = 1.0;
            for exponent in 0..100 {
                assert!(
                    (power(base, exponent) - plain).abs() <= 1e-14 * plain,
                    "{base}^{exponent}"
                );
                plain *= base;
            }
        }
        assert_eq!(power(0.999, u64::MAX), 0.0);
    }
}

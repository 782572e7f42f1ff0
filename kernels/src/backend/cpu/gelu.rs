//! GELU in its tanh form, written with the logistic function: `(1 + tanh u) / 2 = 1 / (1 + e^-2u)`,
//! so there is no cancellation for negative inputs, and no tanh to compute.

use super::math::exp;
use multiversion::multiversion;

/// `2 sqrt(2 / pi)`.
const FACTOR: f32 = 1.595_769_2;
const CUBIC: f32 = 0.044_715;

/// Writes GELU of `x` into `y`.
#[multiversion(targets = "simd")]
pub fn forward(x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "elementwise");
    for (x, y) in x.iter().zip(y) {
        *y = x * gate(*x);
    }
}

/// Multiplies `dy` by the derivative of GELU at `x`.
#[multiversion(targets = "simd")]
pub fn backward(x: &[f32], dy: &mut [f32]) {
    assert_eq!(x.len(), dy.len(), "elementwise");
    for (x, dy) in x.iter().zip(dy) {
        let gate = gate(*x);
        let slope = FACTOR * (1.0 + 3.0 * CUBIC * x * x);
        *dy *= gate + x * gate * (1.0 - gate) * slope;
    }
}

/// The share of `x` that passes.
#[inline(always)]
fn gate(x: f32) -> f32 {
    1.0 / (1.0 + exp(-FACTOR * x * (1.0 + CUBIC * x * x)))
}

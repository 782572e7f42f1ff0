//! Lion's rule: every weight moves by the learning rate, in the direction of a mean of gradients.

use super::UpdateInputs;
use crate::reduce::canonical;
use multiversion::multiversion;

/// `weights` and `mean`, the running mean of gradients, are of the gradient's length.
#[multiversion(targets = "simd")]
pub(super) fn update(
    weights: &mut [f32],
    mean: &mut [f32],
    gradient: &[f32],
    betas: [f32; 2],
    inputs: &UpdateInputs<'_>,
) {
    let [beta1, beta2] = betas;
    for ((w, m), g) in weights.iter_mut().zip(mean).zip(gradient) {
        let g = g * inputs.clip;
        let moved = inputs.learning_rate * sign(beta1 * *m + (1.0 - beta1) * g);
        *w = canonical(*w - moved);
        *m = canonical(beta2 * *m + (1.0 - beta2) * g);
    }
}

/// -1, 0 or 1. For zero and for NaN it is zero, unlike [`f32::signum`].
#[inline(always)]
fn sign(value: f32) -> f32 {
    f32::from(value > 0.0) - f32::from(value < 0.0)
}

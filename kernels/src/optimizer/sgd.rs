//! Stochastic gradient descent, with or without heavy-ball momentum.

use super::UpdateInputs;
use crate::reduce::canonical;
use multiversion::multiversion;

/// `weights` and `velocity` are of the gradient's length.
#[multiversion(targets = "simd")]
pub(super) fn update_with_momentum(
    weights: &mut [f32],
    velocity: &mut [f32],
    gradient: &[f32],
    momentum: f32,
    inputs: &UpdateInputs<'_>,
) {
    for ((w, v), g) in weights.iter_mut().zip(velocity).zip(gradient) {
        *v = canonical(momentum * *v + g * inputs.clip);
        *w = canonical(*w - inputs.learning_rate * *v);
    }
}

/// `weights` are of the gradient's length.
#[multiversion(targets = "simd")]
pub(super) fn update(weights: &mut [f32], gradient: &[f32], inputs: &UpdateInputs<'_>) {
    for (w, g) in weights.iter_mut().zip(gradient) {
        *w = canonical(*w - inputs.learning_rate * (g * inputs.clip));
    }
}

//! Stochastic gradient descent, with or without heavy-ball momentum.

use super::Apply;
use crate::reduce::canonical;
use multiversion::multiversion;

/// Weights and velocity, both of the gradient's length.
#[multiversion(targets = "simd")]
pub(super) fn update_with_momentum(
    state: (&mut [f32], &mut [f32]),
    gradient: &[f32],
    momentum: f32,
    apply: &Apply<'_>,
) {
    let (weights, velocity) = state;
    for ((w, v), g) in weights.iter_mut().zip(velocity).zip(gradient) {
        *v = canonical(momentum * *v + g * apply.clip);
        *w = canonical(*w - apply.learning_rate * *v);
    }
}

/// `weights` are of the gradient's length.
#[multiversion(targets = "simd")]
pub(super) fn update(weights: &mut [f32], gradient: &[f32], apply: &Apply<'_>) {
    for (w, g) in weights.iter_mut().zip(gradient) {
        *w = canonical(*w - apply.learning_rate * (g * apply.clip));
    }
}

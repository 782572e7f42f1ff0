//! Optimizers that take only the direction of a step from a gradient.
//!
//! w: weight, g: gradient, m: the mean of gradients, s: the size of the next step.

use multiversion::multiversion;

use super::GroupStep;

/// Chen et al.: "Symbolic Discovery of Optimization Algorithms" (NeurIPS 2023), algorithm 2.
#[multiversion(targets = "simd")]
pub(super) fn lion(step: &GroupStep<'_>, state: [&mut [f32]; 2], gradient: &[f32]) {
    let [weights, mean] = state;
    let [beta1, beta2] = step.betas.map(|beta| beta as f32);
    let [new1, new2] = step.betas.map(|beta| (1.0 - beta) as f32);
    let ([kept, _], rate) = (step.decay(), step.rate as f32);
    for ((w, m), g) in weights.iter_mut().zip(mean).zip(gradient) {
        *w = *w * kept - rate * sign(beta1 * *m + new1 * g);
        *m = beta2 * *m + new2 * g;
    }
}

/// Riedmiller, Braun: "A Direct Adaptive Method for Faster Backpropagation Learning: The RPROP
/// Algorithm" (ICNN 1993). The learning rate is the size of the first step.
#[multiversion(targets = "simd")]
pub(super) fn rprop(step: &GroupStep<'_>, state: [&mut [f32]; 3], gradient: &[f32]) {
    let [weights, before, size] = state;
    let [shrinks, grows] = step.settings.factors.map(|factor| factor as f32);
    let [least, most] = step.settings.sizes.map(|size| size as f32);
    let (rate, is_first) = (step.rate as f32, step.number == 1);
    for (((w, p), s), g) in weights.iter_mut().zip(before).zip(size).zip(gradient) {
        let turn = sign(*g * *p);
        let factor = if turn > 0.0 { grows } else { shrinks };
        let factor = if turn == 0.0 { 1.0 } else { factor };
        *s = (if is_first { rate } else { *s } * factor).max(least).min(most);
        // After a change of sign the weight stays, and the next gradient counts as the first.
        *p = if turn < 0.0 { 0.0 } else { *g };
        *w -= sign(*p) * *s;
    }
}

/// -1, 0 or 1. For zero and for NaN it is zero, unlike [`f32::signum`].
#[inline(always)]
fn sign(value: f32) -> f32 {
    f32::from(value > 0.0) - f32::from(value < 0.0)
}

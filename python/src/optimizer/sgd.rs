//! Stochastic gradient descent, with PyTorch's momentum: the rate is a factor of the buffer.
//!
//! w: weight, g: gradient, b: the buffer of momentum, a: the mean of the weights.

use multiversion::multiversion;

use super::{GroupStep, with_decay};

#[multiversion(targets = "simd")]
pub(super) fn plain(step: &GroupStep<'_>, weights: &mut [f32], gradient: &[f32]) {
    let (rate, share) = (-step.rate as f32, step.decay()[1]);
    for (w, g) in weights.iter_mut().zip(gradient) {
        *w = rate.mul_add(with_decay(*g, share, *w), *w);
    }
}

/// Sutskever et al.: "On the importance of initialization and momentum in deep learning" (ICML
/// 2013).
#[multiversion(targets = "simd")]
pub(super) fn with_momentum(step: &GroupStep<'_>, state: [&mut [f32]; 2], gradient: &[f32]) {
    let [weights, buffer] = state;
    let (rate, share, momentum) = (-step.rate as f32, step.decay()[1], step.momentum as f32);
    let (new, nesterov) = ((1.0 - step.settings.dampening) as f32, step.settings.nesterov);
    let is_first = step.number == 1;
    for ((w, b), g) in weights.iter_mut().zip(buffer).zip(gradient) {
        let g = with_decay(*g, share, *w);
        *b = if is_first { g } else { new.mul_add(g, momentum * *b) };
        let change = if nesterov { momentum.mul_add(*b, g) } else { *b };
        *w = rate.mul_add(change, *w);
    }
}

/// Polyak, Juditsky: "Acceleration of stochastic approximation by averaging" (SIAM Journal on
/// Control and Optimization, 1992).
#[multiversion(targets = "simd")]
pub(super) fn averaged(step: &GroupStep<'_>, state: [&mut [f32]; 2], gradient: &[f32]) {
    let [weights, mean] = state;
    let [rate, kept, averaged] = step.schedule.map(|value| value as f32);
    let share = step.decay()[1];
    for ((w, a), g) in weights.iter_mut().zip(mean).zip(gradient) {
        let g = with_decay(*g, share, *w);
        *w = (-rate).mul_add(g, *w * kept);
        *a = if averaged == 1.0 { *w } else { (*w - *a).mul_add(averaged, *a) };
    }
}

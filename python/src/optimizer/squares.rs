//! Steps over the root of squared gradients.
//!
//! w: weight, g: gradient, v: the mean or the sum of squared gradients, d: the mean of squared
//! changes, m: the mean of gradients, b: the buffer of momentum.

use multiversion::multiversion;

use super::{GroupStep, with_decay};

/// Weights and the mean of squares. Then the buffer of momentum and the mean of gradients, if the
/// rule has them.
type RmspropState<'a> = ([&'a mut [f32]; 2], [Option<&'a mut [f32]>; 2]);

/// Tieleman, Hinton: "Lecture 6.5 - rmsprop" (2012), and Graves: "Generating Sequences With
/// Recurrent Neural Networks" (2013) where it is centered.
#[multiversion(targets = "simd")]
pub(super) fn rmsprop(step: &GroupStep<'_>, state: RmspropState<'_>, gradient: &[f32]) {
    let ([weights, square], [mut buffer, mut mean]) = state;
    let settings = step.settings;
    let (rate, share) = (-step.rate as f32, step.decay()[1]);
    let (kept, new) = (settings.kept_squares as f32, (1.0 - settings.kept_squares) as f32);
    let (momentum, epsilon) = (step.momentum as f32, settings.epsilon as f32);
    for (at, ((w, v), g)) in weights.iter_mut().zip(square).zip(gradient).enumerate() {
        let g = with_decay(*g, share, *w);
        *v = kept * *v + new * g * g;
        let mut spread = *v;
        if let Some(m) = mean.as_mut().filter(|_| settings.is_centered).map(|mean| &mut mean[at]) {
            *m += new * (g - *m);
            spread -= *m * *m;
        }
        let mut change = g / (spread.sqrt() + epsilon);
        if let Some(b) = buffer.as_mut().filter(|_| momentum != 0.0).map(|it| &mut it[at]) {
            *b = momentum * *b + change;
            change = *b;
        }
        *w += rate * change;
    }
}

/// Duchi, Hazan, Singer: "Adaptive Subgradient Methods" (JMLR 2011).
#[multiversion(targets = "simd")]
pub(super) fn adagrad(step: &GroupStep<'_>, state: [&mut [f32]; 2], gradient: &[f32]) {
    let [weights, sum] = state;
    let settings = step.settings;
    let age = (step.number - 1) as f64;
    let rate = -(step.rate / (1.0 + age * settings.rate_decay)) as f32;
    let (share, epsilon) = (step.decay()[1], settings.epsilon as f32);
    let first = if step.number == 1 { settings.first_sum as f32 } else { 0.0 };
    for ((w, v), g) in weights.iter_mut().zip(sum).zip(gradient) {
        let g = with_decay(*g, share, *w);
        *v = *v + first + g * g;
        *w += rate * (g / (v.sqrt() + epsilon));
    }
}

/// Zeiler: "ADADELTA: An Adaptive Learning Rate Method" (2012).
#[multiversion(targets = "simd")]
pub(super) fn adadelta(step: &GroupStep<'_>, state: [&mut [f32]; 3], gradient: &[f32]) {
    let [weights, square, change] = state;
    let settings = step.settings;
    let (rate, share) = (-step.rate as f32, step.decay()[1]);
    let (kept, new) = (settings.kept_squares as f32, (1.0 - settings.kept_squares) as f32);
    let epsilon = settings.epsilon as f32;
    for (((w, v), d), g) in weights.iter_mut().zip(square).zip(change).zip(gradient) {
        let g = with_decay(*g, share, *w);
        *v = kept * *v + new * g * g;
        let delta = (*d + epsilon).sqrt() / (*v + epsilon).sqrt() * g;
        *d = kept * *d + new * delta * delta;
        *w += rate * delta;
    }
}

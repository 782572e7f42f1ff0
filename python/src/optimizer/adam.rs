//! Adam and its variants: steps along a mean of gradients.
//!
//! w: weight, g: gradient, m: the mean of gradients, v: the mean of their squares, n: the greatest
//! v so far, u: the greatest gradient of late.

use everstep_kernels::optimizer::power;
use multiversion::multiversion;

use super::{GroupStep, with_decay};

/// The factors that all variants share, made in f64 and rounded once.
struct AdamFactors {
    /// The factor of a weight that decays by itself.
    kept: f32,
    /// The share of its weight that a gradient gets.
    share: f32,
    new_mean: f32,
    beta2: f32,
    new_square: f32,
    epsilon: f32,
}

impl AdamFactors {
    fn of(step: &GroupStep<'_>) -> Self {
        let ([kept, share], [beta1, beta2]) = (step.decay(), step.betas);
        Self {
            kept,
            share,
            new_mean: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            new_square: (1.0 - beta2) as f32,
            epsilon: step.settings.epsilon as f32,
        }
    }

    /// The new mean of gradients and of their squares.
    #[inline(always)]
    fn means(&self, g: f32, [m, v]: [f32; 2]) -> [f32; 2] {
        [self.new_mean.mul_add(g - m, m), (self.new_square * g).mul_add(g, self.beta2 * v)]
    }
}

/// Updates the means and the weights. `update` gives a weight from its decayed value, its gradient,
/// and the new means of gradients and of their squares.
#[inline(always)]
fn for_each_weight(
    factors: &AdamFactors,
    [weights, mean, square]: [&mut [f32]; 3],
    gradient: &[f32],
    update: impl Fn(f32, f32, [f32; 2]) -> f32,
) {
    for (((w, m), v), g) in weights.iter_mut().zip(mean).zip(square).zip(gradient) {
        let g = with_decay(*g, factors.share, *w);
        let kept = *w * factors.kept;
        [*m, *v] = factors.means(g, [*m, *v]);
        *w = update(kept, g, [*m, *v]);
    }
}

/// The corrections of the means' bias, `1 - beta^number`.
fn corrections(step: &GroupStep<'_>) -> [f64; 2] {
    step.betas.map(|beta| 1.0 - power(beta, step.number))
}

/// Kingma, Ba: "Adam" (ICLR 2015), and Loshchilov, Hutter: "Decoupled Weight Decay Regularization"
/// (ICLR 2019), with the operations of PyTorch's fused kernel.
pub(super) fn adam(step: &GroupStep<'_>, state: [&mut [f32]; 3], gradient: &[f32]) {
    let [first, second] = corrections(step);
    let (rate, root) = (-(step.rate / first) as f32, second.sqrt() as f32);
    adam_loop(&AdamFactors::of(step), rate, root, state, gradient);
}

#[multiversion(targets = "simd")]
fn adam_loop(
    factors: &AdamFactors,
    rate: f32,
    root: f32,
    state: [&mut [f32]; 3],
    gradient: &[f32],
) {
    for_each_weight(factors, state, gradient, |kept, _, [m, v]| {
        kept + (rate * m) / (v.sqrt() / root + factors.epsilon)
    });
}

/// Reddi, Kale, Kumar: "On the Convergence of Adam and Beyond" (ICLR 2018), with the operations of
/// PyTorch's fused kernel. The last part of the state is the greatest mean of squares so far.
pub(super) fn amsgrad(step: &GroupStep<'_>, state: [&mut [f32]; 4], gradient: &[f32]) {
    let [first, second] = corrections(step);
    let (rate, root) = (-(step.rate / first) as f32, second.sqrt() as f32);
    amsgrad_loop(&AdamFactors::of(step), rate, root, state, gradient);
}

#[multiversion(targets = "simd")]
fn amsgrad_loop(
    factors: &AdamFactors,
    rate: f32,
    root: f32,
    [weights, mean, square, greatest]: [&mut [f32]; 4],
    gradient: &[f32],
) {
    let means = mean.iter_mut().zip(square).zip(greatest);
    for ((w, ((m, v), n)), g) in weights.iter_mut().zip(means).zip(gradient) {
        let g = with_decay(*g, factors.share, *w);
        let kept = *w * factors.kept;
        [*m, *v] = factors.means(g, [*m, *v]);
        *n = n.max(*v);
        *w = kept + (rate * *m) / (n.sqrt() / root + factors.epsilon);
    }
}

/// Dozat: "Incorporating Nesterov Momentum into Adam" (ICLR workshop 2016).
pub(super) fn nadam(step: &GroupStep<'_>, state: [&mut [f32]; 3], gradient: &[f32]) {
    let [momentum, next, product] = step.schedule;
    let of_gradient = -(step.rate * (1.0 - momentum) / (1.0 - product)) as f32;
    let of_mean = -(step.rate * next / (1.0 - product * next)) as f32;
    let [_, second] = corrections(step);
    nadam_loop(&AdamFactors::of(step), [of_gradient, of_mean], second as f32, state, gradient);
}

#[multiversion(targets = "simd")]
fn nadam_loop(
    factors: &AdamFactors,
    [of_gradient, of_mean]: [f32; 2],
    second: f32,
    state: [&mut [f32]; 3],
    gradient: &[f32],
) {
    for_each_weight(factors, state, gradient, |kept, g, [m, v]| {
        let root = (v / second).sqrt() + factors.epsilon;
        kept + of_gradient * (g / root) + of_mean * (m / root)
    });
}

/// Liu et al.: "On the Variance of the Adaptive Learning Rate and Beyond" (ICLR 2020).
pub(super) fn radam(step: &GroupStep<'_>, state: [&mut [f32]; 3], gradient: &[f32]) {
    let [first, second] = corrections(step);
    let (beta2, number) = (step.betas[1], step.number as f64);
    let longest = 2.0 / (1.0 - beta2) - 1.0;
    let length = longest - 2.0 * number * (1.0 - second) / second;
    let is_rectified = length > 5.0;
    let rectified =
        (length - 4.0) * (length - 2.0) * longest / ((longest - 4.0) * (longest - 2.0) * length);
    let factor = if is_rectified { rectified.sqrt() * second.sqrt() } else { 1.0 };
    let rate = -(step.rate / first * factor) as f32;
    radam_loop(&AdamFactors::of(step), rate, is_rectified, state, gradient);
}

#[multiversion(targets = "simd")]
fn radam_loop(
    factors: &AdamFactors,
    rate: f32,
    is_rectified: bool,
    state: [&mut [f32]; 3],
    gradient: &[f32],
) {
    for_each_weight(factors, state, gradient, |kept, _, [m, v]| {
        let root = if is_rectified { v.sqrt() + factors.epsilon } else { 1.0 };
        kept + (rate * m) / root
    });
}

/// Kingma, Ba: "Adam" (ICLR 2015), algorithm 2.
pub(super) fn adamax(step: &GroupStep<'_>, state: [&mut [f32]; 3], gradient: &[f32]) {
    let rate = -(step.rate / corrections(step)[0]) as f32;
    adamax_loop(&AdamFactors::of(step), rate, state, gradient);
}

#[multiversion(targets = "simd")]
fn adamax_loop(factors: &AdamFactors, rate: f32, state: [&mut [f32]; 3], gradient: &[f32]) {
    let [weights, mean, greatest] = state;
    for (((w, m), u), g) in weights.iter_mut().zip(mean).zip(greatest).zip(gradient) {
        let g = with_decay(*g, factors.share, *w);
        [*m, _] = factors.means(g, [*m, 0.0]);
        let (before, now) = (factors.beta2 * *u, g.abs() + factors.epsilon);
        // A gradient that is no number stays one.
        *u = if before > now { before } else { now };
        *w += (rate * *m) / *u;
    }
}

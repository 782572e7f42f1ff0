//! Lion's rule: every weight moves by the learning rate, in the direction of a mean of gradients.

use super::Apply;

/// `[weights, m]`, both of the gradient's length; m is the running mean of gradients.
pub(super) fn update(
    [weights, mean]: [&mut [f32]; 2],
    gradient: &[f32],
    [beta1, beta2]: [f32; 2],
    apply: &Apply,
) {
    for ((w, m), g) in weights.iter_mut().zip(mean).zip(gradient) {
        let g = g * apply.clip;
        *w -= apply.learning_rate * sign(beta1 * *m + (1.0 - beta1) * g);
        *m = beta2 * *m + (1.0 - beta2) * g;
    }
}

/// -1, 0 or 1; of zero it is zero, unlike [`f32::signum`], and so it is of NaN.
fn sign(value: f32) -> f32 {
    f32::from(value > 0.0) - f32::from(value < 0.0)
}

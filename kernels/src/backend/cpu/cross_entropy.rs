//! Softmax cross-entropy with its gradient, row by row, in the memory of the logits.

use super::math::{exp, largest, ln, sums};
use multiversion::multiversion;

/// Writes the loss of each row and replaces its logits by their gradient times `scale`.
#[multiversion(targets = "simd")]
pub fn forward_backward(logits: &mut [f32], targets: &[u32], losses: &mut [f32], scale: f32) {
    assert_eq!(targets.len(), losses.len(), "one loss for each target");
    let classes = logits.len() / losses.len().max(1);
    let rows = logits.chunks_exact_mut(classes.max(1)).zip(losses);
    for ((logits, loss), target) in rows.zip(targets) {
        let target = *target as usize;
        let largest = largest(logits);
        let right = logits[target] - largest;
        for logit in logits.iter_mut() {
            *logit = exp(*logit - largest);
        }
        let [sum] = sums([logits], |[exp]| [exp]);
        *loss = ln(sum) - right;
        let factor = scale / sum;
        for logit in logits.iter_mut() {
            *logit *= factor;
        }
        logits[target] -= scale;
    }
}

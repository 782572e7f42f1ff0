//! The loss: softmax cross-entropy.

use super::MemoryPlan;
use crate::backend::{Backend, Indices, View};

/// `[rows, classes]` logits and as many targets to one loss a row, nats.
#[derive(Clone, Debug)]
pub struct CrossEntropy {
    losses: View,
}

impl CrossEntropy {
    /// Plans the memory of the losses.
    pub fn new(plan: &mut MemoryPlan, rows: usize) -> Self {
        Self { losses: plan.statistics(rows, 1) }
    }

    /// Returns the losses. `logits` become the gradient of `scale` times the sum of the losses.
    pub fn forward_backward(
        &self,
        device: &mut dyn Backend,
        logits: View,
        targets: Indices,
        scale: f64,
    ) -> View {
        let losses = self.losses.top(logits.rows());
        device.cross_entropy(logits, targets, losses, scale);
        losses
    }
}

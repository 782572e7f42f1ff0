//! GELU, tanh form, between two linear layers: a device may compute it with their products.

use super::{Linear, MemoryPlan};
use crate::backend::{Backend, View};

/// `[rows, width]` to the same shape, elementwise.
#[derive(Clone, Debug)]
pub struct Gelu {
    y: View,
}

impl Gelu {
    /// Plans the memory of the output.
    pub fn new(plan: &mut MemoryPlan, width: usize, rows: usize) -> Self {
        Self { y: plan.activation(rows, width) }
    }

    /// The output of the last forward pass, cut to `rows`.
    pub fn y(&self, rows: usize) -> View {
        self.y.top(rows)
    }

    /// GELU of the output of `before`, the layer that reads `x`.
    pub fn forward(&self, device: &mut dyn Backend, before: &Linear, x: View) -> View {
        let y = self.y(x.rows());
        before.forward_gelu(device, x, y);
        y
    }

    /// The backward pass through `after`, then through this layer. `after` read this layer's
    /// output, and the gradient of its own output is `dy`. This layer read `x`. Writes `dx`.
    pub fn backward(&self, device: &mut dyn Backend, after: &Linear, x: View, dy: View, dx: View) {
        after.backward_gelu(device, [x, self.y(x.rows())], dy, dx);
    }
}

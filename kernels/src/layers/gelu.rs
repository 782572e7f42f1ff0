//! GELU, tanh form.

use super::Plan;
use crate::backend::{Backend, View};

/// `[rows, width]` to the same shape, elementwise.
#[derive(Clone, Debug)]
pub struct Gelu {
    y: View,
}

impl Gelu {
    /// Plans the output.
    pub fn new(plan: &mut Plan, width: usize, rows: usize) -> Self {
        Self { y: plan.activation(rows, width) }
    }

    /// The output of the last forward pass, cut to `rows`.
    pub fn y(&self, rows: usize) -> View {
        self.y.top(rows)
    }

    /// `x` is `[rows, width]`.
    pub fn forward(&self, device: &mut dyn Backend, x: View) -> View {
        let y = self.y(x.rows());
        device.gelu(x, y);
        y
    }

    /// Turns `dy` into the gradient of `x`, in place. Does not read the output.
    pub fn backward(&self, device: &mut dyn Backend, x: View, dy: View) {
        device.gelu_backward(x, dy);
    }
}

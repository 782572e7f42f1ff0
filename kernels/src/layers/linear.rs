//! A linear layer: `y = x weight + bias`.

use super::Plan;
use crate::backend::{Backend, View};
use crate::layout::Init;

/// `[rows, inputs]` to `[rows, outputs]`. The weight is `[inputs, outputs]`, as GPT-2's `Conv1D`.
#[derive(Clone, Debug)]
pub struct Linear {
    weight: View,
    bias: View,
    y: View,
}

impl Linear {
    /// Plans `name.weight`, normal with the given deviation, and `name.bias`, zero.
    pub fn new(
        plan: &mut Plan,
        name: &str,
        [inputs, outputs]: [usize; 2],
        deviation: f32,
        rows: usize,
    ) -> Self {
        let normal = Init::Normal { deviation };
        Self {
            weight: plan.parameter(format!("{name}.weight"), &[inputs, outputs], normal),
            bias: plan.parameter(format!("{name}.bias"), &[outputs], Init::Constant(0.0)),
            y: plan.activation(rows, outputs),
        }
    }

    /// The output of the last forward pass, cut to `rows`.
    pub fn y(&self, rows: usize) -> View {
        self.y.top(rows)
    }

    /// `x` is `[rows, inputs]`; returns `[rows, outputs]`.
    pub fn forward(&self, device: &mut dyn Backend, x: View) -> View {
        let y = self.y(x.rows());
        device.matmul(x, self.weight, y);
        device.add_bias(self.bias, y);
        y
    }

    /// Writes `dx`. Does not read the output.
    pub fn backward(&self, device: &mut dyn Backend, x: View, dy: View, dx: View) {
        device.matmul_add(x.t(), dy, self.weight.gradient());
        device.bias_backward(dy, self.bias.gradient());
        device.matmul(dy, self.weight.t(), dx);
    }
}

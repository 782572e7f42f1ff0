//! A linear layer: `y = x weight + bias`.

use super::MemoryPlan;
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
        plan: &mut MemoryPlan,
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

    /// `x` is `[rows, inputs]`. Returns `[rows, outputs]`.
    pub fn forward(&self, device: &mut dyn Backend, x: View) -> View {
        let y = self.y(x.rows());
        device.linear(x, self.weight, self.bias, y);
        y
    }

    /// As [`Linear::forward`], and writes the GELU of the output into `activated`.
    pub(super) fn forward_gelu(&self, device: &mut dyn Backend, x: View, activated: View) {
        let y = self.y(x.rows());
        device.linear_gelu(x, self.weight, self.bias, [y, activated]);
    }

    /// Writes `dx`. Does not read the output.
    pub fn backward(&self, device: &mut dyn Backend, x: View, dy: View, dx: View) {
        self.learn(device, x, dy);
        device.matmul(dy, self.weight.t(), dx);
    }

    /// As [`Linear::backward`], if `x` is the GELU of `input`: writes the gradient of `input`.
    pub(super) fn backward_gelu(
        &self,
        device: &mut dyn Backend,
        [input, x]: [View; 2],
        dy: View,
        d_input: View,
    ) {
        self.learn(device, x, dy);
        device.matmul_gelu_backward(dy, self.weight.t(), input, d_input);
    }

    /// Adds to the gradients of the parameters.
    fn learn(&self, device: &mut dyn Backend, x: View, dy: View) {
        device.matmul_add(x.t(), dy, self.weight.gradient());
        device.bias_backward(dy, self.bias.gradient());
    }
}

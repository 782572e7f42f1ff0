//! Layer normalisation with a scale and a shift.

use super::MemoryPlan;
use crate::backend::{Backend, Norm, View};
use crate::layout::Init;

/// `[rows, width]` to the same shape.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    weight: View,
    bias: View,
    y: View,
    statistics: View,
}

impl LayerNorm {
    /// Plans `name.weight`, one, and `name.bias`, zero.
    pub fn new(plan: &mut MemoryPlan, name: &str, width: usize, rows: usize) -> Self {
        Self {
            weight: plan.parameter(format!("{name}.weight"), &[width], Init::Constant(1.0)),
            bias: plan.parameter(format!("{name}.bias"), &[width], Init::Constant(0.0)),
            y: plan.activation(rows, width),
            statistics: plan.statistics(rows, 2),
        }
    }

    /// The output of the last forward pass, cut to `rows`.
    pub fn y(&self, rows: usize) -> View {
        self.y.top(rows)
    }

    /// `x` is `[rows, width]`.
    pub fn forward(&self, device: &mut dyn Backend, x: View) -> View {
        device.layer_norm(self.of(x));
        self.y(x.rows())
    }

    /// *Adds* to `dx`: in a pre-norm model that is the gradient of the residual stream.
    pub fn backward(&self, device: &mut dyn Backend, x: View, dy: View, dx: View) {
        device.layer_norm_backward(self.of(x), dy, dx);
    }

    fn of(&self, x: View) -> Norm {
        let (y, statistics) = (self.y(x.rows()), self.statistics.top(x.rows()));
        Norm { x, weight: self.weight, bias: self.bias, y, statistics }
    }
}

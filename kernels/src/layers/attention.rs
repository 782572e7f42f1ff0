//! Causal multi-head attention, between its input and output projections.

use super::MemoryPlan;
use crate::backend::{Attention, Backend, View};

/// `[rows, 3 width]`, queries, keys and values, to `[rows, width]`. It has no parameters.
#[derive(Clone, Debug)]
pub struct CausalAttention {
    heads: usize,
    y: View,
    statistics: View,
}

impl CausalAttention {
    /// Plans the output for `heads` heads that together are `width` wide. `sequence` is the longest
    /// sequence.
    pub fn new(
        plan: &mut MemoryPlan,
        heads: usize,
        width: usize,
        sequence: usize,
        rows: usize,
    ) -> Self {
        plan.sequence(sequence);
        Self { heads, y: plan.activation(rows, width), statistics: plan.statistics(rows, heads) }
    }

    /// The output of the last forward pass, cut to `rows`.
    pub fn y(&self, rows: usize) -> View {
        self.y.top(rows)
    }

    /// The rows of `qkv` are sequences of length `sequence`, one after the other.
    pub fn forward(&self, device: &mut dyn Backend, sequence: usize, qkv: View) -> View {
        device.attention(self.of(sequence, qkv));
        self.y(qkv.rows())
    }

    /// This attention over `qkv`, for [`Backend::attention_backward`].
    pub fn of(&self, sequence: usize, qkv: View) -> Attention {
        let (y, statistics) = (self.y(qkv.rows()), self.statistics.top(qkv.rows()));
        Attention { heads: self.heads, sequence, qkv, y, statistics }
    }
}

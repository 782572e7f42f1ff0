//! Tokens to vectors and back: the embedding, positions, and the head tied to the embedding.

use super::MemoryPlan;
use crate::backend::{Backend, Indices, View};
use crate::layout::Init;

/// Tokens to `[tokens, width]`: each token's row of a table.
#[derive(Clone, Debug)]
pub struct Embedding {
    table: View,
    y: View,
}

impl Embedding {
    /// Plans `name.weight`, `[vocabulary, width]`, normal with the given deviation.
    pub fn new(
        plan: &mut MemoryPlan,
        name: &str,
        [vocabulary, width]: [usize; 2],
        deviation: f32,
        tokens: usize,
    ) -> Self {
        let normal = Init::Normal { deviation };
        Self {
            table: plan.parameter(format!("{name}.weight"), &[vocabulary, width], normal),
            y: plan.activation(tokens, width),
        }
    }

    /// The output of the last forward pass, cut to `tokens` rows.
    pub fn y(&self, tokens: usize) -> View {
        self.y.top(tokens)
    }

    /// Returns the tokens' rows, `[tokens, width]`.
    pub fn forward(&self, device: &mut dyn Backend, tokens: Indices) -> View {
        let y = self.y(tokens.len);
        device.embedding(tokens, self.table, y);
        y
    }

    /// Adds the gradient of the table. `dy`, `[tokens, width]`, is that of the output.
    pub fn backward(&self, device: &mut dyn Backend, tokens: Indices, dy: View) {
        device.embedding_backward(tokens, dy, self.table.gradient());
    }
}

/// Learned positions, added to the rows of each sequence in place.
#[derive(Clone, Debug)]
pub struct Positions {
    table: View,
}

impl Positions {
    /// Plans `name.weight`, `[context, width]`, normal with the given deviation.
    pub fn new(plan: &mut MemoryPlan, name: &str, shape: [usize; 2], deviation: f32) -> Self {
        let normal = Init::Normal { deviation };
        Self { table: plan.parameter(format!("{name}.weight"), &shape, normal) }
    }

    /// Adds row `i` of the table to row `i` of each sequence of `x`.
    pub fn forward(&self, device: &mut dyn Backend, sequence: usize, x: View) {
        let size = sequence * x.columns();
        device.add_bias(self.table.shaped(1, size), x.shaped(x.len() / size, size));
    }

    /// Adds the gradient of the table. That of `x` is `dy` itself.
    pub fn backward(&self, device: &mut dyn Backend, sequence: usize, dy: View) {
        let size = sequence * dy.columns();
        let d_table = self.table.gradient().shaped(1, size);
        device.bias_backward(dy.shaped(dy.len() / size, size), d_table);
    }
}

/// `[rows, width]` to logits, `[rows, vocabulary]`: products with the embedding's rows (Press and
/// Wolf, "Using the Output Embedding to Improve Language Models").
#[derive(Clone, Debug)]
pub struct TiedHead {
    table: View,
    logits: View,
}

impl TiedHead {
    /// Plans the logits. The table is that of `embedding`.
    pub fn new(plan: &mut MemoryPlan, embedding: &Embedding, rows: usize) -> Self {
        let table = embedding.table;
        Self { table, logits: plan.activation(rows, table.rows()) }
    }

    /// Returns the logits of `x`, `[rows, width]`.
    pub fn forward(&self, device: &mut dyn Backend, x: View) -> View {
        let logits = self.logits.top(x.rows());
        device.matmul(x, self.table.t(), logits);
        logits
    }

    /// Adds the gradient of the table, and writes that of `x` to `dx`. `dy` is that of the logits.
    /// The table's gradient is final only after the embedding's backward pass.
    pub fn backward(&self, device: &mut dyn Backend, x: View, dy: View, dx: View) {
        device.matmul_add(dy.t(), x, self.table.gradient());
        device.matmul(dy, self.table, dx);
    }
}

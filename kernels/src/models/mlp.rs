//! A perceptron over the last tokens (Bengio et al., "A Neural Probabilistic Language Model"). It
//! embeds each token. The embeddings side by side go through hidden layers with GELU, and the
//! logits predict the next token.

use std::ops::Range;

use super::{BatchShape, LayerHook, Model, ModelConfigError, Sequences, all_positive};
use crate::backend::{Backend, View};
use crate::layers::{Embedding, Gelu, Linear, MemoryPlan};

/// The width of a token's embedding.
const EMBEDDING: usize = 16;

/// The sizes of an MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MlpConfig {
    /// The number of different tokens: 256 for bytes.
    pub vocabulary: usize,
    /// The number of hidden layers.
    pub layers: usize,
    /// The width of a hidden layer.
    pub width: usize,
    /// How many last tokens the model sees.
    pub context: usize,
    /// The most rows of a batch.
    pub micro_batch: usize,
}

/// Predicts the token that follows `context` tokens.
#[derive(Clone, Debug)]
pub struct Mlp {
    config: MlpConfig,
    embedding: Embedding,
    hidden: Vec<Hidden>,
    head: Linear,
    /// Gradients of a layer's input and output, in turn.
    gradients: [View; 2],
    /// The parameters of the embedding.
    first: Range<usize>,
    /// The parameters of the head.
    last: Range<usize>,
}

/// A linear layer and its GELU.
#[derive(Clone, Debug)]
struct Hidden {
    linear: Linear,
    gelu: Gelu,
    parameters: Range<usize>,
}

impl Model for Mlp {
    type Config = MlpConfig;

    fn new(plan: &mut MemoryPlan, config: MlpConfig) -> Result<Self, ModelConfigError> {
        config.check()?;
        let MlpConfig { vocabulary, layers, width, context, micro_batch: rows } = config;
        let shape = [vocabulary, EMBEDDING];
        let embedding = Embedding::new(plan, "embedding", shape, 1.0, rows * context);
        let first = 0..plan.layout().count();
        let hidden = (0..layers).map(|layer| Hidden::new(plan, layer, &config)).collect();
        let start = plan.layout().count();
        let head = Linear::new(plan, "head", [width, vocabulary], 0.02, rows);
        let last = start..plan.layout().count();
        let widest = width.max(context * EMBEDDING);
        let gradients = [plan.activation(rows, widest), plan.activation(rows, widest)];
        Ok(Self { config, embedding, hidden, head, gradients, first, last })
    }

    fn shape(&self) -> BatchShape {
        let MlpConfig { vocabulary, context, micro_batch, .. } = self.config;
        BatchShape { rows: micro_batch, context, targets: 1, vocabulary }
    }

    fn forward(
        &self,
        device: &mut dyn Backend,
        input: Sequences,
        await_parameters: &mut LayerHook<'_>,
    ) -> View {
        await_parameters(device, self.first.clone());
        self.embedding.forward(device, input.tokens);
        let mut x = self.x(0, input.tokens.len / input.length);
        for hidden in &self.hidden {
            await_parameters(device, hidden.parameters.clone());
            x = hidden.gelu.forward(device, &hidden.linear, x);
        }
        await_parameters(device, self.last.clone());
        self.head.forward(device, x)
    }

    fn backward(
        &self,
        device: &mut dyn Backend,
        input: Sequences,
        d_logits: View,
        publish_gradient: &mut LayerHook<'_>,
    ) {
        let rows = d_logits.rows();
        let [mut next, mut free] = self.gradients;
        let (mut layer, mut parameters, mut dy) = (&self.head, &self.last, d_logits);
        for hidden in self.hidden.iter().rev() {
            let x = hidden.linear.y(rows);
            let dx = next.shaped(rows, x.columns());
            hidden.gelu.backward(device, layer, x, dy, dx);
            publish_gradient(device, parameters.clone());
            (layer, parameters, dy) = (&hidden.linear, &hidden.parameters, dx);
            (next, free) = (free, next);
        }
        let x = self.x(0, rows);
        layer.backward(device, x, dy, next.shaped(rows, x.columns()));
        publish_gradient(device, parameters.clone());
        self.embedding.backward(device, input.tokens, next.shaped(input.tokens.len, EMBEDDING));
        publish_gradient(device, self.first.clone());
    }

    fn flops_per_sample(&self) -> u64 {
        let MlpConfig { vocabulary, layers, width, context, .. } = self.config;
        let hidden = context * EMBEDDING * width + (layers - 1) * width * width;
        6 * (hidden + width * vocabulary) as u64
    }

    /// Missing tokens before the first one read as token 0.
    fn window(&self, tokens: &[u32]) -> Vec<u32> {
        let context = self.config.context;
        let seen = &tokens[tokens.len().saturating_sub(context)..];
        let mut window = vec![0; context - seen.len()];
        window.extend_from_slice(seen);
        window
    }
}

impl Mlp {
    /// The input of hidden layer `layer`. The head comes after the last.
    fn x(&self, layer: usize, rows: usize) -> View {
        let context = self.config.context;
        match layer.checked_sub(1) {
            None => self.embedding.y(rows * context).shaped(rows, context * EMBEDDING),
            Some(before) => self.hidden[before].gelu.y(rows),
        }
    }
}

impl Hidden {
    fn new(plan: &mut MemoryPlan, layer: usize, config: &MlpConfig) -> Self {
        let MlpConfig { width, context, micro_batch: rows, .. } = *config;
        let start = plan.layout().count();
        let inputs = if layer == 0 { context * EMBEDDING } else { width };
        // Keeps the variance through a layer with an activation that passes half (He et al., 2015).
        let deviation = (2.0 / inputs as f32).sqrt();
        let name = format!("hidden.{layer}");
        Self {
            linear: Linear::new(plan, &name, [inputs, width], deviation, rows),
            gelu: Gelu::new(plan, width, rows),
            parameters: start..plan.layout().count(),
        }
    }
}

impl MlpConfig {
    fn check(&self) -> Result<(), ModelConfigError> {
        let Self { vocabulary, layers, width, context, micro_batch } = *self;
        all_positive(&[
            ("vocabulary", vocabulary),
            ("layers", layers),
            ("width", width),
            ("context", context),
            ("micro_batch", micro_batch),
        ])
    }
}

//! GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners"): pre-norm blocks,
//! learned positions, GELU, a head tied to the embedding. Names and shapes are those of GPT-2's
//! safetensors, so its files can be read as they are.
//!
//! If memory is short, it keeps only the input of each block, and computes the rest of a block
//! again in the backward pass (Chen et al., "Training Deep Nets with Sublinear Memory Cost"): the
//! same operations on the same values, hence the same gradient, bit for bit.

use std::ops::Range;

use super::{BatchShape, LayerHook, Model, ModelConfigError, Sequences, all_positive};
use crate::backend::{Backend, View};
use crate::layers::{
    CausalAttention, Embedding, Gelu, LayerNorm, Linear, MemoryPlan, Positions, SharedArea,
    TiedHead,
};

/// Deviation of initial weights (Radford et al., "Improving Language Understanding by Generative
/// Pre-Training", section 4.1).
const DEVIATION: f32 = 0.02;

/// The sizes of a GPT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GptConfig {
    /// The number of different tokens: 256 for bytes.
    pub vocabulary: usize,
    /// The number of blocks.
    pub layers: usize,
    /// The attention heads of a block. They divide the width.
    pub heads: usize,
    /// The width of the residual stream.
    pub width: usize,
    /// The longest sequence, and the length of every row of a batch.
    pub context: usize,
    /// The most rows of a batch.
    pub micro_batch: usize,
    /// Whether the backward pass computes blocks again instead of keeping their activations.
    pub recompute: bool,
}

/// A decoder that predicts the next token at every position.
#[derive(Clone, Debug)]
pub struct Gpt {
    config: GptConfig,
    wte: Embedding,
    wpe: Positions,
    blocks: Vec<TransformerBlock>,
    ln_f: LayerNorm,
    head: TiedHead,
    gradients: Gradients,
    /// The parameters of both embeddings.
    first: Range<usize>,
    /// The parameters of the last norm.
    last: Range<usize>,
}

impl Model for Gpt {
    type Config = GptConfig;

    fn new(plan: &mut MemoryPlan, config: GptConfig) -> Result<Self, ModelConfigError> {
        config.check()?;
        let GptConfig { vocabulary, layers, width, context, .. } = config;
        let rows = config.rows();
        let wte = Embedding::new(plan, "wte", [vocabulary, width], DEVIATION, rows);
        let wpe = Positions::new(plan, "wpe", [context, width], DEVIATION);
        let first = 0..plan.layout().count();
        let mut area = None;
        let blocks: Vec<_> = (0..layers)
            .map(|layer| TransformerBlock::new(plan, layer, &config, &mut area))
            .collect();
        let start = plan.layout().count();
        let ln_f = LayerNorm::new(plan, "ln_f", width, rows);
        let last = start..plan.layout().count();
        let head = TiedHead::new(plan, &wte, rows);
        let gradients = Gradients {
            stream: plan.activation(rows, width),
            branch: plan.activation(rows, width),
            wide: plan.activation(rows, 4 * width),
            scratch: plan.statistics(rows, config.heads),
        };
        Ok(Self { config, wte, wpe, blocks, ln_f, head, gradients, first, last })
    }

    fn shape(&self) -> BatchShape {
        let GptConfig { vocabulary, context, micro_batch, .. } = self.config;
        BatchShape { rows: micro_batch, context, targets: context, vocabulary }
    }

    fn forward(
        &self,
        device: &mut dyn Backend,
        input: Sequences,
        await_parameters: &mut LayerHook<'_>,
    ) -> View {
        await_parameters(device, self.first.clone());
        let mut x = self.wte.forward(device, input.tokens);
        self.wpe.forward(device, input.length, x);
        for block in &self.blocks {
            await_parameters(device, block.parameters.clone());
            x = block.forward(device, input.length, x);
        }
        await_parameters(device, self.last.clone());
        let x = self.ln_f.forward(device, x);
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
        let d = self.gradients.top(rows);
        self.head.backward(device, self.ln_f.y(rows), d_logits, d.branch);
        device.zero(d.stream);
        self.ln_f.backward(device, self.stream(self.blocks.len(), rows), d.branch, d.stream);
        publish_gradient(device, self.last.clone());
        for (layer, block) in self.blocks.iter().enumerate().rev() {
            let x = self.stream(layer, rows);
            // The forward pass ended with the last block, so its activations are still there.
            if self.config.recompute && layer + 1 < self.blocks.len() {
                block.inner.forward(device, input.length, x);
            }
            block.backward(device, input.length, x, d);
            publish_gradient(device, block.parameters.clone());
        }
        self.wpe.backward(device, input.length, d.stream);
        self.wte.backward(device, input.tokens, d.stream);
        // The head began the gradient of `wte`. The embedding ends it, last of all.
        publish_gradient(device, self.first.clone());
    }

    fn flops_per_sample(&self) -> u64 {
        self.config.flops_per_sample()
    }

    fn window(&self, tokens: &[u32]) -> Vec<u32> {
        tokens[tokens.len().saturating_sub(self.config.context)..].to_vec()
    }
}

impl Gpt {
    /// The residual stream as block `layer` reads it.
    fn stream(&self, layer: usize, rows: usize) -> View {
        match layer.checked_sub(1) {
            None => self.wte.y(rows),
            Some(before) => self.blocks[before].c_proj.y(rows),
        }
    }
}

impl GptConfig {
    fn check(&self) -> Result<(), ModelConfigError> {
        let Self { vocabulary, layers, heads, width, context, micro_batch, .. } = *self;
        all_positive(&[
            ("vocabulary", vocabulary),
            ("layers", layers),
            ("heads", heads),
            ("width", width),
            ("context", context),
            ("micro_batch", micro_batch),
        ])?;
        if width % heads == 0 { Ok(()) } else { Err(ModelConfigError::Heads { width, heads }) }
    }

    /// For each token `6 N + 12 L T width` (Chowdhery et al., "PaLM", appendix B). N counts the
    /// weights of products, including the head's, which are those of the embedding. Attention
    /// counts whole, as in the paper, though half of it is masked. Work repeated to save memory
    /// does not count.
    fn flops_per_sample(&self) -> u64 {
        let Self { vocabulary, layers, width, context, .. } = *self;
        let in_products = 12 * layers * width * width + vocabulary * width;
        let per_token = 6 * in_products + 12 * layers * context * width;
        (context * per_token) as u64
    }

    /// The most rows of activations.
    fn rows(&self) -> usize {
        self.micro_batch * self.context
    }

    /// The deviation of weights with products that are added to the stream. The stream is a sum of
    /// this many branches (GPT-2's paper, section 2.3).
    fn residual_deviation(&self) -> f32 {
        DEVIATION / ((2 * self.layers) as f32).sqrt()
    }
}

/// Memory of gradients of activations, the same for every block.
#[derive(Clone, Copy, Debug)]
struct Gradients {
    /// Gradient of the residual stream.
    stream: View,
    /// Gradient of the input or output of a branch.
    branch: View,
    /// Gradient of the wide activations inside a branch.
    wide: View,
    /// Attention's own memory in the backward pass.
    scratch: View,
}

impl Gradients {
    fn top(self, rows: usize) -> Self {
        Self {
            stream: self.stream.top(rows),
            branch: self.branch.top(rows),
            wide: self.wide.top(rows),
            scratch: self.scratch.top(rows),
        }
    }
}

/// `x + attention(norm(x))`, then the same with a perceptron for attention.
#[derive(Clone, Debug)]
struct TransformerBlock {
    inner: Inner,
    /// Its output becomes the stream after the block.
    c_proj: Linear,
    parameters: Range<usize>,
}

/// A block up to the input of its last layer: the part that can be computed again.
#[derive(Clone, Debug)]
struct Inner {
    ln_1: LayerNorm,
    c_attn: Linear,
    attention: CausalAttention,
    /// Its output becomes the stream between the branches.
    attn_c_proj: Linear,
    ln_2: LayerNorm,
    c_fc: Linear,
    gelu: Gelu,
}

impl TransformerBlock {
    /// If blocks are computed again, they all compute in `area`.
    fn new(
        plan: &mut MemoryPlan,
        layer: usize,
        config: &GptConfig,
        area: &mut Option<SharedArea>,
    ) -> Self {
        let GptConfig { width, recompute, .. } = *config;
        let start = plan.layout().count();
        let inner = match recompute {
            true => plan.shared(area, |plan| Inner::new(plan, layer, config)),
            false => Inner::new(plan, layer, config),
        };
        let (name, shape) = (format!("h.{layer}.mlp.c_proj"), [4 * width, width]);
        let c_proj = Linear::new(plan, &name, shape, config.residual_deviation(), config.rows());
        Self { inner, c_proj, parameters: start..plan.layout().count() }
    }

    fn forward(&self, device: &mut dyn Backend, sequence: usize, x: View) -> View {
        let [middle, y] = self.inner.forward(device, sequence, x);
        let y = self.c_proj.forward(device, y);
        device.add(middle, y);
        y
    }

    /// Turns `d.stream` from the gradient after the block into the gradient before it.
    fn backward(&self, device: &mut dyn Backend, sequence: usize, x: View, d: Gradients) {
        let rows = x.rows();
        let Inner { ln_1, c_attn, attention, attn_c_proj, ln_2, c_fc, gelu } = &self.inner;
        gelu.backward(device, &self.c_proj, c_fc.y(rows), d.stream, d.wide);
        c_fc.backward(device, ln_2.y(rows), d.wide, d.branch);
        ln_2.backward(device, attn_c_proj.y(rows), d.branch, d.stream);
        attn_c_proj.backward(device, attention.y(rows), d.stream, d.branch);
        let qkv = c_attn.y(rows);
        let d_qkv = d.wide.shaped(rows, qkv.columns());
        device.attention_backward(attention.of(sequence, qkv), d.branch, d_qkv, d.scratch);
        c_attn.backward(device, ln_1.y(rows), d_qkv, d.branch);
        ln_1.backward(device, x, d.branch, d.stream);
    }
}

impl Inner {
    fn new(plan: &mut MemoryPlan, layer: usize, config: &GptConfig) -> Self {
        let GptConfig { heads, width, context, .. } = *config;
        let (rows, residual) = (config.rows(), config.residual_deviation());
        let name = |part: &str| format!("h.{layer}.{part}");
        Self {
            ln_1: LayerNorm::new(plan, &name("ln_1"), width, rows),
            c_attn: Linear::new(plan, &name("attn.c_attn"), [width, 3 * width], DEVIATION, rows),
            attention: CausalAttention::new(plan, heads, width, context, rows),
            attn_c_proj: Linear::new(plan, &name("attn.c_proj"), [width; 2], residual, rows),
            ln_2: LayerNorm::new(plan, &name("ln_2"), width, rows),
            c_fc: Linear::new(plan, &name("mlp.c_fc"), [width, 4 * width], DEVIATION, rows),
            gelu: Gelu::new(plan, 4 * width, rows),
        }
    }

    /// The stream between the branches, and the input of the block's last layer.
    fn forward(&self, device: &mut dyn Backend, sequence: usize, x: View) -> [View; 2] {
        let y = self.ln_1.forward(device, x);
        let qkv = self.c_attn.forward(device, y);
        let y = self.attention.forward(device, sequence, qkv);
        let middle = self.attn_c_proj.forward(device, y);
        device.add(x, middle);
        let y = self.ln_2.forward(device, middle);
        [middle, self.gelu.forward(device, &self.c_fc, y)]
    }
}

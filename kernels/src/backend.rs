//! Operations on buffer handles: the language of the models, and what a device must offer.
//!
//! A [`View`] names a matrix in one of the device's four flat arenas. It is a handle, never memory.
//! Operations *enqueue*. Only [`Backend::read_back`], [`Backend::total`] and, if the caller asks
//! for it, [`Backend::fetched`] wait for the device. Operands of one operation never overlap, and
//! no operation allocates.
//!
//! So a failure on the device shows at those three. Once it has shown, each of them reports it:
//! nothing computed after a failure is ever seen.
//!
//! Every operation computes the same bits from the same inputs on every call. Some operations are
//! composed of others. A device that can do such an operation at once need not round in between.
//! This module knows no layers, models or batches. Sizes are in elements, matrices row-major.

use std::borrow::Cow;
use std::ops::Range;

pub mod cpu;
pub mod cuda;
mod memory;
pub mod reference;

pub use cpu::Cpu;
pub use reference::Reference;

/// A device that computes: memory in arenas, and the operations of the models.
///
/// *Writes* means that the old values of an output do not matter. *Adds* means that they stay in
/// the sum.
pub trait Backend: Send {
    /// Copies `values` to the device. `to` has as many elements.
    fn write(&mut self, to: View, values: &[f32]);

    /// Copies tokens or targets to the device. `to` is as long as `values`.
    fn write_indices(&mut self, to: Indices, values: &[u32]);

    /// Waits for all enqueued work, and shows the values of `from`, rounded to f32. All requested
    /// gradients have then been [fetched](Backend::fetched).
    fn read_back(&mut self, from: View) -> Result<Cow<'_, [f32]>, DeviceError>;

    /// Requests a copy of a range of the gradients, as they are after all work enqueued before.
    /// Work enqueued later does not wait for the copy. The range stays as it is until the caller
    /// has [fetched](Backend::fetched) all of it.
    fn fetch(&mut self, gradients: Range<usize>);

    /// Shows the next part of the requested gradients that has come. Ranges come in the order of
    /// the requests, a long one in several parts. `None` if nothing has come yet. With `wait`,
    /// `None` only if nothing is left to come.
    fn fetched(&mut self, wait: bool) -> Result<Option<Fetched<'_>>, DeviceError>;

    /// Adds up the values of `from` in f64, in order, as if they were [read
    /// back](Backend::read_back).
    fn total(&mut self, from: View) -> Result<f64, DeviceError>;

    /// Writes zeros.
    fn zero(&mut self, to: View);

    /// Writes `c = a b`. Any of `a` and `b` may be [transposed](View::t).
    fn matmul(&mut self, a: View, b: View, c: View);

    /// Adds: `c += a b`. Any of `a` and `b` may be [transposed](View::t).
    fn matmul_add(&mut self, a: View, b: View, c: View);

    /// Writes `y = x weight + bias`, the single row `bias` to every row of `y`: a linear layer.
    fn linear(&mut self, x: View, weight: View, bias: View, y: View) {
        self.matmul(x, weight, y);
        self.add_bias(bias, y);
    }

    /// As [`Backend::linear`], and writes the [GELU](Backend::gelu) of `y` into `activated`.
    fn linear_gelu(&mut self, x: View, weight: View, bias: View, [y, activated]: [View; 2]) {
        self.linear(x, weight, bias, y);
        self.gelu(y, activated);
    }

    /// Writes `c = a b`, multiplied by the derivative of [`Backend::gelu`] at `x`: the backward
    /// pass through a linear layer and the GELU before it. Any of `a` and `b` may be
    /// [transposed](View::t).
    fn matmul_gelu_backward(&mut self, a: View, b: View, x: View, c: View) {
        self.matmul(a, b, c);
        self.gelu_backward(x, c);
    }

    /// Adds `x` to `y`, elementwise: a residual connection.
    fn add(&mut self, x: View, y: View);

    /// Adds the single row `bias` to every row of `y`.
    fn add_bias(&mut self, bias: View, y: View);

    /// Adds the sum of the rows of `dy` to the single row `d_bias`.
    fn bias_backward(&mut self, dy: View, d_bias: View);

    /// Writes row `tokens[i]` of `table` into row `i` of `y`.
    fn embedding(&mut self, tokens: Indices, table: View, y: View);

    /// Adds row `i` of `dy` to row `tokens[i]` of `d_table`, in the order of `i`.
    fn embedding_backward(&mut self, tokens: Indices, dy: View, d_table: View);

    /// Writes `norm.y` and `norm.statistics`.
    fn layer_norm(&mut self, norm: Norm);

    /// Adds to `dx` and to the gradients of `norm.weight` and `norm.bias`. Reads `norm.x` and
    /// `norm.statistics`.
    fn layer_norm_backward(&mut self, norm: Norm, dy: View, dx: View);

    /// Writes `attention.y` and `attention.statistics`.
    fn attention(&mut self, attention: Attention);

    /// Writes `d_qkv`. Reads all of `attention`. `scratch`, `[rows, heads]` statistics, is the
    /// operation's own memory: its content before or after means nothing.
    fn attention_backward(&mut self, attention: Attention, dy: View, d_qkv: View, scratch: View);

    /// Writes `y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`, as GPT-2 does (Hendrycks and
    /// Gimpel, "Gaussian Error Linear Units").
    fn gelu(&mut self, x: View, y: View);

    /// Multiplies `dy` by the derivative of [`Backend::gelu`] at `x`.
    fn gelu_backward(&mut self, x: View, dy: View);

    /// Softmax cross-entropy, forward and backward. Writes the loss of each row in nats into
    /// `losses`, a column of statistics, and replaces `logits` by the gradient of `scale` times
    /// their sum.
    fn cross_entropy(&mut self, logits: View, targets: Indices, losses: View, scale: f64);

    /// The bytes of device memory that this backend holds.
    fn bytes(&self) -> usize;
}

/// A part of the gradient that has come to the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Fetched<'a> {
    /// The part's range in the gradient arena.
    pub range: Range<usize>,
    /// The gradients of the range, one for each parameter.
    pub gradient: Cow<'a, [f32]>,
}

/// Enqueued work has failed. The device computes nothing any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DeviceError(pub String);

/// The memory that a model needs, for a backend to allocate once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Elements of the parameter arena. The gradient arena has the same number.
    pub parameters: usize,
    /// Elements of the activation arena.
    pub activations: usize,
    /// Elements of the arena of statistics.
    pub statistics: usize,
    /// The number of tokens and targets.
    pub indices: usize,
    /// The longest sequence that attention will see. 0 without attention.
    pub sequence: usize,
}

/// A part of the device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arena {
    /// The flat parameter vector, in the order of the model's layout.
    Parameters,
    /// The gradient of each parameter, in the same order.
    Gradients,
    /// Everything else that a pass writes.
    Activations,
    /// Numbers that are too few to be worth storing with less than f32, and too important: losses,
    /// means, deviations, sums of exponentials.
    Statistics,
}

/// A handle of a matrix in an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    arena: Arena,
    offset: usize,
    rows: usize,
    columns: usize,
    transposed: bool,
}

impl View {
    /// The matrix of `rows * columns` elements that begins at `offset` of `arena`.
    pub fn new(arena: Arena, offset: usize, rows: usize, columns: usize) -> Self {
        Self { arena, offset, rows, columns, transposed: false }
    }

    /// A range of an arena as a single row.
    pub fn row(arena: Arena, range: Range<usize>) -> Self {
        Self::new(arena, range.start, 1, range.len())
    }

    /// The first `rows * columns` elements, as a matrix of that shape.
    pub fn shaped(self, rows: usize, columns: usize) -> Self {
        assert!(!self.transposed && rows * columns <= self.len(), "{self:?} is not that large");
        Self { rows, columns, ..self }
    }

    /// The first `rows` rows.
    pub fn top(self, rows: usize) -> Self {
        self.shaped(rows, self.columns)
    }

    /// The transpose of the same memory. Only products take it.
    pub fn t(self) -> Self {
        Self { transposed: !self.transposed, ..self }
    }

    /// The gradient of this parameter.
    pub fn gradient(self) -> Self {
        assert_eq!(self.arena, Arena::Parameters, "only parameters have a gradient");
        Self { arena: Arena::Gradients, ..self }
    }

    /// The number of rows.
    pub fn rows(self) -> usize {
        if self.transposed { self.columns } else { self.rows }
    }

    /// The number of columns.
    pub fn columns(self) -> usize {
        if self.transposed { self.rows } else { self.columns }
    }

    /// The number of elements.
    pub fn len(self) -> usize {
        self.rows * self.columns
    }

    /// The elements of the arena that the view covers.
    fn range(self) -> Range<usize> {
        self.offset..self.offset + self.len()
    }

    /// Whether it has no elements.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// A handle of tokens or targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Indices {
    /// Where the indices begin in the device's index memory.
    pub offset: usize,
    /// The number of indices.
    pub len: usize,
}

impl Indices {
    /// The first `len` of the indices.
    pub fn first(self, len: usize) -> Self {
        assert!(len <= self.len, "{self:?} has not {len}");
        Self { len, ..self }
    }
}

/// Layer normalisation: `y = weight (x - mean) / deviation + bias`, row by row, biased variance
/// (Ba, Kiros, Hinton, "Layer Normalization").
#[derive(Clone, Copy, Debug)]
pub struct Norm {
    /// The input, `[rows, width]`.
    pub x: View,
    /// The scale, a parameter of `width`.
    pub weight: View,
    /// The shift, a parameter of `width`.
    pub bias: View,
    /// The output, `[rows, width]`.
    pub y: View,
    /// Mean and reciprocal deviation of each row, `[rows, 2]` statistics, for the backward pass.
    pub statistics: View,
}

impl Norm {
    /// The number added to the variance, so that the deviation is never zero.
    pub const EPSILON: f32 = 1e-5;
}

/// Causal multi-head attention, `softmax(q k' / sqrt(width of a head)) v` (Vaswani et al.,
/// "Attention Is All You Need"). The backward pass computes the scores again (Dao et al.,
/// "FlashAttention"), so no matrix of scores is kept.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// The number of heads. It divides the width.
    pub heads: usize,
    /// The number of positions of each sequence. It divides the rows.
    pub sequence: usize,
    /// Queries, keys and values side by side, `[rows, 3 width]`. Within each, head after head.
    pub qkv: View,
    /// The output, `[rows, width]`.
    pub y: View,
    /// Logarithm of the sum of the exponentials of the scores of each row and head, `[rows, heads]`
    /// statistics in the order that suits the backend.
    pub statistics: View,
}

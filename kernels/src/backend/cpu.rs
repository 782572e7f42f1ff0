//! The CPU: f32 on one thread, the same bits on every machine of one architecture.
//!
//! Products add in the same order at every vector width: ours with AVX-512, and those of
//! `matrixmultiply` (with fused multiply-add, which x86-64 machines have had since 2013). All else
//! is our own loops, compiled for several instruction sets and chosen at run time. These never fuse
//! a multiplication with an addition, and sums run in a fixed number of lanes, so the bits depend
//! only on the inputs. Exponentials and logarithms are our own, never the platform's.
//!
//! This backend is the host, so an operation is done when its call returns.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;

use super::memory::Memory;
use super::{Arena, Attention, Backend, DeviceError, Fetched, Indices, Norm, Sizes, View};
use gemm::{Gemm, Grid};

mod attention;
mod cross_entropy;
mod gelu;
mod gemm;
mod layer_norm;
mod math;
mod rows;

/// The f32 backend of the host.
pub struct Cpu {
    memory: Memory<f32>,
    gemm: Gemm,
    /// Two blocks of attention's scores.
    scores: Vec<f32>,
    /// Requested ranges of the gradient, which lie here all the time.
    fetches: VecDeque<Range<usize>>,
}

impl Cpu {
    /// Allocates the arenas, zeroed.
    pub fn new(sizes: Sizes) -> Self {
        let scores = vec![0.0; scores(sizes)];
        let (memory, fetches) = (Memory::new(sizes), VecDeque::new());
        Self { memory, gemm: Gemm::new(), scores, fetches }
    }

    /// The bytes that a backend of these sizes holds, without making one.
    pub fn bytes_of(sizes: Sizes) -> usize {
        Memory::<f32>::bytes_of(sizes) + Gemm::new().bytes() + size_of::<f32>() * scores(sizes)
    }

    fn product(&mut self, a: View, b: View, c: View, accumulate: bool) {
        let grid = |view: View| {
            let grid = Grid::dense(view.rows, view.columns);
            if view.transposed { grid.t() } else { grid }
        };
        let upright = |view: View| View { transposed: false, ..view };
        let [left, right, sums] = self.memory.split([upright(a), upright(b), c]);
        self.gemm.multiply((left, grid(a)), (right, grid(b)), (sums, grid(c)), accumulate);
    }
}

/// Elements of attention's two blocks of scores.
fn scores(sizes: Sizes) -> usize {
    2 * attention::BLOCK.min(sizes.sequence) * sizes.sequence
}

impl Backend for Cpu {
    fn write(&mut self, to: View, values: &[f32]) {
        self.memory.change(to).copy_from_slice(values);
    }

    fn write_indices(&mut self, to: Indices, values: &[u32]) {
        self.memory.write_indices(to, values);
    }

    fn read_back(&mut self, from: View) -> Result<Cow<'_, [f32]>, DeviceError> {
        Ok(Cow::Borrowed(self.memory.read(from)))
    }

    fn fetch(&mut self, gradients: Range<usize>) {
        self.fetches.push_back(gradients);
    }

    fn fetched(&mut self, _wait: bool) -> Result<Option<Fetched<'_>>, DeviceError> {
        let Some(range) = self.fetches.pop_front() else { return Ok(None) };
        let gradient = self.read_back(View::row(Arena::Gradients, range.clone()))?;
        Ok(Some(Fetched { range, gradient }))
    }

    fn total(&mut self, from: View) -> Result<f64, DeviceError> {
        Ok(self.memory.read(from).iter().fold(0.0, |sum, value| sum + f64::from(*value)))
    }

    fn zero(&mut self, to: View) {
        self.memory.change(to).fill(0.0);
    }

    fn matmul(&mut self, a: View, b: View, c: View) {
        self.product(a, b, c, false);
    }

    fn matmul_add(&mut self, a: View, b: View, c: View) {
        self.product(a, b, c, true);
    }

    fn add(&mut self, x: View, y: View) {
        let [x, y] = self.memory.split([x, y]);
        rows::add(x, y);
    }

    fn add_bias(&mut self, bias: View, y: View) {
        assert_eq!(bias.len(), y.columns(), "one bias for each column");
        let [bias, y] = self.memory.split([bias, y]);
        for row in y.chunks_exact_mut(bias.len()) {
            rows::add(bias, row);
        }
    }

    fn bias_backward(&mut self, dy: View, d_bias: View) {
        assert_eq!(d_bias.len(), dy.columns(), "one bias for each column");
        let [dy, d_bias] = self.memory.split([dy, d_bias]);
        for row in dy.chunks_exact(d_bias.len()) {
            rows::add(row, d_bias);
        }
    }

    fn embedding(&mut self, tokens: Indices, table: View, y: View) {
        let width = y.columns();
        let (tokens, [table, y]) = self.memory.split_indexed(tokens, [table, y]);
        rows::gather(tokens, width, table, y);
    }

    fn embedding_backward(&mut self, tokens: Indices, dy: View, d_table: View) {
        let width = dy.columns();
        let (tokens, [dy, d_table]) = self.memory.split_indexed(tokens, [dy, d_table]);
        rows::scatter_add(tokens, width, dy, d_table);
    }

    fn layer_norm(&mut self, norm: Norm) {
        let Norm { x, weight, bias, y, statistics } = norm;
        let [x, weight, bias, y, statistics] = self.memory.split([x, weight, bias, y, statistics]);
        layer_norm::forward(x, weight, bias, y, statistics);
    }

    fn layer_norm_backward(&mut self, norm: Norm, dy: View, dx: View) {
        let Norm { x, weight, bias, statistics, .. } = norm;
        let [x, weight, statistics, dy, dx, d_weight, d_bias] =
            self.memory.split([x, weight, statistics, dy, dx, weight.gradient(), bias.gradient()]);
        let input = layer_norm::Input { x, weight, statistics };
        layer_norm::backward(input, dy, dx, d_weight, d_bias);
    }

    fn attention(&mut self, attention: Attention) {
        let heads = attention::HeadShape::of(attention);
        let [qkv, y, statistics] =
            self.memory.split([attention.qkv, attention.y, attention.statistics]);
        let scratch = attention::Scratch { gemm: &mut self.gemm, scores: &mut self.scores };
        attention::forward(heads, qkv, y, statistics, scratch);
    }

    fn attention_backward(&mut self, attention: Attention, dy: View, d_qkv: View, _scratch: View) {
        let heads = attention::HeadShape::of(attention);
        let [qkv, y, statistics, dy, d_qkv] =
            self.memory.split([attention.qkv, attention.y, attention.statistics, dy, d_qkv]);
        let kept = attention::Kept { qkv, y, statistics };
        let scratch = attention::Scratch { gemm: &mut self.gemm, scores: &mut self.scores };
        attention::backward(heads, kept, dy, d_qkv, scratch);
    }

    fn gelu(&mut self, x: View, y: View) {
        let [x, y] = self.memory.split([x, y]);
        gelu::forward(x, y);
    }

    fn gelu_backward(&mut self, x: View, dy: View) {
        let [x, dy] = self.memory.split([x, dy]);
        gelu::backward(x, dy);
    }

    fn cross_entropy(&mut self, logits: View, targets: Indices, losses: View, scale: f64) {
        let (targets, [logits, losses]) = self.memory.split_indexed(targets, [logits, losses]);
        cross_entropy::forward_backward(logits, targets, losses, scale as f32);
    }

    fn bytes(&self) -> usize {
        self.memory.bytes() + self.gemm.bytes() + size_of_val(&self.scores[..])
    }
}

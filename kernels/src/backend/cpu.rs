//! The CPU: f32 on any number of threads, the same bits on every machine of one architecture.
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
use crate::threads::{self, Threads};
use gemm::{Gemm, Grid, OutputMatrix};

mod attention;
mod cross_entropy;
mod gelu;
mod gemm;
mod layer_norm;
mod math;
mod rows;

/// Elements of a cache line.
const LINE: usize = 16;
/// How long an element takes that has an exponential, beside one that has not.
const EXPONENTIAL: usize = 8;

/// The f32 backend of the host.
pub struct Cpu {
    memory: Memory<f32>,
    threads: Threads,
    /// Memory for each thread.
    scratch: Vec<Scratch>,
    /// Requested ranges of the gradient, which lie here all the time.
    fetches: VecDeque<Range<usize>>,
}

/// What a thread needs to compute, beside the arenas.
struct Scratch {
    gemm: Gemm,
    /// Two blocks of attention's scores.
    scores: Vec<f32>,
}

/// Threads, and scratch memory for each of them.
struct ScratchThreads<'a> {
    threads: &'a Threads,
    scratch: &'a mut [Scratch],
}

impl Cpu {
    /// Allocates the arenas, zeroed, and computes on the caller's thread.
    pub fn new(sizes: Sizes) -> Self {
        Self::on_threads(sizes, Threads::default())
    }

    /// As [`Cpu::new`], with these threads to compute.
    pub fn on_threads(sizes: Sizes, threads: Threads) -> Self {
        let scratch = || Scratch { gemm: Gemm::new(), scores: vec![0.0; scores(sizes)] };
        let scratch = (0..threads.count()).map(|_| scratch()).collect();
        Self { memory: Memory::new(sizes), threads, scratch, fetches: VecDeque::new() }
    }

    /// The bytes that a backend of these sizes holds on one thread, without making one.
    pub fn bytes_of(sizes: Sizes) -> usize {
        Memory::<f32>::bytes_of(sizes) + Self::bytes_of_thread(sizes)
    }

    /// The bytes of these that are for a thread, and that each further one takes.
    pub fn bytes_of_thread(sizes: Sizes) -> usize {
        Gemm::new().bytes() + size_of::<f32>() * scores(sizes)
    }

    fn product(&mut self, a: View, b: View, c: View, accumulate: bool) {
        let grid = |view: View| {
            let grid = Grid::dense(view.rows, view.columns);
            if view.transposed { grid.t() } else { grid }
        };
        let upright = |view: View| View { transposed: false, ..view };
        let [left, right, sums] = self.memory.split([upright(a), upright(b), c]);
        let (left, right) = (grid(a).of(left), grid(b).of(right));
        let gemms = self.scratch.iter_mut().map(|scratch| &mut scratch.gemm);
        let sums = OutputMatrix::new(sums, grid(c));
        gemm::multiply(&self.threads, gemms, left, right, sums, accumulate);
    }

    /// Does something for each element of `x` and `y`, which takes `cost` times as long as a sum.
    fn elementwise(&mut self, [x, y]: [View; 2], cost: usize, work: fn(&[f32], &mut [f32])) {
        let [x, y] = self.memory.split([x, y]);
        self.threads.map_at_cost(x, y, cost, work);
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
        let to = self.memory.change(to);
        let pieces = self.threads.cut(to.len(), LINE, to.len());
        self.threads.each(threads::rows(to, 1, &pieces), |to| to.fill(0.0));
    }

    fn matmul(&mut self, a: View, b: View, c: View) {
        self.product(a, b, c, false);
    }

    fn matmul_add(&mut self, a: View, b: View, c: View) {
        self.product(a, b, c, true);
    }

    fn add(&mut self, x: View, y: View) {
        self.elementwise([x, y], 1, rows::add);
    }

    fn add_bias(&mut self, bias: View, y: View) {
        assert_eq!(bias.len(), y.columns(), "one bias for each column");
        let (count, work) = (y.rows(), y.len());
        let [bias, y] = self.memory.split([bias, y]);
        let pieces = self.threads.cut(count, 1, work);
        self.threads.each(threads::rows(y, bias.len(), &pieces), |y| {
            y.chunks_exact_mut(bias.len()).for_each(|row| rows::add(bias, row));
        });
    }

    fn bias_backward(&mut self, dy: View, d_bias: View) {
        assert_eq!(d_bias.len(), dy.columns(), "one bias for each column");
        let [dy, d_bias] = self.memory.split([dy, d_bias]);
        let width = d_bias.len();
        let columns = self.threads.cut(width, LINE, dy.len());
        let parts = threads::rows(d_bias, 1, &columns).into_iter().zip(columns).collect();
        self.threads.each(parts, |(d_bias, columns)| {
            dy.chunks_exact(width).for_each(|row| rows::add(&row[columns.clone()], d_bias));
        });
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
        let (count, width) = (x.rows(), x.columns());
        let [x, weight, bias, y, statistics] = self.memory.split([x, weight, bias, y, statistics]);
        let pieces = self.threads.cut(count, 1, x.len());
        let of_rows = pieces.iter().map(|rows| &x[rows.start * width..rows.end * width]);
        let written =
            threads::rows(y, width, &pieces).into_iter().zip(threads::rows(statistics, 2, &pieces));
        self.threads.each(of_rows.zip(written).collect(), |(x, (y, statistics))| {
            layer_norm::forward(x, weight, bias, y, statistics);
        });
    }

    fn layer_norm_backward(&mut self, norm: Norm, dy: View, dx: View) {
        let Norm { x, weight, bias, statistics, .. } = norm;
        let [x, weight, statistics, dy, dx, d_weight, d_bias] =
            self.memory.split([x, weight, statistics, dy, dx, weight.gradient(), bias.gradient()]);
        let input = layer_norm::Input { x, weight, statistics };
        let width = weight.len();
        let pieces = self.threads.cut(dy.len() / width.max(1), 1, dy.len());
        let dx = threads::rows(dx, width, &pieces).into_iter();
        self.threads.each(dx.zip(pieces).collect(), |(dx, rows)| {
            let elements = rows.start * width..rows.end * width;
            layer_norm::backward(input.rows(rows), &dy[elements], dx);
        });
        let columns = self.threads.cut(width, LINE, dy.len());
        let gradients = threads::rows(d_weight, 1, &columns).into_iter();
        let gradients = gradients.zip(threads::rows(d_bias, 1, &columns));
        self.threads.each(gradients.zip(columns).collect(), |((d_weight, d_bias), columns)| {
            layer_norm::backward_of_parameters(input, dy, columns, d_weight, d_bias);
        });
    }

    fn attention(&mut self, attention: Attention) {
        let heads = attention::HeadShape::of(attention);
        let [qkv, y, statistics] =
            self.memory.split([attention.qkv, attention.y, attention.statistics]);
        let threads = ScratchThreads { threads: &self.threads, scratch: &mut self.scratch };
        attention::forward(heads, qkv, y, statistics, threads);
    }

    fn attention_backward(&mut self, attention: Attention, dy: View, d_qkv: View, _scratch: View) {
        let heads = attention::HeadShape::of(attention);
        let [qkv, y, statistics, dy, d_qkv] =
            self.memory.split([attention.qkv, attention.y, attention.statistics, dy, d_qkv]);
        let kept = attention::Kept { qkv, y, statistics };
        let threads = ScratchThreads { threads: &self.threads, scratch: &mut self.scratch };
        attention::backward(heads, kept, dy, d_qkv, threads);
    }

    fn gelu(&mut self, x: View, y: View) {
        self.elementwise([x, y], EXPONENTIAL, gelu::forward);
    }

    fn gelu_backward(&mut self, x: View, dy: View) {
        self.elementwise([x, dy], EXPONENTIAL, gelu::backward);
    }

    fn cross_entropy(&mut self, logits: View, targets: Indices, losses: View, scale: f64) {
        let (targets, [logits, losses]) = self.memory.split_indexed(targets, [logits, losses]);
        let classes = logits.len() / losses.len().max(1);
        let pieces = self.threads.cut(losses.len(), 1, logits.len() * EXPONENTIAL);
        let logits = threads::rows(logits, classes, &pieces).into_iter();
        let targets = pieces.iter().map(|rows| &targets[rows.clone()]);
        let parts = logits.zip(targets).zip(threads::rows(losses, 1, &pieces)).collect();
        self.threads.each(parts, |((logits, targets), losses)| {
            cross_entropy::forward_backward(logits, targets, losses, scale as f32);
        });
    }

    fn bytes(&self) -> usize {
        let of_thread = |it: &Scratch| it.gemm.bytes() + size_of_val(&it.scores[..]);
        self.memory.bytes() + self.scratch.iter().map(of_thread).sum::<usize>()
    }
}

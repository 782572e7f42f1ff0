//! The reference: every operation in f64 with plain loops, as in the textbook.
//!
//! Tests check other backends against it, and whole models against finite differences computed with
//! it. It is slow, and training never uses it.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;

use super::memory::Memory;
use super::{Arena, Attention, Backend, DeviceError, Fetched, Indices, Norm, Sizes, View};

/// A backend that is obviously right.
pub struct Reference {
    memory: Memory<f64>,
    /// Requested ranges of the gradient, which lie here all the time.
    fetches: VecDeque<Range<usize>>,
}

impl Reference {
    /// Allocates the arenas, zeroed.
    pub fn new(sizes: Sizes) -> Self {
        Self { memory: Memory::new(sizes), fetches: VecDeque::new() }
    }
}

impl Backend for Reference {
    fn write(&mut self, to: View, values: &[f32]) {
        let to = self.memory.change(to);
        assert_eq!(to.len(), values.len(), "one value for each element");
        for (to, value) in to.iter_mut().zip(values) {
            *to = f64::from(*value);
        }
    }

    fn write_indices(&mut self, to: Indices, values: &[u32]) {
        self.memory.write_indices(to, values);
    }

    fn read_back(&mut self, from: View) -> Result<Cow<'_, [f32]>, DeviceError> {
        Ok(self.memory.read(from).iter().map(|value| *value as f32).collect())
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
        Ok(self.memory.read(from).iter().sum())
    }

    fn zero(&mut self, to: View) {
        self.memory.change(to).fill(0.0);
    }

    fn matmul(&mut self, a: View, b: View, c: View) {
        self.zero(c);
        self.matmul_add(a, b, c);
    }

    fn matmul_add(&mut self, a: View, b: View, c: View) {
        assert_eq!((a.rows(), b.columns()), (c.rows(), c.columns()), "shape of the product");
        assert_eq!(a.columns(), b.rows(), "inner size of the product");
        // Where element (i, j) lies in the memory of a matrix, transposed or not.
        let at = |view: View, i: usize, j: usize| match view.transposed {
            false => i * view.columns + j,
            true => j * view.columns + i,
        };
        let upright = |view: View| View { transposed: false, ..view };
        let [left, right, sums] = self.memory.split([upright(a), upright(b), c]);
        for i in 0..c.rows() {
            for j in 0..c.columns() {
                for k in 0..a.columns() {
                    sums[at(c, i, j)] += left[at(a, i, k)] * right[at(b, k, j)];
                }
            }
        }
    }

    fn add(&mut self, x: View, y: View) {
        assert_eq!(x.len(), y.len(), "a residual connection keeps the shape");
        let [x, y] = self.memory.split([x, y]);
        for (y, x) in y.iter_mut().zip(x) {
            *y += *x;
        }
    }

    fn add_bias(&mut self, bias: View, y: View) {
        let columns = y.columns();
        let [bias, y] = self.memory.split([bias, y]);
        assert_eq!(bias.len(), columns, "one bias for each column");
        for (i, y) in y.iter_mut().enumerate() {
            *y += bias[i % columns];
        }
    }

    fn bias_backward(&mut self, dy: View, d_bias: View) {
        let columns = dy.columns();
        let [dy, d_bias] = self.memory.split([dy, d_bias]);
        assert_eq!(d_bias.len(), columns, "one bias for each column");
        for (i, dy) in dy.iter().enumerate() {
            d_bias[i % columns] += *dy;
        }
    }

    fn embedding(&mut self, tokens: Indices, table: View, y: View) {
        let columns = y.columns();
        let (tokens, [table, y]) = self.memory.split_indexed(tokens, [table, y]);
        for (row, token) in tokens.iter().enumerate() {
            for column in 0..columns {
                y[row * columns + column] = table[*token as usize * columns + column];
            }
        }
    }

    fn embedding_backward(&mut self, tokens: Indices, dy: View, d_table: View) {
        let columns = dy.columns();
        let (tokens, [dy, d_table]) = self.memory.split_indexed(tokens, [dy, d_table]);
        for (row, token) in tokens.iter().enumerate() {
            for column in 0..columns {
                d_table[*token as usize * columns + column] += dy[row * columns + column];
            }
        }
    }

    fn layer_norm(&mut self, norm: Norm) {
        let (rows, width) = (norm.x.rows(), norm.x.columns());
        let Norm { x, weight, bias, y, statistics } = norm;
        let [x, weight, bias, y, statistics] = self.memory.split([x, weight, bias, y, statistics]);
        for row in 0..rows {
            let x = &x[row * width..][..width];
            let mean = x.iter().sum::<f64>() / width as f64;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
            let inverse = 1.0 / (variance + f64::from(Norm::EPSILON)).sqrt();
            for column in 0..width {
                let normal = (x[column] - mean) * inverse;
                y[row * width + column] = weight[column] * normal + bias[column];
            }
            statistics[2 * row] = mean;
            statistics[2 * row + 1] = inverse;
        }
    }

    fn layer_norm_backward(&mut self, norm: Norm, dy: View, dx: View) {
        let (rows, width) = (norm.x.rows(), norm.x.columns());
        let Norm { x, weight, bias, statistics, .. } = norm;
        let [x, weight, statistics, dy, dx, d_weight, d_bias] =
            self.memory.split([x, weight, statistics, dy, dx, weight.gradient(), bias.gradient()]);
        for row in 0..rows {
            let (mean, inverse) = (statistics[2 * row], statistics[2 * row + 1]);
            let (mut mean_g, mut mean_g_normal) = (0.0, 0.0);
            for column in 0..width {
                let dy = dy[row * width + column];
                let normal = (x[row * width + column] - mean) * inverse;
                d_weight[column] += dy * normal;
                d_bias[column] += dy;
                mean_g += dy * weight[column] / width as f64;
                mean_g_normal += dy * weight[column] * normal / width as f64;
            }
            for column in 0..width {
                let g = dy[row * width + column] * weight[column];
                let normal = (x[row * width + column] - mean) * inverse;
                dx[row * width + column] += inverse * (g - mean_g - normal * mean_g_normal);
            }
        }
    }

    fn attention(&mut self, attention: Attention) {
        let heads = HeadIndex::of(attention);
        let [qkv, y, statistics] =
            self.memory.split([attention.qkv, attention.y, attention.statistics]);
        y.fill(0.0);
        for (head, i) in heads.queries() {
            let scores: Vec<f64> = heads.keys(i).map(|j| heads.score(qkv, head, i, j)).collect();
            let largest = scores.iter().copied().fold(f64::MIN, f64::max);
            let sum: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
            statistics[i * heads.heads + head] = largest + sum.ln();
            for (j, score) in heads.keys(i).zip(scores) {
                let probability = (score - largest).exp() / sum;
                for d in 0..heads.size {
                    y[heads.output(head, i) + d] += probability * qkv[heads.value(head, j) + d];
                }
            }
        }
    }

    fn attention_backward(&mut self, attention: Attention, dy: View, d_qkv: View, _scratch: View) {
        let heads = HeadIndex::of(attention);
        let [qkv, y, statistics, dy, d_qkv] =
            self.memory.split([attention.qkv, attention.y, attention.statistics, dy, d_qkv]);
        d_qkv.fill(0.0);
        for (head, i) in heads.queries() {
            let out = heads.output(head, i)..heads.output(head, i) + heads.size;
            // The sum over keys of probability times its gradient.
            let expected: f64 =
                y[out.clone()].iter().zip(&dy[out.clone()]).map(|(y, dy)| y * dy).sum();
            for j in heads.keys(i) {
                let score = heads.score(qkv, head, i, j);
                let probability = (score - statistics[i * heads.heads + head]).exp();
                let (q, k, v) = (heads.query(head, i), heads.key(head, j), heads.value(head, j));
                let d_probability: f64 =
                    (0..heads.size).map(|d| dy[out.start + d] * qkv[v + d]).sum();
                let d_score = probability * (d_probability - expected) * heads.scale();
                for d in 0..heads.size {
                    d_qkv[q + d] += d_score * qkv[k + d];
                    d_qkv[k + d] += d_score * qkv[q + d];
                    d_qkv[v + d] += probability * dy[out.start + d];
                }
            }
        }
    }

    fn gelu(&mut self, x: View, y: View) {
        let [x, y] = self.memory.split([x, y]);
        for (x, y) in x.iter().zip(y) {
            let (tanh, _) = gelu_tanh(*x);
            *y = 0.5 * x * (1.0 + tanh);
        }
    }

    fn gelu_backward(&mut self, x: View, dy: View) {
        let [x, dy] = self.memory.split([x, dy]);
        for (x, dy) in x.iter().zip(dy) {
            let (tanh, slope) = gelu_tanh(*x);
            *dy *= 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * slope;
        }
    }

    fn cross_entropy(&mut self, logits: View, targets: Indices, losses: View, scale: f64) {
        let columns = logits.columns();
        let (targets, [logits, losses]) = self.memory.split_indexed(targets, [logits, losses]);
        for (row, target) in targets.iter().enumerate() {
            let logits = &mut logits[row * columns..][..columns];
            let largest = logits.iter().copied().fold(f64::MIN, f64::max);
            let sum: f64 = logits.iter().map(|logit| (logit - largest).exp()).sum();
            losses[row] = largest + sum.ln() - logits[*target as usize];
            for (class, logit) in logits.iter_mut().enumerate() {
                let certain = if class == *target as usize { 1.0 } else { 0.0 };
                *logit = scale * ((*logit - largest).exp() / sum - certain);
            }
        }
    }

    fn bytes(&self) -> usize {
        self.memory.bytes()
    }
}

/// The tanh inside GELU at `x`, and the derivative of its argument.
fn gelu_tanh(x: f64) -> (f64, f64) {
    let factor = (2.0 / std::f64::consts::PI).sqrt();
    let tanh = (factor * (x + 0.044715 * x.powi(3))).tanh();
    (tanh, factor * (1.0 + 3.0 * 0.044715 * x * x))
}

/// Where attention's numbers lie.
struct HeadIndex {
    rows: usize,
    sequence: usize,
    heads: usize,
    /// The width of one head.
    size: usize,
}

impl HeadIndex {
    fn of(attention: Attention) -> Self {
        let Attention { heads, sequence, y, .. } = attention;
        Self { rows: y.rows(), sequence, heads, size: y.columns() / heads }
    }

    /// Every head of every row.
    fn queries(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let heads = self.heads;
        (0..self.rows).flat_map(move |row| (0..heads).map(move |head| (head, row)))
    }

    /// The rows that row `i` attends to.
    fn keys(&self, i: usize) -> std::ops::RangeInclusive<usize> {
        i - i % self.sequence..=i
    }

    fn query(&self, head: usize, row: usize) -> usize {
        (3 * row * self.heads + head) * self.size
    }

    fn key(&self, head: usize, row: usize) -> usize {
        ((3 * row + 1) * self.heads + head) * self.size
    }

    fn value(&self, head: usize, row: usize) -> usize {
        ((3 * row + 2) * self.heads + head) * self.size
    }

    fn output(&self, head: usize, row: usize) -> usize {
        (row * self.heads + head) * self.size
    }

    fn scale(&self) -> f64 {
        1.0 / (self.size as f64).sqrt()
    }

    fn score(&self, qkv: &[f64], head: usize, i: usize, j: usize) -> f64 {
        let (q, k) = (self.query(head, i), self.key(head, j));
        (0..self.size).map(|d| qkv[q + d] * qkv[k + d]).sum::<f64>() * self.scale()
    }
}

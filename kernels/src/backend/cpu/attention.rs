//! Causal attention, one head of one sequence at a time, a block of queries against all keys up to
//! its end. Only one block of scores exists at a time.
//!
//! `q, k, v`: queries, keys, values. `s`: scores. `p`: probabilities. `d_`: the gradient of.

use super::gemm::{Grid, OutputMatrix};
use super::math::{exp, largest, ln, sums};
use super::{Scratch, ScratchThreads};
use crate::backend::Attention;
use multiversion::multiversion;
use std::ops::Range;

/// The queries in a block.
pub const BLOCK: usize = 64;

/// The shape of an attention, on the host.
#[derive(Clone, Copy)]
pub struct HeadShape {
    sequences: usize,
    sequence: usize,
    heads: usize,
    /// The width of one head.
    size: usize,
}

/// The values that the forward pass keeps for the backward pass.
pub struct Kept<'a> {
    /// Queries, keys and values.
    pub qkv: &'a [f32],
    /// The output of the forward pass.
    pub y: &'a [f32],
    /// The logarithm of each row's sum of exponentials.
    pub statistics: &'a [f32],
}

/// Writes `y` and `statistics`.
pub fn forward(
    heads: HeadShape,
    qkv: &[f32],
    y: &mut [f32],
    statistics: &mut [f32],
    threads: ScratchThreads<'_>,
) {
    let rows = statistics.chunks_exact_mut(heads.sequence);
    let parts = heads.all().zip(heads.cut(y)).zip(rows).collect();
    heads.each(threads, parts, |((head, [mut y]), statistics), scratch| {
        for queries in heads.blocks() {
            let keys = 0..queries.end;
            let s = &mut scratch.scores[..queries.len() * keys.len()];
            let s_grid = Grid::dense(queries.len(), keys.len());
            let (q, k) = (head.q(queries.clone()), head.k(keys.clone()));
            scratch.gemm.multiply(q.of(qkv), k.t().of(qkv), OutputMatrix::new(s, s_grid), false);
            softmax(s, queries.start, heads.scale(), &mut statistics[queries.clone()]);
            let y = y.again().rows(queries);
            scratch.gemm.multiply(s_grid.of(s), head.v(keys).of(qkv), y, false);
        }
    });
}

/// Writes `d_qkv`.
pub fn backward(
    heads: HeadShape,
    kept: Kept<'_>,
    dy: &[f32],
    d_qkv: &mut [f32],
    threads: ScratchThreads<'_>,
) {
    let Kept { qkv, y, statistics } = kept;
    let rows = statistics.chunks_exact(heads.sequence);
    let parts = heads.all().zip(heads.cut(d_qkv)).zip(rows).collect();
    heads.each(threads, parts, |((head, [mut dq, mut dk, mut dv]), statistics), scratch| {
        let Scratch { gemm, scores } = scratch;
        let half = scores.len() / 2;
        let (p, ds) = scores.split_at_mut(half);
        // The last block reaches all keys, so it writes its gradients. The others add theirs.
        for queries in heads.blocks().rev() {
            let keys = 0..queries.end;
            let accumulate = queries.end < heads.sequence;
            let (p, ds) =
                (&mut p[..queries.len() * keys.len()], &mut ds[..queries.len() * keys.len()]);
            let grid = Grid::dense(queries.len(), keys.len());
            let (q, k, v) = (head.q(queries.clone()), head.k(keys.clone()), head.v(keys.clone()));
            let rows = head.y(queries.clone());
            gemm.multiply(q.of(qkv), k.t().of(qkv), OutputMatrix::new(p, grid), false);
            gemm.multiply(rows.of(dy), v.t().of(qkv), OutputMatrix::new(ds, grid), false);
            let mut expected = [0.0; BLOCK];
            row_products(y, dy, rows, &mut expected);
            let block = BlockRows {
                first: queries.start,
                scale: heads.scale(),
                statistics: &statistics[queries.clone()],
                expected: &expected[..queries.len()],
            };
            softmax_backward(block, p, ds);
            let (dv, dk) = (dv.again().rows(keys.clone()), dk.again().rows(keys));
            gemm.multiply(grid.t().of(p), rows.of(dy), dv, accumulate);
            gemm.multiply(grid.t().of(ds), q.of(qkv), dk, accumulate);
            gemm.multiply(grid.of(ds), k.of(qkv), dq.again().rows(queries), false);
        }
    });
}

/// Turns the scores of queries from `first` on into probabilities, zero for later keys.
#[multiversion(targets = "simd")]
fn softmax(scores: &mut [f32], first: usize, scale: f32, statistics: &mut [f32]) {
    let keys = scores.len() / statistics.len();
    let rows = scores.chunks_exact_mut(keys).zip(statistics);
    for (row, (scores, statistic)) in rows.enumerate() {
        let (past, future) = scores.split_at_mut(first + row + 1);
        let largest = largest(past) * scale;
        for s in past.iter_mut() {
            *s = exp(*s * scale - largest);
        }
        let [sum] = sums([past], |[exp]| [exp]);
        let factor = 1.0 / sum;
        for s in past {
            *s *= factor;
        }
        future.fill(0.0);
        *statistic = largest + ln(sum);
    }
}

/// The rows of a block of the backward pass.
struct BlockRows<'a> {
    /// The position of the first query.
    first: usize,
    scale: f32,
    /// The logarithm of each row's sum of exponentials.
    statistics: &'a [f32],
    /// The mean of the gradient of each row's probabilities under these probabilities.
    expected: &'a [f32],
}

/// Turns scores `p` into probabilities, and their gradient `ds` into the gradient of the products.
#[multiversion(targets = "simd")]
fn softmax_backward(block: BlockRows<'_>, p: &mut [f32], ds: &mut [f32]) {
    let scale = block.scale;
    let keys = p.len() / block.statistics.len();
    let rows = p.chunks_exact_mut(keys).zip(ds.chunks_exact_mut(keys));
    let of_rows = block.statistics.iter().zip(block.expected);
    for (row, ((p, ds), (&statistic, &expected))) in rows.zip(of_rows).enumerate() {
        let past = block.first + row + 1;
        for (p, ds) in p[..past].iter_mut().zip(&mut ds[..past]) {
            *p = exp(*p * scale - statistic);
            *ds = *p * (*ds - expected) * scale;
        }
        p[past..].fill(0.0);
        ds[past..].fill(0.0);
    }
}

/// The inner product of each row of `a` with that of `b`.
#[multiversion(targets = "simd")]
fn row_products(a: &[f32], b: &[f32], rows: Grid, products: &mut [f32; BLOCK]) {
    for (row, product) in (0..rows.rows).zip(products) {
        let start = rows.offset + row * rows.row_stride;
        let range = start..start + rows.columns;
        [*product] = sums([&a[range.clone()], &b[range]], |[a, b]| [a * b]);
    }
}

impl HeadShape {
    /// The shape of `attention`.
    pub fn of(attention: Attention) -> Self {
        let Attention { heads, sequence, qkv, y, .. } = attention;
        assert_eq!(qkv.columns(), 3 * y.columns(), "queries, keys and values");
        assert_eq!((y.columns() % heads, y.rows() % sequence), (0, 0), "whole heads and sequences");
        Self { sequences: y.rows() / sequence, sequence, heads, size: y.columns() / heads }
    }

    fn all(self) -> impl Iterator<Item = Head> {
        let heads = 0..self.heads;
        (0..self.sequences).flat_map(move |sequence| {
            heads.clone().map(move |head| Head { of: self, sequence, head })
        })
    }

    /// A matrix that holds `PARTS` times the width, cut into those parts of each head. The heads
    /// are in the order of [`HeadShape::all`].
    fn cut<const PARTS: usize>(
        self,
        matrix: &mut [f32],
    ) -> impl Iterator<Item = [OutputMatrix<'_>; PARTS]> {
        let Self { sequences, sequence, heads, size } = self;
        let pieces = |count: usize, of: usize| (0..count).map(move |at| at * of..(at + 1) * of);
        let grid = Grid::dense(sequences * sequence, PARTS * heads * size);
        let rows = OutputMatrix::new(matrix, grid).cut_rows(pieces(sequences, sequence));
        rows.into_iter().flat_map(move |rows| {
            let parts = rows.cut_columns(pieces(PARTS, heads * size)).into_iter();
            let mut parts: Vec<_> =
                parts.map(|part| part.cut_columns(pieces(heads, size)).into_iter()).collect();
            (0..heads).map(move |_| {
                std::array::from_fn(|part| parts[part].next().expect("as many as heads"))
            })
        })
    }

    /// Does some work for each of these parts, of which each head has one, on all threads.
    fn each<T: Send>(
        self,
        threads: ScratchThreads<'_>,
        parts: Vec<T>,
        work: impl Fn(T, &mut Scratch) + Sync,
    ) {
        let ScratchThreads { threads, scratch } = threads;
        // Of a score, its products take the time.
        let of_head = self.sequence * self.sequence * self.size / 8;
        let pieces = threads.cut(parts.len(), 1, parts.len() * of_head);
        let mut parts = parts.into_iter();
        let mut groups = Vec::with_capacity(pieces.len());
        for (piece, scratch) in pieces.into_iter().zip(scratch) {
            groups.push((parts.by_ref().take(piece.len()).collect::<Vec<_>>(), scratch));
        }
        threads.each(groups, |(group, scratch)| {
            group.into_iter().for_each(|part| work(part, scratch));
        });
    }

    fn blocks(self) -> impl DoubleEndedIterator<Item = Range<usize>> {
        (0..self.sequence.div_ceil(BLOCK))
            .map(move |block| block * BLOCK..self.sequence.min((block + 1) * BLOCK))
    }

    fn scale(self) -> f32 {
        1.0 / (self.size as f32).sqrt()
    }
}

/// One head of one sequence, with the place of its numbers.
#[derive(Clone, Copy)]
struct Head {
    of: HeadShape,
    sequence: usize,
    head: usize,
}

impl Head {
    fn q(self, rows: Range<usize>) -> Grid {
        self.grid(rows, 3, 0)
    }

    fn k(self, rows: Range<usize>) -> Grid {
        self.grid(rows, 3, 1)
    }

    fn v(self, rows: Range<usize>) -> Grid {
        self.grid(rows, 3, 2)
    }

    fn y(self, rows: Range<usize>) -> Grid {
        self.grid(rows, 1, 0)
    }

    /// Rows of this head in a matrix that holds `parts` times the width. `part` selects one of
    /// them.
    fn grid(self, rows: Range<usize>, parts: usize, part: usize) -> Grid {
        let HeadShape { sequence, heads, size, .. } = self.of;
        let row = self.sequence * sequence + rows.start;
        Grid {
            offset: ((row * parts + part) * heads + self.head) * size,
            rows: rows.len(),
            columns: size,
            row_stride: parts * heads * size,
            column_stride: 1,
        }
    }
}

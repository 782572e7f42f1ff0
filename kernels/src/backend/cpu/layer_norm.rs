//! Layer normalisation, row by row. The mean is subtracted before squares are summed, so rows far
//! from zero lose little.

use std::ops::Range;

use super::math::sums;
use crate::backend::Norm;
use multiversion::multiversion;

/// The values that the forward pass keeps for the backward pass.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// The input, `[rows, width]`.
    pub x: &'a [f32],
    /// The scale, `[width]`.
    pub weight: &'a [f32],
    /// Mean and reciprocal deviation of each row, `[rows, 2]`.
    pub statistics: &'a [f32],
}

impl Input<'_> {
    /// Some rows of the input.
    pub fn rows(self, rows: Range<usize>) -> Self {
        let width = self.weight.len();
        let x = &self.x[rows.start * width..rows.end * width];
        Self { x, statistics: &self.statistics[2 * rows.start..2 * rows.end], ..self }
    }
}

/// Writes `y` and `statistics`.
#[multiversion(targets = "simd")]
pub fn forward(x: &[f32], weight: &[f32], bias: &[f32], y: &mut [f32], statistics: &mut [f32]) {
    let width = weight.len();
    let rows = x.chunks_exact(width).zip(y.chunks_exact_mut(width));
    for ((x, y), statistics) in rows.zip(statistics.as_chunks_mut::<2>().0) {
        let [sum] = sums([x], |[x]| [x]);
        let mean = sum / width as f32;
        let [squares] = sums([x], |[x]| [(x - mean) * (x - mean)]);
        let inverse = 1.0 / (squares / width as f32 + Norm::EPSILON).sqrt();
        for (((y, x), weight), bias) in y.iter_mut().zip(x).zip(weight).zip(bias) {
            *y = (x - mean) * inverse * weight + bias;
        }
        *statistics = [mean, inverse];
    }
}

/// Adds to `dx`.
#[multiversion(targets = "simd")]
pub fn backward(input: Input<'_>, dy: &[f32], dx: &mut [f32]) {
    let weight = input.weight;
    let width = weight.len();
    let rows = input.x.chunks_exact(width).zip(dy.chunks_exact(width));
    let rows = rows.zip(input.statistics.as_chunks::<2>().0).zip(dx.chunks_exact_mut(width));
    for (((x, dy), &[mean, inverse]), dx) in rows {
        let [sum, product] = sums([x, dy, weight], |[x, dy, weight]| {
            let g = dy * weight;
            [g, g * ((x - mean) * inverse)]
        });
        let (mean_g, mean_product) = (sum / width as f32, product / width as f32);
        for (((dx, dy), x), weight) in dx.iter_mut().zip(dy).zip(x).zip(weight) {
            let normal = (x - mean) * inverse;
            *dx += inverse * (dy * weight - mean_g - normal * mean_product);
        }
    }
}

/// Adds to these columns of the gradients of scale and bias.
#[multiversion(targets = "simd")]
pub fn backward_of_parameters(
    input: Input<'_>,
    dy: &[f32],
    columns: Range<usize>,
    d_weight: &mut [f32],
    d_bias: &mut [f32],
) {
    let width = input.weight.len();
    let rows = input.x.chunks_exact(width).zip(dy.chunks_exact(width));
    for ((x, dy), &[mean, inverse]) in rows.zip(input.statistics.as_chunks::<2>().0) {
        let (x, dy) = (&x[columns.clone()], &dy[columns.clone()]);
        for (((d_weight, d_bias), dy), x) in d_weight.iter_mut().zip(&mut *d_bias).zip(dy).zip(x) {
            *d_weight += dy * ((x - mean) * inverse);
            *d_bias += dy;
        }
    }
}

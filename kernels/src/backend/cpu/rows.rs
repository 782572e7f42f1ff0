//! Sums and copies of rows: residual connections, biases, embeddings.

use multiversion::multiversion;

/// `y += x`.
#[multiversion(targets = "simd")]
pub fn add(x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "only equal shapes are added");
    for (y, x) in y.iter_mut().zip(x) {
        *y += *x;
    }
}

/// Writes row `tokens[i]` of `table` into row `i` of `y`. Rows are `width` long.
pub fn gather(tokens: &[u32], width: usize, table: &[f32], y: &mut [f32]) {
    assert_eq!(tokens.len() * width, y.len(), "one row for each token");
    for (token, y) in tokens.iter().zip(y.chunks_exact_mut(width)) {
        y.copy_from_slice(&table[*token as usize * width..][..width]);
    }
}

/// Adds row `i` of `dy` to row `tokens[i]` of `d_table`, in the order of `i`.
pub fn scatter_add(tokens: &[u32], width: usize, dy: &[f32], d_table: &mut [f32]) {
    assert_eq!(tokens.len() * width, dy.len(), "one row for each token");
    for (token, dy) in tokens.iter().zip(dy.chunks_exact(width)) {
        add(dy, &mut d_table[*token as usize * width..][..width]);
    }
}

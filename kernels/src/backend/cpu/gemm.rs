//! Matrix products over strided parts of slices: a checked door to `matrixmultiply`.
//!
//! Its result is, for any vector width and any shape, the inner products added in order of the
//! inner index, in blocks of fixed length. That holds because the product is never scaled here: a
//! scale would be fused with the addition in some tiles and not in others.

/// Which elements of a slice make a matrix.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// The index of the first element.
    pub offset: usize,
    /// The number of rows.
    pub rows: usize,
    /// The number of columns.
    pub columns: usize,
    /// From one row to the next, elements.
    pub row_stride: usize,
    /// From one column to the next, elements.
    pub column_stride: usize,
}

impl Grid {
    /// A row-major matrix without gaps, from the beginning of the slice.
    pub fn dense(rows: usize, columns: usize) -> Self {
        Self { offset: 0, rows, columns, row_stride: columns, column_stride: 1 }
    }

    /// The transpose.
    pub fn t(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    fn assert_inside(self, len: usize) {
        let last = self.offset
            + (self.rows - 1) * self.row_stride
            + (self.columns - 1) * self.column_stride;
        assert!(last < len, "{self:?} reaches beyond {len} elements");
    }
}

/// `c = a b`, or `c += a b` to accumulate.
pub fn gemm(
    (a, a_grid): (&[f32], Grid),
    (b, b_grid): (&[f32], Grid),
    (c, c_grid): (&mut [f32], Grid),
    accumulate: bool,
) {
    assert_eq!(
        (a_grid.rows, b_grid.columns),
        (c_grid.rows, c_grid.columns),
        "shape of the product"
    );
    assert_eq!(a_grid.columns, b_grid.rows, "inner size of the product");
    assert!(c_grid.row_stride >= c_grid.columns && c_grid.column_stride == 1, "rows overlap");
    if c_grid.rows * c_grid.columns == 0 {
        return;
    }
    assert_ne!(a_grid.columns, 0, "a product over nothing");
    a_grid.assert_inside(a.len());
    b_grid.assert_inside(b.len());
    c_grid.assert_inside(c.len());
    // SAFETY: all three grids were just checked to lie inside their slices, the slices do not
    // overlap as `c` is borrowed exclusively, and distinct elements of `c` are distinct in memory.
    unsafe {
        matrixmultiply::sgemm(
            c_grid.rows,
            a_grid.columns,
            c_grid.columns,
            1.0,
            a.as_ptr().add(a_grid.offset),
            a_grid.row_stride as isize,
            a_grid.column_stride as isize,
            b.as_ptr().add(b_grid.offset),
            b_grid.row_stride as isize,
            b_grid.column_stride as isize,
            if accumulate { 1.0 } else { 0.0 },
            c.as_mut_ptr().add(c_grid.offset),
            c_grid.row_stride as isize,
            c_grid.column_stride as isize,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Philox;
    use proptest::prelude::*;

    /// The inner index is cut into blocks of this length.
    const BLOCK: usize = 256;

    proptest! {
        #[test]
        fn a_product_is_fused_in_order_within_blocks(
            (rows, inner, columns) in (1usize..40, 1usize..600, 1usize..40)
        ) {
            let normal = |stream: u64, count: usize| -> Vec<f32> {
                (0..count).map(|i| Philox::new(1, 0, stream).normal(i as u64)).collect()
            };
            let (a, b) = (normal(0, rows * inner), normal(1, inner * columns));
            let mut c = normal(2, rows * columns);
            let mut expected = c.clone();
            for (i, sum) in expected.iter_mut().enumerate() {
                for block in (0..inner).step_by(BLOCK) {
                    *sum += (block..inner.min(block + BLOCK)).fold(0.0, |sum: f32, k| {
                        a[i / columns * inner + k].mul_add(b[k * columns + i % columns], sum)
                    });
                }
            }
            let (a_grid, b_grid) = (Grid::dense(rows, inner), Grid::dense(inner, columns));
            gemm((&a, a_grid), (&b, b_grid), (&mut c, Grid::dense(rows, columns)), true);
            prop_assert_eq!(c, expected);
        }
    }
}

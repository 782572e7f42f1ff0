//! Matrix products over strided parts of slices: a checked door to [`avx512`], if the machine has
//! it, else to `matrixmultiply`. Both give the same bits on machines that fuse, and all but very
//! old machines do.
//!
//! Its result is, for any vector width and any shape, the inner products added in order of the
//! inner index, in blocks of fixed length. That holds because the product is never scaled here: a
//! scale would be fused with the addition in some tiles and not in others.

use std::marker::PhantomData;
use std::ops::Range;

use crate::threads::Threads;

#[cfg(target_arch = "x86_64")]
mod avx512;

/// Rows of a tile. With 32 columns, they give as many sums as AVX-512 has registers to hold them.
const TALL: usize = 14;
/// Columns of a tile. Threads cut a product between tiles.
const WIDE: usize = 32;
/// Multiplications that take as long as an element of other operations.
const PRODUCTS_AN_ELEMENT: usize = 16;

/// The elements of a slice that make a matrix.
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

    /// The transpose, of the same memory.
    pub fn t(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    /// Whether the elements of each row, or of each column, lie side by side.
    #[cfg(target_arch = "x86_64")]
    fn is_whole(self) -> bool {
        self.row_stride == 1 || self.column_stride == 1
    }

    /// Some rows of it.
    pub fn rows(self, rows: Range<usize>) -> Self {
        assert!(rows.end <= self.rows, "{self:?} has no rows {rows:?}");
        Self { offset: self.offset + rows.start * self.row_stride, rows: rows.len(), ..self }
    }

    /// Some columns of it.
    pub fn columns(self, columns: Range<usize>) -> Self {
        self.t().rows(columns).t()
    }

    /// The matrix in this memory.
    pub fn of(self, memory: &[f32]) -> InputMatrix<'_> {
        self.assert_inside(memory.len());
        InputMatrix { memory, grid: self }
    }

    fn assert_inside(self, len: usize) {
        if self.rows * self.columns == 0 {
            return;
        }
        let last = self.offset
            + (self.rows - 1) * self.row_stride
            + (self.columns - 1) * self.column_stride;
        assert!(last < len, "{self:?} reaches beyond {len} elements");
    }
}

/// A matrix to read, inside its memory.
#[derive(Clone, Copy)]
pub struct InputMatrix<'a> {
    memory: &'a [f32],
    grid: Grid,
}

impl InputMatrix<'_> {
    /// Some rows of it.
    fn rows(self, rows: Range<usize>) -> Self {
        Self { grid: self.grid.rows(rows), ..self }
    }

    /// Some columns of it.
    fn columns(self, columns: Range<usize>) -> Self {
        Self { grid: self.grid.columns(columns), ..self }
    }
}

/// A matrix to write to, in memory that matrices of other threads may interleave with.
pub struct OutputMatrix<'a> {
    memory: *mut f32,
    grid: Grid,
    borrowed: PhantomData<&'a mut [f32]>,
}

// SAFETY: an output is the only one with its elements, as an exclusive slice would be.
unsafe impl Send for OutputMatrix<'_> {}

impl<'a> OutputMatrix<'a> {
    /// A matrix in this memory.
    pub fn new(memory: &'a mut [f32], grid: Grid) -> Self {
        assert!(grid.row_stride >= grid.columns && grid.column_stride == 1, "rows overlap");
        grid.assert_inside(memory.len());
        Self { memory: memory.as_mut_ptr(), grid, borrowed: PhantomData }
    }

    /// The same matrix, for a while.
    pub fn again(&mut self) -> OutputMatrix<'_> {
        OutputMatrix { borrowed: PhantomData, ..*self }
    }

    /// Some rows of it.
    pub fn rows(self, rows: Range<usize>) -> Self {
        Self { grid: self.grid.rows(rows), ..self }
    }

    /// Its rows, cut into pieces that follow each other.
    pub fn cut_rows(self, pieces: impl IntoIterator<Item = Range<usize>>) -> Vec<Self> {
        self.cut(pieces, Grid::rows)
    }

    /// Its columns, cut into pieces that follow each other.
    pub fn cut_columns(self, pieces: impl IntoIterator<Item = Range<usize>>) -> Vec<Self> {
        self.cut(pieces, Grid::columns)
    }

    fn cut(
        self,
        pieces: impl IntoIterator<Item = Range<usize>>,
        of: fn(Grid, Range<usize>) -> Grid,
    ) -> Vec<Self> {
        let mut end = 0;
        let piece = |piece: Range<usize>| {
            assert!(end <= piece.start, "pieces overlap");
            end = piece.end;
            Self { grid: of(self.grid, piece), ..self }
        };
        pieces.into_iter().map(piece).collect()
    }
}

/// Matrix products, with the memory that they need on the way.
pub struct Gemm {
    #[cfg(target_arch = "x86_64")]
    panels: Option<avx512::Panels>,
}

impl Gemm {
    /// Products by the best means that this machine has.
    pub fn new() -> Self {
        Self {
            #[cfg(target_arch = "x86_64")]
            panels: avx512::Panels::new(),
        }
    }

    /// The bytes that it holds.
    pub fn bytes(&self) -> usize {
        #[cfg(target_arch = "x86_64")]
        return self.panels.as_ref().map_or(0, avx512::Panels::bytes);
        #[cfg(not(target_arch = "x86_64"))]
        0
    }

    /// `c = a b`, or `c += a b` to accumulate.
    pub fn multiply(
        &mut self,
        a: InputMatrix<'_>,
        b: InputMatrix<'_>,
        c: OutputMatrix<'_>,
        accumulate: bool,
    ) {
        let (a_grid, b_grid, c_grid) = (a.grid, b.grid, c.grid);
        assert_eq!(
            (a_grid.rows, b_grid.columns),
            (c_grid.rows, c_grid.columns),
            "shape of the product"
        );
        assert_eq!(a_grid.columns, b_grid.rows, "inner size of the product");
        if c_grid.rows * c_grid.columns == 0 {
            return;
        }
        assert_ne!(a_grid.columns, 0, "a product over nothing");
        // SAFETY: the shapes were just checked. With `panels`, one stride of either factor is 1.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            if let Some(panels) = &mut self.panels
                && a_grid.is_whole()
                && b_grid.is_whole()
            {
                return panels.multiply(a, b, c, accumulate);
            }
            reference(a, b, c, accumulate);
        }
    }
}

/// As [`Gemm::multiply`], on all threads, with memory for each of them.
pub fn multiply<'a>(
    threads: &Threads,
    gemms: impl Iterator<Item = &'a mut Gemm>,
    a: InputMatrix<'_>,
    b: InputMatrix<'_>,
    c: OutputMatrix<'_>,
    accumulate: bool,
) {
    let Grid { rows, columns, .. } = c.grid;
    let work = rows * columns * a.grid.columns / PRODUCTS_AN_ELEMENT;
    // Each thread copies the factor that is not cut, so the larger one is.
    if rows >= columns {
        let pieces = threads.cut(rows, TALL, work);
        let parts = c.cut_rows(pieces.iter().cloned()).into_iter().zip(pieces).zip(gemms);
        threads.each(parts.collect(), |((c, piece), gemm)| {
            gemm.multiply(a.rows(piece), b, c, accumulate);
        });
    } else {
        let pieces = threads.cut(columns, WIDE, work);
        let parts = c.cut_columns(pieces.iter().cloned()).into_iter().zip(pieces).zip(gemms);
        threads.each(parts.collect(), |((c, piece), gemm)| {
            gemm.multiply(a, b.columns(piece), c, accumulate);
        });
    }
}

/// The same product by `matrixmultiply`, on machines of every kind.
///
/// # Safety
///
/// The shapes fit.
unsafe fn reference(a: InputMatrix<'_>, b: InputMatrix<'_>, c: OutputMatrix<'_>, accumulate: bool) {
    let (a_grid, b_grid, c_grid) = (a.grid, b.grid, c.grid);
    // SAFETY: each matrix lies inside its memory, which was checked when it was made. `c` is the
    // only one with its elements, so the factors do not overlap with it. The caller vouches for the
    // shapes.
    unsafe {
        matrixmultiply::sgemm(
            c_grid.rows,
            a_grid.columns,
            c_grid.columns,
            1.0,
            a.memory.as_ptr().add(a_grid.offset),
            a_grid.row_stride as isize,
            a_grid.column_stride as isize,
            b.memory.as_ptr().add(b_grid.offset),
            b_grid.row_stride as isize,
            b_grid.column_stride as isize,
            if accumulate { 1.0 } else { 0.0 },
            c.memory.add(c_grid.offset),
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
            let (mut d, mut expected) = (c.clone(), c.clone());
            for (i, sum) in expected.iter_mut().enumerate() {
                for block in (0..inner).step_by(BLOCK) {
                    *sum += (block..inner.min(block + BLOCK)).fold(0.0, |sum: f32, k| {
                        a[i / columns * inner + k].mul_add(b[k * columns + i % columns], sum)
                    });
                }
            }
            let (a, b) = (Grid::dense(rows, inner).of(&a), Grid::dense(inner, columns).of(&b));
            let grid = Grid::dense(rows, columns);
            Gemm::new().multiply(a, b, OutputMatrix::new(&mut c, grid), true);
            prop_assert_eq!(&c, &expected);
            // SAFETY: `multiply` has just checked the same shapes.
            unsafe { reference(a, b, OutputMatrix::new(&mut d, grid), true) };
            prop_assert_eq!(d, expected);
        }
    }

    /// Shapes at which every piece of a product has an edge: panels, blocks and tiles.
    #[test]
    fn the_fast_product_has_the_bits_of_the_reference() {
        let mut gemm = Gemm::new();
        if gemm.bytes() == 0 {
            eprintln!("no fast product on this machine: nothing to compare");
            return;
        }
        for [rows, inner, columns] in [
            [14, 256, 32],
            [519, 257, 33],
            [1, 1, 1],
            [13, 300, 1537],
            [33, 16, 17],
            [225, 1030, 65],
        ] {
            let normal = |stream, count| -> Vec<f32> {
                (0..count as u64).map(|i| Philox::new(2, 0, stream).normal(i)).collect()
            };
            let (a, b) = (normal(0, rows * inner), normal(1, inner * columns));
            let c_grid = Grid { row_stride: columns + 3, ..Grid::dense(rows, columns) };
            let before = normal(2, rows * c_grid.row_stride);
            let a_grids = [Grid::dense(rows, inner), Grid::dense(inner, rows).t()];
            let b_grids = [Grid::dense(inner, columns), Grid::dense(columns, inner).t()];
            for (a_grid, b_grid, accumulate) in a_grids
                .into_iter()
                .flat_map(|a| b_grids.map(|b| (a, b)))
                .flat_map(|(a, b)| [(a, b, false), (a, b, true)])
            {
                let (mut c, mut expected) = (before.clone(), before.clone());
                let (a, b) = (a_grid.of(&a), b_grid.of(&b));
                gemm.multiply(a, b, OutputMatrix::new(&mut c, c_grid), accumulate);
                let to = OutputMatrix::new(&mut expected, c_grid);
                // SAFETY: `multiply` has just checked the same shapes.
                unsafe { reference(a, b, to, accumulate) };
                let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&c), bits(&expected), "{a_grid:?} {b_grid:?} {accumulate}");
            }
        }
    }
}

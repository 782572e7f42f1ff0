//! Matrix products with AVX-512: 14 rows and 32 columns at a time, in 28 registers.
//!
//! The plan is that of Goto and van de Geijn ("Anatomy of High-Performance Matrix Multiplication"):
//! both factors are copied into panels, in the order in which the innermost loop reads them. A
//! panel of `b` stays in the first cache while all of a part of `a` passes by from the second. The
//! order of additions is that of `matrixmultiply`, to the bit: inner products in order of the inner
//! index, fused, in blocks of [`BLOCK`], and the blocks' sums one after the other. Two blocks are
//! packed at once, so that the second finds the sums of the first near.
//!
//! *Lanes* are the rows of `a` and the columns of `b`: a panel holds them side by side.

use std::arch::x86_64::*;
use std::ops::Range;

use super::{InputMatrix, OutputMatrix, TALL, WIDE};

/// The inner index is cut into blocks of this length. The bits depend on it.
const BLOCK: usize = 256;
/// Inner indices that are packed at once.
const DEPTH: usize = 2 * BLOCK;
/// Rows of a part of `a`: packed, a quarter of the second cache of a server's core.
const ROWS: usize = 15 * TALL;
/// Columns of a part of `b`: packed, 3 MiB.
const COLUMNS: usize = 48 * WIDE;
/// Numbers in a register, and in a cache line.
const LINE: usize = 16;

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([f32; LINE]);

/// Memory for the panels of both factors.
pub struct Panels {
    /// Panels of `a`, 14 lanes in each line of 16.
    left: Vec<Line>,
    /// Panels of `b`, 32 lanes in two lines.
    right: Vec<Line>,
}

impl Panels {
    /// Allocates them. `None` if this machine has no AVX-512.
    pub fn new() -> Option<Self> {
        let zeroed = |lines| vec![Line([0.0; LINE]); lines];
        is_x86_feature_detected!("avx512f").then(|| Self {
            left: zeroed(ROWS / TALL * DEPTH),
            right: zeroed(COLUMNS / LINE * DEPTH),
        })
    }

    /// The bytes of both allocated panels.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.left[..]) + size_of_val(&self.right[..])
    }

    /// `c = a b`, or `c += a b` to accumulate.
    ///
    /// # Safety
    ///
    /// The shapes fit. One stride of either factor is 1.
    pub unsafe fn multiply(
        &mut self,
        a: InputMatrix<'_>,
        b: InputMatrix<'_>,
        c: OutputMatrix<'_>,
        accumulate: bool,
    ) {
        let (a_grid, b_grid, c_grid) = (a.grid, b.grid, c.grid);
        let (a, b) = (a.memory.as_ptr(), b.memory.as_ptr());
        // SAFETY: `Panels` exist only where the machine has AVX-512. Each matrix lies inside its
        // memory, and the rows of `c` do not overlap, which was checked when it was made. `c` is
        // the only one with its elements. The caller vouches for the rest.
        unsafe {
            let rows = Lanes::new(a.add(a_grid.offset), a_grid.row_stride, a_grid.column_stride);
            let columns = Lanes::new(b.add(b_grid.offset), b_grid.column_stride, b_grid.row_stride);
            let sums = Sums { start: c.memory.add(c_grid.offset), row_stride: c_grid.row_stride };
            let shape = [a_grid.rows, a_grid.columns, b_grid.columns];
            self.parts(shape, rows, columns, sums, accumulate);
        }
    }

    /// # Safety
    ///
    /// As for [`Self::multiply`], and the machine has AVX-512.
    #[target_feature(enable = "avx512f")]
    unsafe fn parts(
        &mut self,
        [rows, depth, columns]: [usize; 3],
        a: Lanes,
        b: Lanes,
        c: Sums,
        accumulate: bool,
    ) {
        for columns in pieces(columns, COLUMNS) {
            for inner in pieces(depth, DEPTH) {
                let accumulate = accumulate || inner.start > 0;
                // SAFETY: all ranges lie within the shape of the product.
                unsafe {
                    b.pack(columns.clone(), inner.clone(), WIDE, &mut self.right);
                    for rows in pieces(rows, ROWS) {
                        a.pack(rows.clone(), inner.clone(), TALL, &mut self.left);
                        let c = c.part(rows.start, columns.start);
                        self.tiles([rows.len(), inner.len(), columns.len()], c, accumulate);
                    }
                }
            }
        }
    }

    /// Multiplies the panels of the two factors.
    ///
    /// # Safety
    ///
    /// AVX-512. The panels are packed. `c` has as many rows and columns.
    #[target_feature(enable = "avx512f")]
    unsafe fn tiles(&self, [rows, depth, columns]: [usize; 3], c: Sums, accumulate: bool) {
        for (panel, columns) in pieces(columns, WIDE).enumerate() {
            for inner in pieces(depth, BLOCK) {
                let accumulate = accumulate || inner.start > 0;
                let right = &self.right[(panel * depth + inner.start) * (WIDE / LINE)..];
                let right = &right[..inner.len() * (WIDE / LINE)];
                for (rows, left) in pieces(rows, TALL).zip(self.left.chunks_exact(depth)) {
                    // SAFETY: as the caller says.
                    unsafe {
                        let c = c.part(rows.start, columns.start);
                        let (left, columns) = (&left[inner.clone()], columns.len());
                        let tile = Tile { left, right, c, columns, accumulate };
                        macro_rules! of_rows {
                            ($($rows:literal)*) => {
                                match rows.len() {
                                    $($rows => tile.add::<$rows>(),)*
                                    _ => unreachable!("a tile has 1 to {TALL} rows"),
                                }
                            };
                        }
                        of_rows!(1 2 3 4 5 6 7 8 9 10 11 12 13 14);
                    }
                }
            }
        }
    }
}

/// Where the results go in memory.
#[derive(Clone, Copy)]
struct Sums {
    start: *mut f32,
    row_stride: usize,
}

impl Sums {
    /// # Safety
    ///
    /// The matrix has such an element.
    unsafe fn part(self, row: usize, column: usize) -> Self {
        // SAFETY: as the caller says.
        Self { start: unsafe { self.start.add(row * self.row_stride + column) }, ..self }
    }
}

/// The product of a panel of each factor.
struct Tile<'a> {
    left: &'a [Line],
    right: &'a [Line],
    c: Sums,
    columns: usize,
    accumulate: bool,
}

impl Tile<'_> {
    /// Writes or adds `R` rows.
    ///
    /// # Safety
    ///
    /// AVX-512. `c` has `R` rows and `columns` columns, 32 at most.
    #[target_feature(enable = "avx512f")]
    unsafe fn add<const R: usize>(&self) {
        let mut sums = [[_mm512_setzero_ps(); 2]; R];
        let mut next = 0;
        let (right, _) = self.right.as_chunks::<{ WIDE / LINE }>();
        for (left, right) in self.left.chunks(LINE).zip(right.chunks(LINE)) {
            // The results are far away in memory. Asking for all at once would hold up nearer data.
            // One row every few hundred cycles does not.
            if next < R {
                self.fetch(next);
                next += 1;
            }
            for (left, right) in left.iter().zip(right) {
                let [low, high] = [0, 1].map(|half| {
                    // SAFETY: lines are aligned, and have 16 numbers.
                    unsafe { _mm512_load_ps(right[half].0.as_ptr()) }
                });
                for (sums, value) in sums.iter_mut().zip(left.0) {
                    let value = _mm512_set1_ps(value);
                    sums[0] = _mm512_fmadd_ps(value, low, sums[0]);
                    sums[1] = _mm512_fmadd_ps(value, high, sums[1]);
                }
            }
        }
        let masks = [mask(self.columns), mask(self.columns.saturating_sub(LINE))];
        for (row, sums) in sums.into_iter().enumerate() {
            for (half, (sum, mask)) in sums.into_iter().zip(masks).enumerate() {
                // SAFETY: as the caller says. Everything beyond the last column is masked.
                unsafe {
                    let to = self.c.start.add(row * self.c.row_stride).wrapping_add(half * LINE);
                    let sum = if self.accumulate {
                        _mm512_add_ps(_mm512_maskz_loadu_ps(mask, to), sum)
                    } else {
                        sum
                    };
                    _mm512_mask_storeu_ps(to, mask, sum);
                }
            }
        }
    }

    /// Prefetches a row of the results.
    #[inline(always)]
    fn fetch(&self, row: usize) {
        let line = self.c.start.wrapping_add(row * self.c.row_stride);
        for half in [0, LINE] {
            // SAFETY: a prefetch changes nothing, wherever it points.
            unsafe { _mm_prefetch::<_MM_HINT_ET0>(line.wrapping_add(half).cast()) };
        }
    }
}

/// A factor, lane by lane.
#[derive(Clone, Copy)]
struct Lanes {
    start: *const f32,
    /// From one lane to the next.
    lane_stride: usize,
    /// From one inner index to the next.
    inner_stride: usize,
}

impl Lanes {
    fn new(start: *const f32, lane_stride: usize, inner_stride: usize) -> Self {
        debug_assert!(lane_stride == 1 || inner_stride == 1, "neither rows nor columns are whole");
        Self { start, lane_stride, inner_stride }
    }

    /// Copies a block into panels of so many lanes, inner index by inner index. The room of a panel
    /// beyond its lanes may hold anything: no result is taken from it.
    ///
    /// # Safety
    ///
    /// AVX-512, and the block lies inside the factor.
    #[target_feature(enable = "avx512f")]
    unsafe fn pack(self, lanes: Range<usize>, inner: Range<usize>, panel: usize, to: &mut [Line]) {
        let offset = lanes.start * self.lane_stride + inner.start * self.inner_stride;
        // SAFETY: the block begins inside the factor.
        let block = Self { start: unsafe { self.start.add(offset) }, ..self };
        let lines = panel.div_ceil(LINE);
        let to = &mut to[..lanes.len().div_ceil(panel) * lines * inner.len()];
        // SAFETY: as the caller says.
        unsafe {
            if self.lane_stride == 1 {
                block.copy(lanes.len(), panel, inner.len(), to);
            } else {
                block.transpose(lanes.len(), panel, inner.len(), to);
            }
        }
    }

    /// Packs lanes that lie side by side in memory: row by row, as memory likes it best.
    ///
    /// # Safety
    ///
    /// AVX-512, and there are as many lanes and inner indices.
    #[target_feature(enable = "avx512f")]
    unsafe fn copy(self, lanes: usize, panel: usize, depth: usize, to: &mut [Line]) {
        let lines = panel.div_ceil(LINE);
        for inner in 0..depth {
            let row = self.start.wrapping_add(inner * self.inner_stride);
            for (part, to) in pieces(lanes, panel).zip(to.chunks_exact_mut(lines * depth)) {
                for (line, to) in to[inner * lines..][..lines].iter_mut().enumerate() {
                    let from = row.wrapping_add(part.start + line * LINE);
                    let inside = mask(part.len().saturating_sub(line * LINE));
                    // SAFETY: as the caller says. Everything beyond the last lane is masked, and a
                    // prefetch changes nothing, wherever it points.
                    unsafe {
                        _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(self.inner_stride).cast());
                        _mm512_store_ps(to.0.as_mut_ptr(), _mm512_maskz_loadu_ps(inside, from));
                    }
                }
            }
        }
    }

    /// Packs lanes that are each contiguous in memory: squares of 16 lanes and inner indices.
    ///
    /// # Safety
    ///
    /// As of [`Self::copy`].
    #[target_feature(enable = "avx512f")]
    unsafe fn transpose(self, lanes: usize, panel: usize, depth: usize, to: &mut [Line]) {
        let lines = panel.div_ceil(LINE);
        for (part, to) in pieces(lanes, panel).zip(to.chunks_exact_mut(lines * depth)) {
            for (line, first) in part.clone().step_by(LINE).enumerate() {
                let rows = LINE.min(part.end - first);
                let corner = self.start.wrapping_add(first * self.lane_stride);
                for inner in pieces(depth, LINE) {
                    let corner = corner.wrapping_add(inner.start);
                    // SAFETY: as the caller says.
                    let columns = unsafe { self.square(corner, rows, inner.len()) };
                    for (inner, column) in inner.zip(columns) {
                        // SAFETY: a line is aligned, and has room for 16 numbers.
                        unsafe {
                            _mm512_store_ps(to[inner * lines + line].0.as_mut_ptr(), column);
                        }
                    }
                }
            }
        }
    }

    /// The transpose of a square of memory, or of as much of it as exists.
    ///
    /// # Safety
    ///
    /// AVX-512, and there are so many lanes and inner indices.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn square(self, corner: *const f32, lanes: usize, depth: usize) -> [__m512; LINE] {
        let mut rows = [_mm512_setzero_ps(); LINE];
        let inside = mask(depth);
        for (lane, row) in rows.iter_mut().enumerate().take(lanes) {
            let from = corner.wrapping_add(lane * self.lane_stride);
            // SAFETY: as the caller says. Everything beyond the last inner index is masked, and a
            // prefetch changes nothing, wherever it points. The prefetched lanes come next.
            unsafe {
                *row = _mm512_maskz_loadu_ps(inside, from);
                _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(LINE * self.lane_stride).cast());
            }
        }
        transposed(rows)
    }
}

/// The mask of the first `lanes` lanes of a register.
fn mask(lanes: usize) -> __mmask16 {
    if lanes >= LINE { !0 } else { (1 << lanes) - 1 }
}

/// Ranges of this length, the last one maybe shorter, that make up `0..count`.
fn pieces(count: usize, length: usize) -> impl Iterator<Item = Range<usize>> {
    (0..count).step_by(length).map(move |start| start..count.min(start + length))
}

/// The transpose of a square: pairs of rows, then fours, then fours of fours.
#[target_feature(enable = "avx512f")]
#[inline]
fn transposed(rows: [__m512; LINE]) -> [__m512; LINE] {
    let mut pairs = rows;
    for i in (0..LINE).step_by(2) {
        pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
    // In its quarter `q`, `fours[i + j]` has column `4 q + j` of rows `i..i + 4`.
    let mut fours = pairs;
    for i in (0..LINE).step_by(4) {
        let [a, b, c, d] = [0, 1, 2, 3].map(|j| _mm512_castps_pd(pairs[i + j]));
        fours[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        fours[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        fours[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        fours[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    let mut columns = fours;
    for j in 0..4 {
        let [a, b, c, d] = [0, 4, 8, 12].map(|i| fours[i + j]);
        const EVEN: i32 = 0b10_00_10_00;
        const ODD: i32 = 0b11_01_11_01;
        let even = [_mm512_shuffle_f32x4::<EVEN>(a, b), _mm512_shuffle_f32x4::<EVEN>(c, d)];
        let odd = [_mm512_shuffle_f32x4::<ODD>(a, b), _mm512_shuffle_f32x4::<ODD>(c, d)];
        columns[j] = _mm512_shuffle_f32x4::<EVEN>(even[0], even[1]);
        columns[4 + j] = _mm512_shuffle_f32x4::<EVEN>(odd[0], odd[1]);
        columns[8 + j] = _mm512_shuffle_f32x4::<ODD>(even[0], even[1]);
        columns[12 + j] = _mm512_shuffle_f32x4::<ODD>(odd[0], odd[1]);
    }
    columns
}

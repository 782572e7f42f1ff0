//! The shapes of launches: pure arithmetic on sizes, each the counterpart of constants of a kernel.
//!
//! No shape has a dimension of zero for sizes above zero, and none is beyond what CUDA allows: 2^31
//! - 1 blocks along x, 65,535 along y.

use super::driver::Launch;

/// Threads of a block, if each thread takes an element.
const THREADS: usize = 256;
/// Enough blocks to fill any device several times. Beyond, a thread takes more elements.
const MOST_BLOCKS: usize = 1 << 14;
/// Warps of a block, if each warp takes a row (`layer_norm.cu`).
const WARPS: usize = 4;
/// Rows of a block, if eight threads take a row (`expected.cu`).
const EIGHTS: usize = 16;
/// The bytes that a thread takes at once (`Chunk` in `real.cuh`).
const CHUNK_BYTES: usize = 16;
/// Threads side by side, and down the rows, of a block that sums rows (`bias.cu`, `layer_norm.cu`,
/// `partials.cu`).
const ABREAST: usize = 32;
const LANES: usize = 8;
/// Columns of a thread that sums rows in the first pass.
const COLUMNS: usize = 2;
/// A chunk of rows is at least this long: shorter ones cost more to add up than they spare.
const CHUNK_ROWS: usize = 128;
/// Rows and columns of a tile of a product (`matmul.cu`).
const TILE: usize = 64;

/// One thread an element. Beyond `MOST_BLOCKS` a thread takes several.
pub fn elements(count: usize) -> Launch {
    line(count.div_ceil(THREADS).min(MOST_BLOCKS), THREADS)
}

/// One thread a chunk of so many bytes of elements. Beyond `MOST_BLOCKS` a thread takes several.
/// Where elements are not aligned, a thread takes as many of them, one by one.
pub fn chunks(bytes: usize) -> Launch {
    elements(bytes.div_ceil(CHUNK_BYTES))
}

/// Eight threads a row.
pub fn eights(rows: usize) -> Launch {
    Launch { grid: [blocks(rows.div_ceil(EIGHTS)), 1, 1], block: [8, EIGHTS as u32, 1] }
}

/// One warp a row.
pub fn warps(rows: usize) -> Launch {
    Launch { grid: [blocks(rows.div_ceil(WARPS)), 1, 1], block: [32, WARPS as u32, 1] }
}

/// One block a row. Beyond `MOST_BLOCKS` a block takes several.
pub fn rows(count: usize, threads: usize) -> Launch {
    line(count.min(MOST_BLOCKS), threads)
}

/// One block a row, exactly.
pub fn every_row(count: usize, threads: usize) -> Launch {
    line(count, threads)
}

/// A few threads a column.
pub fn columns(count: usize) -> Launch {
    Launch {
        grid: [blocks(count.div_ceil(ABREAST)), 1, 1],
        block: [ABREAST as u32, LANES as u32, 1],
    }
}

/// One thread a column or a chunk of columns, and several down the rows.
pub fn columns_by_rows(columns: usize, rows: usize) -> Launch {
    Launch {
        grid: [blocks(columns.div_ceil(THREADS)), blocks(rows.min(1024)), 1],
        block: [THREADS as u32, 1, 1],
    }
}

/// One block a segment, and several along its columns.
pub fn segments(count: usize, columns: usize) -> Launch {
    const WIDTH: usize = 128;
    let along = columns.div_ceil(WIDTH);
    assert!(along < 1 << 16, "rows of at most 8 Mi elements");
    Launch { grid: [blocks(count), blocks(along), 1], block: [WIDTH as u32, 1, 1] }
}

/// One block a tile of a product of this many rows and columns.
pub fn tiles(rows: usize, columns: usize) -> Launch {
    line(rows.div_ceil(TILE) * columns.div_ceil(TILE), 256)
}

/// One block for a tile of `rows` rows of each of these sequences, with some threads a row.
pub fn sequence_tiles(sequences: usize, length: usize, rows: usize, threads: usize) -> Launch {
    line(sequences * length.div_ceil(rows), rows * threads)
}

/// A sum over rows in two passes: first over `length` rows at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks {
    /// The number of chunks. A single one is added to the result without a second pass.
    pub count: usize,
    /// The rows of each chunk except the last.
    pub length: usize,
}

impl Chunks {
    /// As many chunks as pay, and as `scratch` numbers can hold, `columns` for each. Their number
    /// depends only on these sizes, and so do the bits of the sum.
    pub fn new(rows: usize, columns: usize, scratch: usize) -> Self {
        let most = (scratch / columns.max(1)).clamp(1, 1024);
        let length = rows.div_ceil(most).max(CHUNK_ROWS);
        Self { count: rows.div_ceil(length), length }
    }

    /// Whether the first pass adds to the result itself.
    pub fn direct(self) -> bool {
        self.count == 1
    }

    /// The first pass over a matrix of `columns`.
    pub fn launch(self, columns: usize) -> Launch {
        Launch {
            grid: [blocks(columns.div_ceil(ABREAST * COLUMNS)), blocks(self.count), 1],
            block: [ABREAST as u32, LANES as u32, 1],
        }
    }
}

fn line(count: usize, threads: usize) -> Launch {
    Launch { grid: [blocks(count), 1, 1], block: [threads as u32, 1, 1] }
}

fn blocks(count: usize) -> u32 {
    assert!((1..1 << 31).contains(&count), "{count} blocks are not a grid");
    count as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn size() -> impl Strategy<Value = usize> {
        prop_oneof![1usize..2000, 1usize..10_000_000]
    }

    fn allowed(launch: Launch) -> bool {
        let [x, y, z] = launch.grid;
        let grid = x > 0 && x < 1 << 31 && y > 0 && y < 1 << 16 && z == 1;
        grid && (1..=1024).contains(&launch.threads()) && launch.threads().is_multiple_of(32)
    }

    fn along(launch: Launch, axis: usize, each: usize) -> usize {
        launch.grid[axis] as usize * each
    }

    proptest! {
        #[test]
        fn every_shape_covers_its_elements_and_is_allowed(count in size(), other in 1usize..3000) {
            // These walk on by the whole grid, so any number of blocks covers everything.
            let shapes = [elements(count), chunks(count), rows(count, 128)];
            prop_assert!(shapes.into_iter().all(allowed));
            let exact = [
                (warps(count), 0, WARPS, count),
                (eights(count), 0, EIGHTS, count),
                (every_row(count, 256), 0, 1, count),
                (columns(count), 0, ABREAST, count),
                (columns_by_rows(count, other), 0, THREADS, count),
                (segments(other, count.min(1 << 22)), 1, 128, count.min(1 << 22)),
                (segments(count, other), 0, 1, count),
            ];
            for (launch, axis, each, elements) in exact {
                prop_assert!(allowed(launch), "{launch:?}");
                let covered = along(launch, axis, each);
                prop_assert!((elements..elements + each).contains(&covered), "{launch:?}");
            }
            let launch = tiles(count, other);
            prop_assert!(allowed(launch) && along(launch, 0, TILE * TILE) >= count * other);
            let launch = sequence_tiles(3, other, 16, 8);
            prop_assert!(allowed(launch) && along(launch, 0, 16) >= 3 * other);
        }

        #[test]
        fn chunks_cover_every_row_once_and_fit_the_scratch(
            rows in size(),
            columns in size(),
            scratch in 0usize..1 << 21,
        ) {
            let chunks = Chunks::new(rows, columns, scratch);
            let covered = chunks.count * chunks.length;
            prop_assert!((rows..rows + chunks.length).contains(&covered));
            prop_assert!(chunks.direct() || chunks.count * columns <= scratch);
            prop_assert!(allowed(chunks.launch(columns)));
        }
    }
}

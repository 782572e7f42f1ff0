//! The memory that a model takes of a GPU and of its machine. Neither is needed to know it.

use super::arenas::Arenas;
use crate::backend::Sizes;
use crate::precision::Precision;

/// The host's memory that is pinned for copies, both ways together.
pub const PINNED_BYTES: usize = 32 << 20;
/// Memory of the device for the algorithms of cuBLASLt. The fastest ones of Hopper ask for it all.
pub const WORKSPACE_BYTES: usize = 32 << 20;

/// The parts of the one allocation of a model of these sizes, bytes, each with the gap behind it.
pub fn arena(sizes: Sizes, precision: Precision) -> [(&'static str, usize); 6] {
    Arenas::new(sizes, precision).parts()
}

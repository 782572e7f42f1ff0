//! What a model takes of a GPU, and of the machine that the GPU is in: to be known without either.

use super::arenas::Arenas;
use super::driver::Precision;
use crate::backend::Sizes;

/// The host's memory that is pinned for copies, both ways together.
pub const PINNED_BYTES: usize = 32 << 20;
/// What algorithms of cuBLASLt may use of the device; the fastest ones of Hopper ask for it all.
pub const WORKSPACE_BYTES: usize = 32 << 20;

/// The parts of the one allocation of a model of these sizes, bytes, each with what is left free
/// behind it.
pub fn arena(sizes: Sizes, precision: Precision) -> [(&'static str, usize); 6] {
    Arenas::new(sizes, precision).parts()
}

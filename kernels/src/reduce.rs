//! Additions whose order never depends on who is there.
//!
//! The flat parameter vector is cut into parameter shards (`shards`). The partial gradients of one
//! shard, one for each data shard, are added along one fixed binary tree (`tree`, `sum`), in
//! whatever order they arrive; the squares of the result in fixed blocks (`norm`). A `digest` tells
//! whether bits have changed, and `nan` has one pattern of bits for what is no number. `rounding`
//! makes the bf16 parameters that members compute with.
//!
//! Nothing here knows workers: which of them computed a partial, or owns a shard, changes no bit.

mod digest;
mod nan;
mod norm;
mod rounding;
mod shards;
mod sum;
mod tree;

pub(crate) use digest::DIGEST_BLOCK;
pub use digest::digest;
pub use nan::canonical;
pub(crate) use nan::canonical_f64;
pub use norm::sum_of_squares;
pub use rounding::{decode_bf16, encode_bf16, round_bf16, round_bf16_stochastically};
pub use shards::{shard_count, shard_length, shard_range};
pub use sum::{AddError, Operand, Sum};
pub use tree::{Node, Tree};

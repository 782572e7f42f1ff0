//! Additions in an order that never depends on the members.
//!
//! The flat parameter vector is cut into parameter shards (`shards`). The partial gradients of one
//! shard, one for each data shard, are added along one fixed binary tree (`tree`, `sum`), in
//! whatever order they arrive. The squares of the result are added in fixed blocks (`norm`). A
//! `digest` shows a change of bits, and `nan` has one pattern of bits for values that are not
//! numbers. `rounding` makes the bf16 parameters that members compute with.
//!
//! This module knows no workers. Which worker computed a partial, or owns a shard, changes no bit.

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
pub use norm::{sum_of_squares, sum_of_squares_on};
pub use rounding::{decode_bf16, encode_bf16, round_bf16, round_bf16_stochastically};
pub use shards::{shard_count, shard_length, shard_range};
pub use sum::{AddError, Addend, Sum};
pub use tree::{Tree, TreeNode};

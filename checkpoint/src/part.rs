//! Parts: safetensors files with the shards of one primary, one file for each primary and
//! checkpoint.
//!
//! A shard has one tensor for each of its [slots](crate::slots): `000123.master`, `000123.m`,
//! `000123.v`, one-dimensional f32. The shards stand in the order in which they came, which is the
//! order of the updates. So neither writer nor reader ever holds more than one shard.

pub mod reader;
pub mod writer;

use everstep_transport::protocol::Shard;

use crate::digest::Digest;
use crate::names::PartName;

/// The number of the format of parts that is written and read. A part states it.
pub const FORMAT: u64 = 1;
/// The metadata key of the format's number in a part.
pub const FORMAT_KEY: &str = "everstep.format";
/// The metadata key of the run's identity in a part.
pub const RUN_KEY: &str = "everstep.run";
/// The metadata key of the step in a part.
pub const STEP_KEY: &str = "everstep.step";

/// A durable part, as its writer tells the writer of the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartSummary {
    /// The file, in the folder of the checkpoint.
    pub name: PartName,
    /// All bytes of the file.
    pub bytes: u64,
    /// The bytes of its head.
    pub head_bytes: u64,
    /// The digest of its head. The digests of the shards cover all other bytes.
    pub head_blake3: Digest,
    /// The shards with their digests, in the order of the file.
    pub shards: Vec<(Shard, Digest)>,
}

/// The name of a tensor in a part.
fn tensor_name(shard: Shard, slot: &str) -> String {
    format!("{:06}.{slot}", shard.0)
}

//! The manifest of a checkpoint, `manifest.json`: its content list, and the mark that it is
//! complete.
//!
//! A manifest alone is enough to restore from: copying a checkpoint's folder copies the checkpoint.
//! It has the run's specification, where each shard is, and every digest. So a reader knows what it
//! will get before it reads a part.
//!
//! The last key is `seal`, the digest of all bytes before it. So a manifest that was cut or changed
//! in any byte is noticed. A manifest of another format is refused, not passed over: a newer
//! program wrote it, and going back to an older checkpoint in silence would lose steps.
//!
//! Keys that this program does not know are skipped. A later program may add facts for people and
//! tools without a new format. A key that a reader must know to restore the right bits raises
//! [`FORMAT`].

mod assemble;
mod check;

use std::ops::Range;

use everstep_kernels::layout::Layout;
use everstep_kernels::reduce;
use everstep_transport::protocol::{Generation, RunSpec, Shard, Step};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::digest::Digest;
use crate::names::{ObjectName, PartName};
use crate::slots::Slots;

pub use assemble::{AssembleError, Facts};

/// The number of the format that is written and read.
pub const FORMAT: u64 = 1;
/// The largest manifest, bytes: that of 10^12 parameters is smaller.
pub const MAX_MANIFEST_BYTES: u64 = crate::store::MAX_SMALL_BYTES;

/// What precedes the seal's 64 digits, and what follows them.
const SEAL: (&[u8], &[u8]) = (b",\"seal\":\"", b"\"}\n");

/// The content of a checkpoint. [`Manifest::parse`] and [`Manifest::assemble`] check that it is
/// whole and agrees with itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The number of the format, which is [`FORMAT`].
    pub format: u64,
    /// The version of the program that wrote it.
    pub everstep: String,
    /// What identifies the run: equal in all checkpoints of the run, and in no other's. Its writer
    /// chooses it, as a digest of everything that decides the weights.
    pub run: String,
    /// The step after which this is the state.
    pub step: Step,
    /// The generation that committed the step.
    pub generation: Generation,
    /// What the commit said. None for step 0.
    pub commit: Option<CommitRecord>,
    /// The run's specification, as the writer's version knew it: see [`Manifest::run_spec`].
    pub spec: Value,
    /// The digest of the specification's JSON.
    pub spec_digest: Digest,
    /// The fingerprint of the model's layout.
    pub model: Digest,
    /// The fingerprint of the data set.
    pub data: Digest,
    /// The number of training samples.
    pub samples: u64,
    /// Whether all members computed the same bits, so that this is the only state of the step.
    pub bitwise: bool,
    /// The length of the flat parameter vector.
    pub parameters: u64,
    /// The length of each parameter shard but the last.
    pub shard_length: u64,
    /// The vectors of each shard.
    pub slots: Slots,
    /// The model's tensors, in the order of the flat vector.
    pub tensors: Vec<TensorEntry>,
    /// The files of the checkpoint, one for each primary.
    pub files: Vec<FileEntry>,
    /// The shards, by index.
    pub shards: Vec<ShardEntry>,
    /// The state hash: of the step and of all shards' digests.
    pub state_hash: Digest,
}

/// What the commit of a step said.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommitRecord {
    /// Global norm of the gradient before clipping.
    #[serde(with = "number")]
    pub norm: f64,
    /// Mean loss over the global batch.
    #[serde(with = "number")]
    pub loss: f64,
    /// Whether the step applied an update.
    pub applied: bool,
    /// How many steps of the history applied an update, this one included.
    pub updates: u64,
    /// The exponent of the next step's loss scale.
    pub loss_scale_exponent: u8,
    /// How many steps in a row have committed with this loss scale without a skip.
    pub loss_scale_good: u32,
}

/// A tensor of the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorEntry {
    /// The name of the model's tensor.
    pub name: String,
    /// The sizes of its dimensions, in row-major order.
    pub shape: Vec<u64>,
    /// Where it begins in the flat vector, elements.
    pub offset: u64,
}

/// A file with the shards of one primary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// The file, in the folder of the manifest.
    pub name: PartName,
    /// All of its bytes.
    pub bytes: u64,
    /// The bytes of its head.
    pub head_bytes: u64,
    /// The digest of its head. The shards' digests cover all other bytes.
    pub head_blake3: Digest,
}

/// Where a parameter shard lies, and its digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardEntry {
    /// The index of its file in [`Manifest::files`].
    pub file: u32,
    /// Its digest: the leaf of the state hash.
    pub blake3: Digest,
}

/// Why bytes are not the manifest of a usable checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The bytes are not those that were written.
    #[error("it was cut or changed after it was written")]
    Seal,
    /// Another program wrote it.
    #[error(
        "its format is {format}, and this program reads format {FORMAT}. Use a program of the \
         version that wrote it{version}, or a newer one"
    )]
    Format {
        /// The format that the manifest states.
        format: u64,
        /// The version of its writer, in words. Empty if it is not stated.
        version: String,
    },
    /// It does not agree with itself.
    #[error("{0}")]
    Invalid(String),
}

impl ManifestError {
    /// Whether an older checkpoint may be taken instead.
    pub fn is_damage(&self) -> bool {
        !matches!(self, Self::Format { .. })
    }
}

/// What every format states.
#[derive(Deserialize)]
struct AnyFormat {
    format: u64,
    #[serde(default)]
    everstep: String,
}

impl Manifest {
    /// Reads the bytes of a manifest.
    ///
    /// # Errors
    /// If they are of another format, changed, or not those of one whole checkpoint.
    pub fn parse(bytes: &[u8]) -> Result<Self, ManifestError> {
        if bytes.len() as u64 > MAX_MANIFEST_BYTES {
            return Err(invalid(format!("it has more than {MAX_MANIFEST_BYTES} bytes")));
        }
        check_seal(bytes)?;
        let unreadable = |error: serde_json::Error| invalid(format!("it cannot be read: {error}"));
        let stated: AnyFormat = serde_json::from_slice(bytes).map_err(unreadable)?;
        if stated.format != FORMAT {
            let version = crate::names::shown(&stated.everstep);
            let version = if version.is_empty() { version } else { format!(" ({version})") };
            return Err(ManifestError::Format { format: stated.format, version });
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(unreadable)?;
        check::check(&manifest)?;
        Ok(manifest)
    }

    /// The bytes of the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).expect("a manifest is plain data");
        let brace = bytes.pop();
        assert_eq!(brace, Some(b'}'), "a manifest is a map");
        let seal = Digest::of(&bytes);
        [&bytes[..], SEAL.0, seal.to_string().as_bytes(), SEAL.1].concat()
    }

    /// The object of this manifest.
    pub fn name(&self) -> ObjectName {
        ObjectName::Manifest(self.step)
    }

    /// The object of a part, by its index.
    pub fn file_name(&self, file: u32) -> ObjectName {
        ObjectName::Part(self.step, self.files[file as usize].name)
    }

    /// The bytes of all parts.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Where a shard lies in the flat vector.
    pub fn shard_range(&self, shard: Shard) -> Range<usize> {
        reduce::shard_range(self.parameters as usize, shard.0 as usize)
    }

    /// The run's specification.
    ///
    /// # Errors
    /// If this program does not know all of its keys: a newer version wrote them.
    pub fn run_spec(&self) -> Result<RunSpec, ManifestError> {
        RunSpec::deserialize(&self.spec).map_err(|error| {
            invalid(format!(
                "the specification of its run cannot be read: {error}. Everstep {} wrote it",
                self.everstep
            ))
        })
    }

    /// Whether the checkpoint is one of a model with this layout.
    ///
    /// # Errors
    /// The first tensor that differs.
    pub fn check_layout(&self, layout: &Layout) -> Result<(), ManifestError> {
        let ours: Vec<_> = tensors_of(layout).collect();
        let differs = |at: &usize| self.tensors.get(*at) != ours.get(*at);
        let Some(at) = (0..ours.len().max(self.tensors.len())).find(differs) else {
            return Ok(());
        };
        let words = |tensor: Option<&TensorEntry>| match tensor {
            Some(tensor) => format!("{} {:?}", crate::names::shown(&tensor.name), tensor.shape),
            None => "nothing".into(),
        };
        let (theirs, ours) = (words(self.tensors.get(at)), words(ours.get(at)));
        Err(invalid(format!("it is one of another model: it has {theirs} where ours has {ours}")))
    }
}

fn invalid(problem: String) -> ManifestError {
    ManifestError::Invalid(problem)
}

fn check_seal(bytes: &[u8]) -> Result<(), ManifestError> {
    let sealed = bytes.strip_suffix(SEAL.1).and_then(|bytes| bytes.split_last_chunk::<64>());
    let sealed = sealed.and_then(|(bytes, digits)| Some((bytes.strip_suffix(SEAL.0)?, digits)));
    let (body, digits) = sealed.ok_or(ManifestError::Seal)?;
    if Digest::of(body).to_string().as_bytes() == digits {
        Ok(())
    } else {
        Err(ManifestError::Seal)
    }
}

fn tensors_of(layout: &Layout) -> impl Iterator<Item = TensorEntry> {
    layout.tensors().iter().map(|tensor| TensorEntry {
        name: tensor.name.clone(),
        shape: tensor.shape.iter().map(|extent| *extent as u64).collect(),
        offset: tensor.offset as u64,
    })
}

/// Numbers that need not be finite, which JSON cannot write: those are texts.
mod number {
    use serde::{Deserialize, Deserializer, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(f64),
        Text(String),
    }

    pub fn serialize<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
        if value.is_finite() { to.serialize_f64(*value) } else { to.collect_str(value) }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        match Written::deserialize(from)? {
            Written::Number(value) => Ok(value),
            Written::Text(text) => match text.as_str() {
                "NaN" => Ok(f64::NAN),
                "inf" => Ok(f64::INFINITY),
                "-inf" => Ok(f64::NEG_INFINITY),
                _ => Err(serde::de::Error::custom("a number, \"NaN\", \"inf\" or \"-inf\"")),
            },
        }
    }
}

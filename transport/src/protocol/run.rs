//! The run specification: what to train, on which data, and how. Also what makes one valid for any
//! model: the rules of a model are where the model is registered.

mod file;
mod init;
mod optimizer;
mod options;
mod units;

use std::borrow::Cow;

use rkyv::{Archive, Deserialize, Serialize};

pub use self::file::RunFileError;
pub use self::init::InitSpec;
pub use self::optimizer::{OptimizerSpec, ScheduleKind};
pub use self::options::{OptionError, OptionMap, OptionValue};
pub use self::units::{LossUnit, TargetUnit, Units};
use super::checkpoint::CheckpointSpec;
use super::chunk::Encoding;

/// The specification of one training job.
#[derive(
    Archive, Serialize, Deserialize, serde::Serialize, serde::Deserialize, Clone, Debug, PartialEq,
)]
#[serde(deny_unknown_fields)]
pub struct RunSpec {
    /// The name that people use for the run.
    pub name: String,
    /// The seed from which everything random follows.
    pub seed: u64,
    /// Number of optimizer steps.
    pub steps: u64,
    /// The run waits while it has fewer members than this.
    pub min_workers: u32,
    /// How many members the first generation waits for.
    pub start_workers: u32,
    /// The model to train.
    pub model: ModelSpec,
    /// The data to train on.
    pub data: DataSpec,
    /// The size of the global batch.
    pub batch: BatchSpec,
    /// The optimizer and its schedule.
    pub optimizer: OptimizerSpec,
    /// How parameters are encoded when they travel.
    pub all_gather: Encoding,
    /// How values are rounded when they travel as bf16.
    #[serde(default)]
    pub rounding: Rounding,
    /// Number of owners of each parameter shard.
    pub copies: u32,
    /// If all owners of a parameter shard are silent for this long, milliseconds, the run gives up
    /// the shard and goes back to its newest checkpoint. `None`: the run waits for them without
    /// end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub give_up_after_ms: Option<u64>,
    /// A device hangs if it computes a data shard for three times as long as usual there, and for
    /// at least this long, milliseconds.
    #[serde(default = "hang_after_ms")]
    pub hang_after_ms: u64,
    /// The run's checkpoints. `None`: it writes none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointSpec>,
}

fn hang_after_ms() -> u64 {
    RunSpec::HANG_AFTER_MS
}

/// What the model is and how large.
#[derive(
    Archive, Serialize, Deserialize, serde::Serialize, serde::Deserialize, Clone, Debug, PartialEq,
)]
#[serde(deny_unknown_fields)]
pub struct ModelSpec {
    /// `gpt`, `mlp`, or a name that the user's program registered.
    pub kind: String,
    /// Blocks (gpt) or hidden layers (mlp).
    pub layers: u32,
    /// Attention heads of each block (gpt).
    pub heads: u32,
    /// Width of the residual stream (gpt) or of the hidden layers (mlp).
    pub width: u32,
    /// Tokens that a sample holds.
    pub context: u32,
    /// The number of different tokens. 256 if tokens are bytes.
    #[serde(default = "vocabulary")]
    pub vocabulary: u32,
    /// The type in which a device stores activations and computing parameters.
    #[serde(default)]
    pub precision: Precision,
    /// Whether the backward pass computes each block again instead of keeping its activations
    /// (gpt). This gives the same bits with less memory, in more time.
    #[serde(default)]
    pub recompute: bool,
    /// The initial weights, if they do not follow from the seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<InitSpec>,
    /// What the run's throughput counts.
    #[serde(default, skip_serializing_if = "TargetUnit::is_token")]
    pub unit: TargetUnit,
    /// The unit of the loss.
    #[serde(default, skip_serializing_if = "LossUnit::is_nats")]
    pub loss_unit: LossUnit,
    /// Options of a model that the user's program registered.
    #[serde(default, skip_serializing_if = "OptionMap::is_empty")]
    pub options: OptionMap,
}

impl ModelSpec {
    /// The default number of tokens: every byte is one.
    pub const VOCABULARY: u32 = 256;

    /// The units of the run's figures.
    pub fn units(&self) -> Units {
        Units { unit: self.unit, loss_unit: self.loss_unit }
    }
}

fn vocabulary() -> u32 {
    ModelSpec::VOCABULARY
}

/// How a device stores activations and the parameters that it computes with. Sums, gradients and
/// the optimizer's state are always f32.
#[derive(
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// IEEE's 32 bits, unchanged.
    #[default]
    F32,
    /// The upper half of an f32. Only on GPUs.
    Bf16,
    /// IEEE's 16 bits: finer than bf16, with a smaller range. Only on GPUs, with a loss scale.
    #[serde(rename = "fp16")]
    F16,
}

impl Precision {
    /// The word that a run's file uses for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "fp16",
        }
    }
}

/// How a value between two storable values becomes one of them.
#[derive(
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
)]
#[serde(rename_all = "snake_case")]
pub enum Rounding {
    /// The nearest value. In a tie, the even one.
    #[default]
    Nearest,
    /// Either value, the nearer one more often. The mean over many values loses nothing.
    Stochastic,
}

/// Which data set to train on.
#[derive(
    Archive, Serialize, Deserialize, serde::Serialize, serde::Deserialize, Clone, Debug, PartialEq,
)]
#[serde(deny_unknown_fields)]
pub struct DataSpec {
    /// The name of a registered data set. `text` and `tokens` read files.
    pub kind: String,
    /// For text and tokens: a file, a directory, or `@FILE` with a path on each line.
    pub path: String,
    /// The share held out, from the end of every file.
    pub validation: f64,
    /// For tokens: how a file without a header stores one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<TokenType>,
    /// Each so many steps, the held-out samples are evaluated with the parameters that the step
    /// begins with. 0: after the last step alone.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub validation_every: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// How a file stores a token, little-endian.
#[derive(
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
)]
#[serde(rename_all = "snake_case")]
pub enum TokenType {
    /// Tokens of 16 bits.
    U16,
    /// Tokens of 32 bits.
    U32,
}

impl DataSpec {
    /// Whether the data set reads files.
    pub fn has_files(&self) -> bool {
        matches!(self.kind.as_str(), "text" | "tokens")
    }

    /// Why workers on other machines would not find the files: their path is relative. `None` if
    /// they would. Other data sets may use their path as they like.
    pub fn is_elsewhere(&self) -> Option<String> {
        let path = self.path.strip_prefix('@').unwrap_or(&self.path);
        (self.has_files() && !path.starts_with('/')).then(|| {
            format!(
                "data.path is \"{}\", a relative path: every worker looks for it in its own \
                 working directory, on its own machine",
                self.path
            )
        })
    }
}

/// The global batch: `data_shards * accumulate * micro_batch` samples.
#[derive(
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
)]
#[serde(deny_unknown_fields)]
pub struct BatchSpec {
    /// The number of data shards, fixed for the life of the run.
    pub data_shards: u32,
    /// Samples in one forward and backward.
    pub micro_batch: u32,
    /// Micro-batches in one data shard.
    pub accumulate: u32,
}

impl BatchSpec {
    /// Samples in one data shard.
    pub fn shard_samples(&self) -> u64 {
        u64::from(self.accumulate) * u64::from(self.micro_batch)
    }

    /// Samples in one step. `u64::MAX` if a batch that was not validated asks for more.
    pub fn samples(&self) -> u64 {
        u64::from(self.data_shards).saturating_mul(self.shard_samples())
    }
}

/// The first value of a run specification that is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} {problem}")]
pub struct SpecError {
    /// The key as in the configuration file: `batch.micro_batch`.
    pub key: Cow<'static, str>,
    /// What is wrong with the value, and which values would do.
    pub problem: String,
}

/// Most data shards, workers and micro-batch rows that a specification may ask for.
pub const MAX_COUNT: u32 = 65_536;
/// Most tokens in a vocabulary.
pub const MAX_VOCABULARY: u32 = 1 << 24;
/// Most samples in one step: the vote that lists them must fit in a message.
pub const MAX_SAMPLES: u64 = 1 << 20;

impl RunSpec {
    /// The default of the least time after which a device counts as hanging.
    pub const HANG_AFTER_MS: u64 = 10_000;

    /// Checks how long the run waits for silent workers and slow devices.
    fn validate_patience(&self) -> Result<(), SpecError> {
        if let Some(after) = self.give_up_after_ms {
            let seconds = after / 1_000;
            if !(10..=1 << 30).contains(&seconds) {
                let problem = format!("is {seconds}s, but must be at least 10s, or \"never\"");
                return refuse("redundancy.give_up_after", problem);
            }
        }
        let hang_after = self.hang_after_ms / 1_000;
        if !(1..=1 << 30).contains(&hang_after) {
            let problem = format!("is {}ms, but must be at least 1s", self.hang_after_ms);
            return refuse("redundancy.hang_after", problem);
        }
        Ok(())
    }

    /// Checks every value. The error names the first that is not valid.
    pub fn validate(&self) -> Result<(), SpecError> {
        let Self { batch, model, optimizer, data, .. } = self;
        text("run.name", &self.name)?;
        text("model.kind", &model.kind)?;
        text("data.kind", &data.kind)?;
        positive("run.steps", self.steps)?;
        count("run.min_workers", self.min_workers)?;
        count("run.start_workers", self.start_workers)?;
        count("model.layers", model.layers)?;
        count("model.heads", model.heads)?;
        count("model.width", model.width)?;
        count("model.context", model.context)?;
        vocabulary_size(model.vocabulary)?;
        model.init.as_ref().map_or(Ok(()), InitSpec::validate)?;
        model.options.validate("model.options")?;
        count("batch.data_shards", batch.data_shards)?;
        count("batch.micro_batch", batch.micro_batch)?;
        count("batch.accumulate", batch.accumulate)?;
        count("redundancy.copies", self.copies)?;
        self.validate_patience()?;
        within("data.validation", data.validation, 0.0, 0.5)?;
        optimizer.validate()?;
        self.checkpoint.as_ref().map_or(Ok(()), CheckpointSpec::validate)?;
        if self.min_workers > self.start_workers {
            let (min, start) = (self.min_workers, self.start_workers);
            let problem =
                format!("is {min}, more than the {start} workers that the run starts with");
            return refuse("run.min_workers", problem);
        }
        if self.all_gather == Encoding::Bytes {
            return refuse("wire.all_gather", "is bytes, but must be f32 or bf16".into());
        }
        if self.rounding == Rounding::Stochastic && self.all_gather == Encoding::F32 {
            let problem = "is stochastic, and wire.all_gather is f32, which rounds nothing. Set it \
                           to nearest, or wire.all_gather to bf16";
            return refuse("wire.rounding", problem.into());
        }
        if batch.samples() > MAX_SAMPLES {
            let problem = format!(
                "asks with batch.micro_batch and batch.accumulate for {} samples a step. Lower one \
                 of the three: their product must be at most {MAX_SAMPLES}",
                batch.samples()
            );
            return refuse("batch.data_shards", problem);
        }
        Ok(())
    }
}

fn refuse(key: &'static str, problem: String) -> Result<(), SpecError> {
    Err(SpecError::new(key, problem))
}

impl SpecError {
    /// The value of `key` is not valid.
    pub fn new(key: &'static str, problem: impl Into<String>) -> Self {
        Self { key: key.into(), problem: problem.into() }
    }
}

fn text(key: &'static str, value: &str) -> Result<(), SpecError> {
    if value.is_empty() || value.len() > 256 {
        return refuse(key, "must have 1 to 256 bytes".into());
    }
    Ok(())
}

fn positive(key: &'static str, value: u64) -> Result<(), SpecError> {
    if value == 0 || value > 1 << 40 {
        return refuse(key, format!("is {value}, but must be 1 to 2^40"));
    }
    Ok(())
}

fn count(key: &'static str, value: u32) -> Result<(), SpecError> {
    if !(1..=MAX_COUNT).contains(&value) {
        return refuse(key, format!("is {value}, but must be 1 to {MAX_COUNT}"));
    }
    Ok(())
}

fn vocabulary_size(tokens: u32) -> Result<(), SpecError> {
    if !(2..=MAX_VOCABULARY).contains(&tokens) {
        let problem = format!("is {tokens}, but must be 2 to {MAX_VOCABULARY}");
        return refuse("model.vocabulary", problem);
    }
    Ok(())
}

fn within(key: &'static str, value: f64, low: f64, high: f64) -> Result<(), SpecError> {
    if !(low..=high).contains(&value) {
        return refuse(key, format!("is {value}, but must be a number from {low} to {high}"));
    }
    Ok(())
}

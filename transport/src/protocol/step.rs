//! What members of a generation say to each other about one step.

use rkyv::{Archive, Deserialize, Serialize};

use super::ids::{DataShard, Generation, Shard, Step, WorkerId};
use super::outcome::PartEvaluation;
use super::scalar::{self, Scalar, ScalarSum};

/// What the step leader decided about a step.
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
    Hash,
)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Every owner applies the update.
    #[default]
    Apply,
    /// The gradient was not finite: every copy is relabelled and nothing changes.
    Skip,
}

/// The factor by which a worker multiplies the loss before the backward pass, so that in fp16 small
/// gradients do not vanish. It is a power of two: a value multiplied and divided by it keeps its
/// bits. The default is 1.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossScale {
    /// The exponent: the factor is 2 to this power.
    pub exponent: u8,
    /// How many steps in a row have committed with this factor without a skip.
    pub good: u32,
}

impl LossScale {
    /// The greatest exponent of a loss scale: the scale is 2 to that power.
    pub const MAX_EXPONENT: u8 = 24;

    /// The factor: 1 to 2^24, whatever exponent a peer sends.
    pub fn factor(self) -> u32 {
        1 << self.exponent.min(Self::MAX_EXPONENT)
    }
}

/// One line of `metrics.jsonl`: a committed step.
#[derive(
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
    Clone,
    Debug,
    Default,
    PartialEq,
)]
pub struct MetricsLine {
    /// The number of the committed step.
    pub step: Step,
    /// The generation that committed it.
    pub generation: Generation,
    /// How many members that generation had.
    pub world_size: u32,
    /// Mean training loss over the global batch, nats.
    #[serde(deserialize_with = "number_or_null")]
    pub loss: f64,
    /// Global norm of the gradient before clipping.
    #[serde(deserialize_with = "number_or_null")]
    pub grad_norm: f64,
    /// Whether the step applied an update.
    pub decision: Decision,
    /// The factor that multiplied the loss, 1 but for fp16. Nothing else in the line contains it.
    pub loss_scale: u32,
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// Targets that the step trained on.
    pub tokens: u64,
    /// From the last commit to this one, seconds.
    pub seconds: f64,
    /// Wall clock of the step leader at the commit, milliseconds of Unix time.
    pub unix_ms: u64,
    /// Compute of the slowest member, seconds.
    pub compute_seconds: f64,
    /// What the vote and the commit of the previous step took at most, seconds: from the vote to
    /// the commit, for the member other than the step leader with the shortest time. That member
    /// may have waited for the step leader's own vote. The others waited for each other's. 0 for
    /// the first step of a generation, and in a generation of one member.
    pub commit_seconds: f64,
    /// Samples of the plan that no committed partial sum contains.
    pub samples_lost: u64,
    /// Samples that committed partial sums contain more often than the plan.
    pub samples_repeated: u64,
    /// Mean loss over the held-out samples with the parameters that the step began with, as `loss`.
    /// `None` in a step that evaluates none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_loss: Option<f64>,
    /// The model's own metric over them, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<f64>,
    /// Means over the step of the scalars that the model logs, by name: at most
    /// [`MAX_SCALARS`](scalar::MAX_SCALARS).
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "scalar::as_object")]
    pub scalars: Vec<Scalar>,
}

/// A number that need not be finite. JSON has `null` in the place of one that is not.
fn number_or_null<'de, D: serde::Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    <Option<f64> as serde::Deserialize>::deserialize(from).map(|it| it.unwrap_or(f64::NAN))
}

/// What one data shard brought to a step.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Contribution {
    /// The data shard of these figures.
    pub data_shard: DataShard,
    /// Its mean loss, nats. Each micro-batch counts by its weight, so this is divided by the mean
    /// weight of the step.
    pub loss: f64,
    /// The weights of its micro-batches, added in their order: their number, if they weigh 1 each.
    pub weight: f64,
    /// The indices of the samples that were in its batches, in the order of their rows.
    pub samples: Vec<u64>,
    /// How many samples of its plan were not in them.
    pub samples_lost: u64,
    /// How many samples in them are not of its plan, or occur once more than planned.
    pub samples_repeated: u64,
    /// What came of its part of the held-out samples, if the step evaluates them.
    pub evaluation: Option<PartEvaluation>,
    /// The scalars that the model has logged with its micro-batches, by name.
    pub scalars: Vec<ScalarSum>,
}

/// A vote: "I have computed my data shards, hold every reduced shard that I own, and have applied
/// the commit before this step."
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Prepared {
    /// The generation in which the member votes.
    pub generation: Generation,
    /// The step voted for. After the last step an empty vote for the next one settles it.
    pub step: Step,
    /// For each shard of which the voter is primary, the sum of squares of its reduced gradient.
    pub squares: Vec<(Shard, f64)>,
    /// One contribution for each data shard that the voter computed.
    pub contributions: Vec<Contribution>,
    /// For each shard that the voter owns, the digest of its state at version `step - 1`.
    pub digests: Vec<(Shard, u64)>,
    /// Seconds of compute in this step.
    pub compute_seconds: f64,
    /// Seconds from the voter's vote for the previous step to its commit. 0 for the first step of a
    /// generation.
    pub commit_seconds: f64,
}

/// The step leader's word that a step is part of history.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Commit {
    /// The generation that committed.
    pub generation: Generation,
    /// The number of the committed step.
    pub step: Step,
    /// Global norm of the gradient before clipping.
    pub norm: f64,
    /// Mean loss over the global batch.
    pub loss: f64,
    /// Whether owners apply the update or skip it.
    pub decision: Decision,
    /// What owners multiply the reduced gradient by: 1 over the mean weight of the step's
    /// micro-batches. 1 in a run without weights. `norm` and `loss` contain it.
    pub gradient_factor: f32,
    /// How many committed steps of the history applied an update, this one included. Adam corrects
    /// its bias by this number.
    pub updates: u64,
    /// The loss scale of the next step.
    pub loss_scale: LossScale,
    /// All members finish this step and wait, since a change of generation is planned.
    pub hold: bool,
    /// The step's metrics line.
    pub line: MetricsLine,
}

/// A worker's evidence at a change of generation: what it has promised, and what it holds.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Status {
    /// The term of the Pause that this answers.
    pub term: super::ids::Term,
    /// The number that the sender now promises.
    pub number: Generation,
    /// The sender's last commit, if it has one.
    pub commit: Option<Commit>,
    /// Reduced shards that the sender holds of the step after that commit, each with the generation
    /// that reduced it.
    pub prepared: Vec<(Shard, Generation)>,
    /// Versions of the shards that the sender holds, each with the generation that committed it. 0
    /// for the initial state.
    pub versions: Vec<(Shard, Step, Generation)>,
    /// The step after the last commit, if the sender has begun to compute it.
    pub under_way: Option<Step>,
    /// Peers that the sender cannot reach.
    pub unreachable: Vec<WorkerId>,
}

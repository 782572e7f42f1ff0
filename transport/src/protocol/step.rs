//! What members of a generation say to each other about one step.

use rkyv::{Archive, Deserialize, Serialize};

use super::ids::{DataShard, Generation, Shard, Step, WorkerId};

/// What the step leader decided.
#[derive(
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
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

/// What the loss is multiplied by before the way back, so that in fp16 small gradients do not
/// vanish. A power of two: what is divided by it again has the bits that it had. The default is 1.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossScale {
    /// The power.
    pub exponent: u8,
    /// How many steps in a row have committed with it, none of them skipped.
    pub good: u32,
}

impl LossScale {
    /// The greatest power.
    pub const MAX_EXPONENT: u8 = 24;

    /// The factor: 1 to 2^24, whatever a peer says.
    pub fn factor(self) -> u32 {
        1 << self.exponent.min(Self::MAX_EXPONENT)
    }
}

/// One line of `metrics.jsonl`: a committed step.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, Default, PartialEq)]
pub struct MetricsLine {
    /// The step.
    pub step: Step,
    /// The generation that committed it.
    pub generation: Generation,
    /// How many members that generation had.
    pub world_size: u32,
    /// Mean training loss over the global batch, nats.
    pub loss: f64,
    /// Global norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Whether the step changed anything.
    pub decision: Decision,
    /// What the loss was multiplied by; 1 but for fp16. Nothing else in the line is.
    pub loss_scale: u32,
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// Targets that the step trained on.
    pub tokens: u64,
    /// From the last commit to this one, seconds.
    pub seconds: f64,
    /// Wall clock of the step leader at the commit.
    pub unix_ms: u64,
    /// Compute of the slowest member, seconds.
    pub compute_seconds: f64,
    /// What the vote and the commit of the step before took at most: from the vote to the commit,
    /// for the member other than the step leader for which that was shortest, seconds. It may have
    /// waited for the step leader's own vote; the others waited for each other's. 0 for the first
    /// step of a generation, and where nobody else is.
    pub commit_seconds: f64,
    /// Samples of the plan that no committed partial sum contains.
    pub samples_lost: u64,
    /// Samples that committed partial sums contain more often than the plan.
    pub samples_repeated: u64,
}

/// What one data shard brought to a step.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Contribution {
    /// The data shard.
    pub data_shard: DataShard,
    /// Its mean loss, nats.
    pub loss: f64,
    /// The indices of the samples that were in its batches, in the order of their rows.
    pub samples: Vec<u64>,
    /// How many samples of its plan were not in them.
    pub samples_lost: u64,
    /// How many were in them that are not of its plan, or once more than planned.
    pub samples_repeated: u64,
}

/// A vote: "I have computed my data shards, hold every reduced shard that I own, and have applied
/// the commit before this step."
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Prepared {
    /// The voter's generation.
    pub generation: Generation,
    /// The step voted for; after the last step an empty vote for the next one settles it.
    pub step: Step,
    /// For each shard of which the voter is primary, the sum of squares of its reduced gradient.
    pub squares: Vec<(Shard, f64)>,
    /// For each data shard that the voter computed.
    pub contributions: Vec<Contribution>,
    /// For each shard that the voter owns, the digest of its state at version `step - 1`.
    pub digests: Vec<(Shard, u64)>,
    /// Seconds of compute in this step.
    pub compute_seconds: f64,
    /// Seconds from the voter's vote for the step before to the commit; 0 for the first step of a
    /// generation.
    pub commit_seconds: f64,
}

/// The step leader's word that a step is part of history.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Commit {
    /// The generation that committed.
    pub generation: Generation,
    /// The committed step.
    pub step: Step,
    /// Global norm of the gradient before clipping.
    pub norm: f64,
    /// Mean loss over the global batch.
    pub loss: f64,
    /// Apply or skip.
    pub decision: Decision,
    /// How many committed steps of the history applied an update, this one included: what Adam
    /// corrects its bias by.
    pub updates: u64,
    /// The loss scale of the next step.
    pub loss_scale: LossScale,
    /// All finish the step and wait: a change of generation is planned.
    pub hold: bool,
    /// The step's line.
    pub line: MetricsLine,
}

/// A worker's evidence at a change of generation: what it has promised, and what it holds.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Status {
    /// The term of the Pause that this answers.
    pub term: super::ids::Term,
    /// The number that is now promised.
    pub number: Generation,
    /// The sender's last commit, if it has one.
    pub commit: Option<Commit>,
    /// Reduced shards of the step after that which it holds, each with the generation in which it
    /// was reduced.
    pub prepared: Vec<(Shard, Generation)>,
    /// Versions of the shards that it holds, each with the generation whose commit made it; 0 for
    /// the initial state.
    pub versions: Vec<(Shard, Step, Generation)>,
    /// The step after the last commit, if its computing has begun.
    pub under_way: Option<Step>,
    /// Peers that it cannot reach.
    pub unreachable: Vec<WorkerId>,
}

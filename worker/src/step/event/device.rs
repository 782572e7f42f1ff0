//! What the device is asked to do, and what it reports.

use std::sync::Arc;

use everstep_kernels::buffer::{Buffer, Shared};
use everstep_kernels::reduce::TreeNode;
use everstep_transport::protocol::outcome::{Inability, PartEvaluation};
use everstep_transport::protocol::step::Contribution;
use everstep_transport::protocol::{
    Chunk, Commit, DataShard, Generation, LossScale, Shard, Step, WorkerId,
};

use super::ShardToSave;

/// The source of the state of a generation's shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardOrigin {
    /// From the seed, or the initial weights: version 0 of everything. State that the device held,
    /// or had under way, is void.
    Seed,
    /// From a checkpoint, or for a joiner from others: a [`Job::Restore`] for each shard to hold
    /// will come. State that the device held, or had under way, is void.
    Checkpoint,
    /// The device holds it already.
    Held,
}

/// What the device computes in a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// The data shards, ascending.
    pub data_shards: Vec<DataShard>,
    /// The subtrees of the reduction that these data shards make up.
    pub subtrees: Vec<TreeNode>,
}

/// A job for the device. The device does its jobs in order, with these exceptions. While a pass
/// computes, the device does [`Job::Share`], [`Job::Export`] and [`Job::Save`] beside it, unless an
/// earlier job concerns their shards. While a pass waits for parameters, the device does these and
/// [`Job::Load`] at once, and also [`Job::Update`] and [`Job::Restore`] as long as no job before
/// them is put off. A [`Job::Enter`] from the seed or a checkpoint ends the pass and voids the jobs
/// that were put off. A job that follows from the commit of the pass's own step ends the
/// pass and voids the rest of that step's computation. All other jobs wait for the end of the pass.
#[derive(Debug)]
pub enum Job {
    /// A generation begins. The answer is [`Report::Entered`]. Reports before it belong to the
    /// generation before.
    Enter {
        /// The number of the generation that begins.
        generation: Generation,
        /// Where the state comes from.
        origin: ShardOrigin,
        /// Parameter shards to hold, ascending, each with whether this worker is its primary. With
        /// [`ShardOrigin::Held`] the device holds all of them already.
        owned: Vec<(Shard, bool)>,
        /// Shards that the worker syncs: kept if the device has them. It drops all other shards.
        syncing: Vec<Shard>,
    },
    /// Forward and backward of these data shards, with the parameters of version `step - 1`.
    Gradient {
        /// The step that the gradients are for.
        step: Step,
        /// What the device multiplies the loss by. The gradients that it reports are unscaled.
        scale: LossScale,
        /// The work: all that the plan assigns, or the part that a redo of the step lacks.
        work: Arc<Work>,
    },
    /// Compute with parameters that have arrived from their primary.
    Load {
        /// The parameter shard that arrived.
        shard: Shard,
        /// The step that made the parameters.
        version: Step,
        /// The values to compute with.
        values: Buffer,
    },
    /// Apply a committed step to a held shard, owned or syncing. The answer is [`Report::Updated`].
    Update {
        /// The held shard to update.
        shard: Shard,
        /// The committed step, which is the new version.
        step: Step,
        /// Its global gradient norm.
        norm: f64,
        /// What multiplies the gradient besides clipping. The norm contains it.
        factor: f32,
        /// The number of this update in the run's history, from 1.
        update: u64,
        /// The reduced gradient. None if the step was skipped: the shard only gets the new version.
        gradient: Option<Gradient>,
    },
    /// A step was committed without an update: give all parameters to compute with its version.
    Skip {
        /// The committed step, which is the new version.
        step: Step,
    },
    /// Hand out the parameters to compute with, of shards of which this worker is primary. The
    /// answer is [`Report::Shared`].
    Share {
        /// The worker that asked.
        to: WorkerId,
        /// The shards, all with this worker as primary.
        shards: Vec<Shard>,
    },
    /// Hand out master weights and moments. The answer is a [`Report::State`] for each shard.
    Export {
        /// The worker that asked.
        to: WorkerId,
        /// The shards. This worker owns all of them.
        shards: Vec<Shard>,
    },
    /// Hand out the states of shards of which this worker is primary, to be saved. Nothing is
    /// copied. The answer is [`Report::Saving`].
    Save {
        /// The commit that made the states.
        commit: Box<Commit>,
        /// The shards to save, in ascending order.
        shards: Vec<Shard>,
    },
    /// Take over a shard's state from another owner or from a checkpoint. The answer is
    /// [`Report::Restored`].
    Restore {
        /// The shard to take over.
        shard: Shard,
        /// The version that the state is of.
        version: Step,
        /// The digest that the state must have.
        digest: u64,
        /// Master weights, then moments.
        parts: Vec<Buffer>,
    },
    /// The last step is done: validate, and digest the owned shards. In a generation that begins
    /// after the last step the device does this again.
    Finish {
        /// The version that all parameters must have.
        version: Step,
        /// The data shards that fix which parts of the held-out samples this worker validates.
        data_shards: Vec<DataShard>,
    },
    /// Hand out the master weights of which this worker is primary, for the worker that writes the
    /// model's file. The answer is a [`Report::Exported`] for each shard.
    Masters {
        /// The worker that asked.
        to: WorkerId,
    },
}

/// A reduced gradient on its way to the device that applies it.
#[derive(Clone, Debug)]
pub struct Gradient {
    /// The reduced gradient of one parameter shard.
    pub values: Shared,
    /// The digest that its primary made. The device checks with it whether the values have changed.
    pub digest: u64,
}

impl Gradient {
    /// The gradient that a chunk brought.
    pub(in crate::step) fn received(chunk: &Chunk, values: Buffer) -> Self {
        Self { values: Shared::new(values), digest: chunk.digest }
    }
}

/// What the device has done.
#[derive(Debug)]
pub enum Report {
    /// The device has entered a generation.
    Entered {
        /// The number of the generation that the device entered.
        generation: Generation,
        /// The owned shards, each with its version and its digest.
        owned: Vec<(Shard, Step, u64)>,
    },
    /// One parameter shard of one subtree's gradient is final.
    Partial {
        /// The step that the gradient is for.
        step: Step,
        /// The parameter shard that the sum covers.
        shard: Shard,
        /// The subtree of data shards that the sum covers.
        node: TreeNode,
        /// Its sum. No thread writes it again.
        sum: Shared,
    },
    /// A data shard is computed.
    Computed {
        /// The step that the data shard belongs to.
        step: Step,
        /// Its loss and samples.
        contribution: Contribution,
        /// Seconds that it took, without waiting.
        seconds: f64,
        /// Seconds that its samples took to load, whether or not others loaded at the same time.
        load_seconds: f64,
    },
    /// The data set cannot read a sample yet, or can again. The device waits meanwhile.
    LoadStalled(bool),
    /// The device begins with another batch of held-out samples, or after the last step to digest
    /// its shards. It computes no data shard.
    Evaluating,
    /// It has evaluated the held-out samples of a data shard, or digested its shards.
    Evaluated,
    /// A held shard has a new version.
    Updated {
        /// The new version of the shard.
        version: Step,
        /// The shard that was updated.
        shard: Shard,
        /// Digest of master weights and moments.
        digest: u64,
        /// The new parameters for others, if this worker is primary and the values changed.
        parameters: Option<Shared>,
    },
    /// The parameters of a shard to compute with, for the worker that asked.
    Shared {
        /// The worker that asked.
        to: WorkerId,
        /// The version of the parameters.
        version: Step,
        /// The shard that they belong to.
        shard: Shard,
        /// The parameters that passes compute with.
        values: Shared,
    },
    /// A shard's state as this worker holds it, for the worker that asked.
    State {
        /// The worker that asked.
        to: WorkerId,
        /// The version of the state.
        version: Step,
        /// The shard that the state belongs to.
        shard: Shard,
        /// The digest that the version was made with.
        digest: u64,
        /// Master weights, then moments.
        parts: Vec<Shared>,
    },
    /// States to save. They do not change any more.
    Saving {
        /// The commit that made them.
        commit: Box<Commit>,
        /// The states, in ascending order of their shards.
        shards: Vec<ShardToSave>,
    },
    /// The device took a shard over, or refused it because its bits do not match the digest.
    Restored {
        /// The version that the state is of.
        version: Step,
        /// The shard that was taken over or refused.
        shard: Shard,
        /// Digest of master weights and moments.
        digest: u64,
        /// Whether the bits match the digest, and so the device took the shard over.
        intact: bool,
    },
    /// At the end: master weights of a shard of which this worker is primary.
    Exported {
        /// The worker that writes the model's file.
        to: WorkerId,
        /// The shard that the weights belong to.
        shard: Shard,
        /// The master weights, in f32.
        values: Shared,
    },
    /// The device has validated and digested, as [`Job::Finish`] asked.
    Finished(Summary),
    /// The device cannot compute the run.
    Unable {
        /// Whether every other worker would meet the reason too, or it lies in this place.
        inability: Inability,
        /// The reason in words for the user.
        reason: String,
    },
    /// The device cannot continue.
    Failed(String),
}

/// The device's account of the whole run.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Validation of this worker's parts.
    pub evaluations: Vec<PartEvaluation>,
    /// BLAKE3 of each owned shard's step, master weights and moments.
    pub digests: Vec<(Shard, [u8; 32])>,
    /// The number of data shards that the device has computed.
    pub data_shards_computed: u64,
    /// Seconds in forward and backward.
    pub compute_seconds: f64,
    /// Seconds of training in which the device waited for others.
    pub exposed_seconds: f64,
    /// Bytes of master weights and moments.
    pub optimizer_bytes: u64,
    /// Floating-point operations that training on one sample takes at least, if the model says so.
    pub flops_per_sample: Option<u64>,
}

//! What the thread that reads and writes checkpoints is asked to do, and what it reports.

use std::sync::Arc;

use everstep_kernels::buffer::Buffer;
use everstep_kernels::optimizer::ShardState;
use everstep_transport::protocol::{
    CheckpointId, Commit, Generation, ManifestToWrite, ModelPlace, SavedPart, Shard, Verification,
    WorkerId, WrittenManifest,
};

/// A job for the thread. It does its jobs in order. Once the store has failed a job that writes, it
/// gives way to a later one, and a restore to the next restore.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // a few move for each checkpoint
pub enum StoreJob {
    /// Write this worker's part of a checkpoint. The answer is [`StoreReport::Saved`] or
    /// [`StoreReport::Unsaved`].
    Save(PartToSave),
    /// Delete checkpoints, write the lines and events that go along with another one, then its
    /// manifest, and then sweep. The answer is [`StoreReport::Manifest`] or
    /// [`StoreReport::NoManifest`].
    Manifest(Box<ManifestToWrite>),
    /// Read shards of a checkpoint. The answer is a [`StoreReport::Restored`] for each, or one
    /// [`StoreReport::Damaged`].
    Restore {
        /// The generation that restores.
        generation: Generation,
        /// The checkpoint to read.
        id: CheckpointId,
        /// The shards to read, in ascending order.
        shards: Vec<Shard>,
    },
    /// Read a checkpoint whole, to see whether it is damaged. The thread does so while it has no
    /// other job, and the next one takes the place of one under way. The answers are
    /// [`StoreReport::Verification`]s.
    Verify {
        /// The checkpoint to read.
        id: CheckpointId,
    },
    /// Put the trained model into the store: the file that this worker has gathered. The answer is
    /// [`StoreReport::Stored`]. There is none if a restore takes its place.
    Model {
        /// The generation in which the file became complete.
        generation: Generation,
    },
}

/// This worker's part of a checkpoint.
#[derive(Debug)]
pub struct PartToSave {
    /// The worker that writes the part.
    pub worker: WorkerId,
    /// The generation that names the file, with the worker. It is that of the commit if the step is
    /// due.
    pub generation: Generation,
    /// The commit that made the states.
    pub commit: Commit,
    /// The states, ascending by shard.
    pub shards: Vec<ShardToSave>,
}

/// The state of a shard that a checkpoint will have.
#[derive(Clone, Debug)]
pub struct ShardToSave {
    /// The number of the shard.
    pub shard: Shard,
    /// Its state, which does not change any more.
    pub state: Arc<ShardState>,
    /// The digest that the state was made with.
    pub digest: u64,
}

/// What the thread has done.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // a few move for each checkpoint
pub enum StoreReport {
    /// The part is durable.
    Saved(SavedPart),
    /// The part is not written and will not be.
    Unsaved {
        /// The checkpoint that lacks the part.
        id: CheckpointId,
        /// The reason in words for the user.
        reason: String,
    },
    /// The manifest is durable.
    Manifest(WrittenManifest),
    /// The manifest is not written and will not be.
    NoManifest {
        /// The checkpoint that lacks the manifest.
        id: CheckpointId,
        /// The reason in words for the user.
        reason: String,
    },
    /// A shard was read. Its bits are those that were written.
    Restored {
        /// The generation that restores.
        generation: Generation,
        /// The shard that was read.
        shard: Shard,
        /// The digest of its state as a version of the shard.
        digest: u64,
        /// Master weights, then moments.
        parts: Vec<Buffer>,
    },
    /// A checkpoint cannot be restored: its bytes are not those that were written.
    Damaged {
        /// The generation that restores.
        generation: Generation,
        /// The checkpoint with the damage.
        id: CheckpointId,
        /// The file, the shard, and what is wrong.
        reason: String,
    },
    /// How far a checkpoint is read, or at last what that has shown.
    Verification {
        /// The checkpoint that is read.
        id: CheckpointId,
        /// What is known of it.
        state: Verification,
    },
    /// The model is durable in the store.
    Stored {
        /// The generation in which its file became complete.
        generation: Generation,
        /// The place of the model in the store.
        place: ModelPlace,
    },
    /// The store does not do what is asked, for this reason, and the thread tries again. None: it
    /// does again.
    Failing(Option<String>),
}

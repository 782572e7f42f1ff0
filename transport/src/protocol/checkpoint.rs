//! Checkpoints of a run: what its specification asks for, what workers have written, and what the
//! log lists.

// The derive does not carry the docs of variants' fields over to the archived type.
#![allow(missing_docs)]

mod origin;
mod retention;
mod verification;

use rkyv::{Archive, Deserialize, Serialize};

pub use self::origin::RunOrigin;
pub use self::retention::Retention;
pub use self::verification::Verification;
use super::ids::{Generation, Shard, Step, Term, WorkerId};
use super::outcome::Event;
use super::run::SpecError;
use super::step::{Commit, MetricsLine};

/// Where a run's checkpoints go, and how many there are.
#[derive(
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
    Clone,
    Debug,
    PartialEq,
    Eq,
)]
#[serde(deny_unknown_fields)]
pub struct CheckpointSpec {
    /// The store: an absolute path that all workers see, or a URL (`s3://`, `gs://`, `az://`).
    pub path: String,
    /// Steps from one checkpoint to the next, at least 1.
    pub every: u64,
    /// How many of the newest checkpoints are kept, at least 1.
    pub keep: u64,
    /// Every checkpoint of a step that this divides is kept for ever. 0: none.
    #[serde(default)]
    pub keep_every: u64,
    /// What follows when a checkpoint cannot be written.
    #[serde(default)]
    pub on_failure: OnFailure,
}

/// What a run does when a checkpoint cannot be written.
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
pub enum OnFailure {
    /// It trains on, and an event tells of the failure.
    #[default]
    Continue,
    /// It pauses until an operator lets it go on.
    Pause,
}

impl CheckpointSpec {
    /// How many checkpoints a run keeps if its specification does not say so.
    pub const KEEP: u64 = 3;
    /// The longest path or URL, bytes.
    const LONGEST_PATH: usize = 4_096;

    /// Whether the state after `step` is to be saved, in a run of `steps` steps. The last one
    /// always is.
    pub fn is_due(&self, step: Step, steps: u64) -> bool {
        step.0 > 0 && (step.0.is_multiple_of(self.every) || step.0 == steps)
    }

    /// The checkpoints that were due after the step `listed` and before `step`: the first, the
    /// last, and how many.
    pub fn due_between(&self, listed: Step, step: Step) -> Option<(Step, Step, u64)> {
        let first = (listed.0 / self.every).checked_add(1)?;
        let last = step.0.checked_sub(1)? / self.every;
        let count = last.checked_sub(first)? + 1;
        Some((Step(first * self.every), Step(last * self.every), count))
    }

    /// Which checkpoints are deleted when there are newer ones.
    pub fn retention(&self) -> Retention {
        Retention { keep: self.keep, keep_every: self.keep_every }
    }

    /// Whether the store is an object store, and so the same one from every machine.
    pub fn is_url(&self) -> bool {
        self.path.contains("://")
    }

    /// The place of an object in the store: `name` below its path or URL.
    pub fn path_of(&self, name: &str) -> String {
        format!("{}/{name}", self.path.trim_end_matches('/'))
    }

    /// The path or URL of the trained model in the store.
    pub fn model_path(&self) -> String {
        self.path_of(MODEL_FILE)
    }

    /// Checks every value. The error names the first that is not valid.
    pub(super) fn validate(&self) -> Result<(), SpecError> {
        let positive = |key, value: u64| match value {
            1..=1_099_511_627_776 => Ok(()),
            _ => Err(SpecError::new(key, format!("is {value}, but must be 1 to 2^40"))),
        };
        positive("checkpoint.every", self.every)?;
        positive("checkpoint.keep", self.keep)?;
        if self.keep_every > 0 {
            positive("checkpoint.keep_every", self.keep_every)?;
        }
        let path = &self.path;
        if path.is_empty() || path.len() > Self::LONGEST_PATH || path.contains(char::is_control) {
            let problem = "must be a directory or a URL, without control characters";
            return Err(SpecError::new("checkpoint.path", problem));
        }
        Ok(())
    }
}

/// The name of the trained model in the run's store.
pub const MODEL_FILE: &str = "model.safetensors";

/// The folder of a checkpoint in its store: `step-000500`.
pub fn step_folder(step: Step) -> String {
    format!("step-{:06}", step.0)
}

/// Names a checkpoint: the state after a step that a generation committed.
#[derive(
    Archive,
    Serialize,
    Deserialize,
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
)]
#[rkyv(derive(PartialEq, Eq, PartialOrd, Ord))]
pub struct CheckpointId {
    /// The step that the checkpoint was made after.
    pub step: Step,
    /// The generation that committed it.
    pub generation: Generation,
}

impl CheckpointId {
    /// The checkpoint of the state that a commit makes.
    pub fn of(commit: &Commit) -> Self {
        Self { step: commit.step, generation: commit.generation }
    }
}

/// A part of a checkpoint that is durable: the shards of which one worker is primary.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct SavedPart {
    /// The commit that made the state.
    pub commit: Commit,
    /// The generation in which the part was written. It names the file, with the worker.
    pub generation: Generation,
    /// All bytes of the file.
    pub bytes: u64,
    /// The bytes of its head.
    pub head_bytes: u64,
    /// BLAKE3 of its head.
    pub head_digest: [u8; 32],
    /// Each shard in it with its BLAKE3, ascending by shard.
    pub shards: Vec<(Shard, [u8; 32])>,
    /// How long the worker wrote it, milliseconds.
    pub write_ms: u64,
}

/// A checkpoint whose manifest is durable.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct WrittenManifest {
    /// The checkpoint that the manifest completes.
    pub id: CheckpointId,
    /// The bytes of all of its files.
    pub bytes: u64,
    /// The state hash at its step.
    pub state_hash: [u8; 32],
    /// Checkpoints that the writer has deleted, as the order said.
    pub deleted: Vec<CheckpointId>,
}

/// A checkpoint that the log lists: it can be restored.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct ListedCheckpoint {
    /// The commit that made the state.
    pub commit: Commit,
    /// The bytes of all of its files.
    pub bytes: u64,
    /// How long the slowest worker wrote its part, milliseconds.
    pub write_ms: u64,
    /// The state hash at its step.
    pub state_hash: [u8; 32],
    /// What is wrong with it, if a worker found damage.
    pub damage: Option<String>,
}

impl ListedCheckpoint {
    /// The name of this checkpoint in the run.
    pub fn id(&self) -> CheckpointId {
        CheckpointId::of(&self.commit)
    }
}

/// A checkpoint as operators see it.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq)]
pub struct CheckpointView {
    /// The step that the checkpoint was made after.
    pub step: Step,
    /// The bytes of all of its files.
    pub bytes: u64,
    /// How long the slowest worker wrote its part, seconds. `None` if nothing tells.
    pub seconds: Option<f64>,
    /// The state hash at its step, hexadecimal. `None` if its manifest cannot be read.
    pub state_hash: Option<String>,
    /// Whether it can be restored, as far as that is known.
    pub complete: bool,
    /// The folder of the checkpoint in the store.
    pub path: String,
    /// What is wrong with it, if something is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
}

/// The order to write a manifest.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct ManifestToWrite {
    /// The term in which the sender leads.
    pub term: Term,
    /// The generation in which the order is valid.
    pub generation: Generation,
    /// The parts. Together they have every shard.
    pub parts: Vec<WorkerPart>,
    /// Whether all members computed the same bits.
    pub bitwise: bool,
    /// Checkpoints that the log lists no more: the receiver deletes them.
    pub delete: Vec<CheckpointId>,
    /// No part of a step up to this one can still become part of a manifest: the receiver deletes
    /// those that no manifest has.
    pub sweep: Step,
    /// The metrics lines since the checkpoint before, which go to the store with this one.
    pub lines: Vec<MetricsLine>,
    /// The events since the checkpoint before, which go to the store with this one.
    pub events: Vec<Event>,
}

/// One worker's part of a checkpoint, in the order to write the manifest.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct WorkerPart {
    /// The worker that wrote the part. It names the file, with the generation of the part.
    pub worker: WorkerId,
    /// The part that the worker has written.
    pub part: SavedPart,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(every: u64) -> CheckpointSpec {
        let path = "/store".into();
        CheckpointSpec { path, every, keep: 3, keep_every: 0, on_failure: OnFailure::Continue }
    }

    #[test]
    fn every_so_many_steps_and_the_last_one_are_due() {
        let due: Vec<u64> = (0..=12).filter(|step| spec(5).is_due(Step(*step), 12)).collect();
        assert_eq!(due, [5, 10, 12]);
    }

    #[test]
    fn what_no_store_could_be_is_refused_by_its_key() {
        let of = |change: fn(&mut CheckpointSpec)| {
            let mut wrong = spec(5);
            change(&mut wrong);
            wrong.validate().map_err(|error| error.key)
        };
        assert_eq!(of(|_| {}), Ok(()));
        assert_eq!(of(|spec| spec.every = 0), Err("checkpoint.every".into()));
        assert_eq!(of(|spec| spec.keep = 0), Err("checkpoint.keep".into()));
        assert_eq!(of(|spec| spec.keep_every = 1 << 50), Err("checkpoint.keep_every".into()));
        assert_eq!(of(|spec| spec.path.clear()), Err("checkpoint.path".into()));
        assert_eq!(of(|spec| spec.path.push('\n')), Err("checkpoint.path".into()));
    }
}

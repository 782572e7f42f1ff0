//! How far history goes: the resume rule, and the point that a rollback goes back to.

use everstep_transport::protocol::{Commit, Step};

use super::{GiveUp, PlanInputs};
#[cfg(feature = "planted")]
use crate::plant::CorePlant;
use crate::state::NoWholeCheckpoint;

/// The last step that is part of history.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ResumePoint<'a> {
    /// No step is: everything is as the seed says.
    Seed,
    /// The step of this commit.
    Commit(&'a Commit),
    /// The step of this commit, of which a checkpoint is listed. The steps after it are undone.
    Checkpoint(&'a Commit),
}

impl<'a> ResumePoint<'a> {
    /// The greatest step that a Status shows committed in the current generation. Without one, the
    /// step at which the current generation itself resumed. Commits of older generations count for
    /// nothing: the current record has judged them. Before the first generation: the newest
    /// checkpoint, if another cluster has begun the run.
    ///
    /// # Errors
    /// [`NoWholeCheckpoint`], before the first generation.
    pub(super) fn resumed(inputs: &PlanInputs<'a>) -> Result<Self, NoWholeCheckpoint> {
        let Some(current) = inputs.current else { return Self::restored(inputs) };
        let counts = |commit: &&Commit| {
            #[cfg(feature = "planted")]
            if inputs.plant == Some(CorePlant::ResumeFromOld) {
                return true;
            }
            commit.generation == current.number && commit.step.0 <= inputs.run.steps
        };
        let commits = inputs.statuses.values().filter_map(|status| status.commit.as_ref());
        let commits = commits.filter(counts).chain(&current.commit);
        Ok(commits.max_by_key(|commit| commit.step).map_or(Self::Seed, Self::Commit))
    }

    /// The newest checkpoint that can be restored: if an operator asks for a step, of that step at
    /// most. A run without checkpoints begins anew, and so does one of which an operator says so.
    ///
    /// # Errors
    /// [`NoWholeCheckpoint`].
    pub(super) fn restored(inputs: &PlanInputs<'a>) -> Result<Self, NoWholeCheckpoint> {
        let newest = match inputs.give_up {
            Some(GiveUp::After(step)) => *step,
            Some(GiveUp::Silent(_)) | None => Step(u64::MAX),
        };
        let listed = inputs.checkpoints.to_restore(newest)?;
        Ok(listed.map_or(Self::Seed, |listed| Self::Checkpoint(&listed.commit)))
    }

    pub(super) fn step(&self) -> Step {
        match self {
            Self::Seed => Step(0),
            Self::Commit(commit) | Self::Checkpoint(commit) => commit.step,
        }
    }

    /// The commit for a record: a commit in a record never holds.
    pub(super) fn commit(&self) -> Option<Commit> {
        match self {
            Self::Seed => None,
            Self::Commit(commit) | Self::Checkpoint(commit) => {
                Some(Commit { hold: false, ..(*commit).clone() })
            }
        }
    }
}

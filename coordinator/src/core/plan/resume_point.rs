//! How far history goes: the resume rule.

use everstep_transport::protocol::{Commit, Step};

use super::PlanInputs;
#[cfg(feature = "planted")]
use crate::plant::CorePlant;

/// The last step that is part of history.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ResumePoint<'a> {
    /// No step is: everything is as the seed says.
    Seed,
    /// The step of this commit.
    Commit(&'a Commit),
}

impl<'a> ResumePoint<'a> {
    /// The greatest step that a Status shows committed in the current generation. Without one, the
    /// step at which the current generation itself resumed. Commits of older generations count for
    /// nothing: the current record has judged them.
    pub(super) fn resumed(inputs: &PlanInputs<'a>) -> Self {
        let Some(current) = inputs.current else { return Self::Seed };
        let counts = |commit: &&Commit| {
            #[cfg(feature = "planted")]
            if inputs.plant == Some(CorePlant::ResumeFromOld) {
                return true;
            }
            commit.generation == current.number && commit.step.0 <= inputs.run.steps
        };
        let commits = inputs.statuses.values().filter_map(|status| status.commit.as_ref());
        let commits = commits.filter(counts).chain(&current.commit);
        commits.max_by_key(|commit| commit.step).map_or(Self::Seed, Self::Commit)
    }

    pub(super) fn step(&self) -> Step {
        match self {
            Self::Seed => Step(0),
            Self::Commit(commit) => commit.step,
        }
    }

    /// The commit for a record: a commit in a record never holds.
    pub(super) fn commit(&self) -> Option<Commit> {
        match self {
            Self::Seed => None,
            Self::Commit(commit) => Some(Commit { hold: false, ..(*commit).clone() }),
        }
    }
}

//! A name for one state of all parameters.
//!
//! A step number alone does not name a state. A generation may commit a step that no survivor knows
//! of, and the next generation does that step again. Step and generation together do name it,
//! because a generation commits a step once.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use everstep_transport::protocol::{Commit, Generation, Record, Step};

/// The state after a step that a generation committed. The default is the initial state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// The step that made the state. 0 for the initial state.
    pub step: Step,
    /// The generation that committed it. 0 for the initial state.
    pub generation: Generation,
}

impl Version {
    /// The state that a commit makes.
    pub fn of(commit: &Commit) -> Self {
        Self { step: commit.step, generation: commit.generation }
    }

    /// The state that a generation begins with.
    pub fn resumed(record: &Record) -> Self {
        let generation = record.commit.as_ref().map_or(Generation(0), |commit| commit.generation);
        Self { step: record.resume, generation }
    }

    /// The state after `step` in the history of this generation. None if it is older than the state
    /// that the generation began with.
    pub fn within(record: &Record, step: Step) -> Option<Self> {
        let resumed = Self::resumed(record);
        match step.cmp(&resumed.step) {
            std::cmp::Ordering::Less => None,
            std::cmp::Ordering::Equal => Some(resumed),
            std::cmp::Ordering::Greater => Some(Self { step, generation: record.number }),
        }
    }
}

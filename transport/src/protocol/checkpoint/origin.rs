//! Where a run goes on that another cluster has begun: what the store of its checkpoints has.

use rkyv::{Archive, Deserialize, Serialize};

use super::{CheckpointId, ListedCheckpoint};
use crate::protocol::ids::{Generation, Step};
use crate::protocol::run::{RunSpec, SpecError};
use crate::protocol::step::Commit;

/// Most checkpoints, and most undone ones, in one submission.
const MAX_LISTED: usize = 4_096;
/// The greatest generation that a store may name. As many again can follow it.
const MAX_GENERATION: u64 = 1 << 62;

/// What a store has of a run. The run goes on from the last of its checkpoints.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct RunOrigin {
    /// The checkpoints that can be restored, ascending by step. At least one.
    pub checkpoints: Vec<ListedCheckpoint>,
    /// Checkpoints, and parts of some, of later steps. They are deleted, since the run trains and
    /// saves those steps again.
    pub undone: Vec<CheckpointId>,
    /// The newest generation that the store names. All generations of the run follow it, so no
    /// name in the store is used twice.
    pub generation: Generation,
    /// Whether the run may go on from an older checkpoint if the last one is damaged.
    pub falls_back: bool,
}

impl RunOrigin {
    /// The step after which the run goes on.
    pub fn step(&self) -> Step {
        self.checkpoints.last().map_or(Step(0), |last| last.commit.step)
    }

    /// Checks that a run of this specification can go on from here.
    ///
    /// # Errors
    /// The first thing that does not fit.
    pub fn validate(&self, run: &RunSpec) -> Result<(), SpecError> {
        let refuse = |problem: String| Err(SpecError::new("checkpoint", problem));
        if run.checkpoint.is_none() {
            return refuse("is not set, and the run is to go on from a checkpoint".into());
        }
        let (listed, undone) = (self.checkpoints.len(), self.undone.len());
        if listed == 0 || listed > MAX_LISTED || undone > MAX_LISTED {
            return refuse(format!(
                "has {listed} checkpoints and {undone} undone ones, but there must be 1 to \
                 {MAX_LISTED}, and at most as many undone ones"
            ));
        }
        if self.generation.0 > MAX_GENERATION {
            return refuse(format!("names generation {}, which is too large", self.generation));
        }
        let ascends = |two: &[ListedCheckpoint]| two[0].commit.step < two[1].commit.step;
        if !self.checkpoints.windows(2).all(ascends) {
            return refuse("lists checkpoints that do not ascend by step".into());
        }
        if let Some(wrong) = self.checkpoints.iter().find(|it| !self.fits(it, run)) {
            let step = wrong.commit.step;
            return refuse(format!("lists one of step {step}, which the run cannot go on from"));
        }
        match self.undone.iter().find(|id| id.step <= self.step()) {
            Some(id) => refuse(format!("undoes step {}, which is part of history", id.step)),
            None => Ok(()),
        }
    }

    fn fits(&self, listed: &ListedCheckpoint, run: &RunSpec) -> bool {
        let Commit { step, generation, hold, line, .. } = &listed.commit;
        (1..=run.steps).contains(&step.0)
            && (Generation(1)..=self.generation).contains(generation)
            && !hold
            && (line.step, line.generation) == (*step, *generation)
            && listed.damage.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::exemplars;

    fn refused(change: impl FnOnce(&mut RunOrigin, &mut RunSpec)) -> Option<String> {
        let (mut origin, mut run) = exemplars::resumed_run();
        change(&mut origin, &mut run);
        origin.validate(&run).err().map(|error| error.to_string())
    }

    #[test]
    fn a_run_goes_on_only_from_what_its_store_can_have() {
        assert_eq!(refused(|_, _| {}), None);
        type Change = fn(&mut RunOrigin, &mut RunSpec);
        let wrong: [(Change, &str); 9] = [
            (|_, run| run.checkpoint = None, "is not set"),
            (|origin, _| origin.checkpoints.clear(), "has 0 checkpoints"),
            (|origin, _| origin.generation = Generation(u64::MAX), "too large"),
            (|origin, _| origin.generation = Generation(1), "one of step"),
            (|origin, _| origin.checkpoints.reverse(), "do not ascend"),
            (|origin, _| origin.checkpoints[0].commit.hold = true, "cannot go on from"),
            (|origin, _| origin.checkpoints[0].damage = Some("cut".into()), "cannot go on from"),
            (|_, run| run.steps = 7, "cannot go on from"),
            (|origin, _| origin.undone[0].step = Step(8), "part of history"),
        ];
        for (change, words) in wrong {
            let told = refused(change).expect(words);
            assert!(told.contains(words), "{told}");
        }
    }
}

//! I2 and I13, as far as they are about the loss scale. It follows from the decisions on the steps
//! before, for every worker that computes or commits and in every line, in spite of any fault.

use std::collections::BTreeMap;

use everstep_transport::protocol::run::Precision;
use everstep_transport::protocol::{Commit, LossScale, MetricsLine, Step, WorkerId};
use everstep_worker::step::scaling::Scaling;

use super::{Breach, Invariant};
use crate::toy;

#[derive(Debug)]
pub(super) struct Scales {
    scaling: Scaling,
    /// The scale after each step that was ever committed, by its decision.
    after: BTreeMap<Step, LossScale>,
}

impl Scales {
    pub(super) fn new(precision: Precision) -> Self {
        Self { scaling: Scaling::of(precision, toy::GROWTH_INTERVAL), after: BTreeMap::new() }
    }

    /// Another cluster has trained the first steps of the run.
    pub(super) fn follow(&mut self, before: &Self) {
        self.after.clone_from(&before.after);
    }

    /// A device computes a step with a scale.
    pub(super) fn began(
        &self,
        worker: WorkerId,
        step: Step,
        scale: LossScale,
    ) -> Result<(), Breach> {
        let expected = self.of(step);
        if scale == expected {
            return Ok(());
        }
        let seen = format!("worker {worker} computes step {step} with {scale:?}, not {expected:?}");
        Err((Invariant::I2, seen))
    }

    /// A member commits a step. Another checker has found its decision equal to all others.
    pub(super) fn committed(&mut self, worker: WorkerId, commit: &Commit) -> Result<(), Breach> {
        let (step, scale) = (commit.step, commit.loss_scale);
        let expected = self.scaling.next(self.of(step), commit.decision);
        self.after.insert(step, expected);
        if scale == expected {
            return Ok(());
        }
        let seen = format!("worker {worker} commits step {step} with {scale:?}, not {expected:?}");
        Err((Invariant::I2, seen))
    }

    /// A watcher has received a line.
    pub(super) fn written(&self, line: &MetricsLine) -> Result<(), Breach> {
        if line.loss_scale == self.of(line.step).factor() {
            return Ok(());
        }
        Err((Invariant::I13, format!("{line:?}, but its scale was {:?}", self.of(line.step))))
    }

    /// The scale of a step, once the step before has committed.
    fn of(&self, step: Step) -> LossScale {
        let before = self.after.range(..step).next_back();
        before.map_or_else(|| self.scaling.first(), |(_, scale)| *scale)
    }
}

//! The judges of a world: the invariants, the progress of the run, and what both must know of the
//! leaders.

use std::sync::Arc;

use everstep_transport::protocol::{RunOrigin, RunSpec};
use everstep_transport::time::Time;

use super::balance::BalanceChecker;
use super::leadership::LeadershipTrace;
use super::liveness::LivenessChecker;
use crate::check::{InvariantChecks, RunHistory};

/// All that judges a cluster, and never changes it.
pub struct Checkers {
    /// How many samples the data set has.
    samples: u64,
    pub invariants: InvariantChecks,
    pub liveness: LivenessChecker,
    pub leadership: LeadershipTrace,
    pub balance: BalanceChecker,
    /// Messages and chunks that workers have refused.
    pub refused: u64,
}

impl Checkers {
    /// Checkers of a run that has not begun, on a data set of so many samples.
    pub fn new(run: &RunSpec, samples: u64, reference: Option<Arc<RunHistory>>) -> Self {
        Self {
            samples,
            invariants: InvariantChecks::new(run, samples, reference),
            liveness: LivenessChecker::default(),
            leadership: LeadershipTrace::default(),
            balance: BalanceChecker::default(),
            refused: 0,
        }
    }

    /// How many samples the data set has.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Another cluster begins at `now`, perhaps from checkpoints of the one before. The faults so
    /// far may still explain its losses.
    pub fn begin_anew(
        &mut self,
        now: Time,
        run: &RunSpec,
        reference: Option<Arc<RunHistory>>,
        from: Option<&RunOrigin>,
    ) {
        let anew = InvariantChecks::new(run, self.samples, reference);
        let before = std::mem::replace(&mut self.invariants, anew);
        if let Some(origin) = from {
            self.invariants.follow(&before);
            self.invariants.begin_from(origin);
        }
        self.leadership = LeadershipTrace::default();
        self.balance = BalanceChecker::default();
        self.liveness.begin_anew(now);
    }
}

//! What a worker knows of its run, in every generation.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use everstep_kernels::buffer::Pool;
use everstep_kernels::schedule::LearningRates;
use everstep_kernels::threads::Threads;
use everstep_transport::protocol::{Record, RunSpec, Step};

use super::scaling::Scaling;

/// The part that does not change with the generation.
#[derive(Debug)]
pub struct Setup {
    /// The specification of the run.
    pub run: RunSpec,
    /// How many parameters the model has.
    pub parameters: usize,
    /// How many of them the optimizer trains: all up to the statistics.
    pub trained: usize,
    /// How the loss scale changes.
    pub scaling: Scaling,
    /// The learning rate of each step.
    pub rates: LearningRates,
    /// Targets that one step trains on.
    pub tokens_per_step: u64,
    /// Wall clock at the core's time zero.
    pub unix_ms_at_zero: u64,
    /// The pool of the buffers for tensors.
    pub pool: Pool,
    /// The threads that take the norms and digests of gradients.
    pub threads: Threads,
    /// The number of tensors of a parameter shard's state: master weights and moments.
    pub state_parts: usize,
    /// Bytes of kept sums that a member adds up at once.
    pub merge_bytes: usize,
}

impl Setup {
    /// Whether members of this record start no step: the run waits, or its last step is committed.
    pub fn starts_no_step(&self, record: &Record) -> bool {
        record.waiting || record.resume >= Step(self.run.steps)
    }
}

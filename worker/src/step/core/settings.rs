//! What a worker's core is given at its start, and never changes.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use everstep_kernels::buffer::Pool;
use everstep_transport::protocol::RunSpec;

use super::WorkerIdentity;
use crate::optimize;
use crate::step::event::Built;
use crate::step::scaling::{self, Scaling};
use crate::step::setup::Setup;

/// Bytes of kept sums that the core adds up before links, heartbeats and other inputs have their
/// turn: some milliseconds.
const MERGE_BYTES: usize = 16 << 20;

/// The settings of a worker's core.
#[derive(Debug)]
pub(super) struct CoreSettings {
    identity: WorkerIdentity,
    pool: Pool,
    /// After so many good steps in a row the loss scale of fp16 doubles.
    pub growth: u32,
    /// The core adds up so many bytes of kept sums at once.
    pub merge_bytes: usize,
    /// The worker ends with the run that it takes part in, and waits for no other one.
    pub ends_with_run: bool,
}

impl CoreSettings {
    /// The usual settings of a worker that takes buffers for sums from `pool`.
    pub fn new(identity: WorkerIdentity, pool: Pool) -> Self {
        let growth = scaling::GROWTH_INTERVAL;
        Self { identity, pool, growth, merge_bytes: MERGE_BYTES, ends_with_run: false }
    }

    /// What all generations of a run share, for a model that was built.
    pub fn setup(&self, run: RunSpec, built: &Built) -> Setup {
        Setup {
            parameters: built.registration.fingerprint.parameters as usize,
            trained: built.trained,
            scaling: Scaling::of(run.model.precision, self.growth),
            rates: optimize::rates(&run, built.rates.clone()),
            tokens_per_step: built.tokens_per_step,
            unix_ms_at_zero: self.identity.unix_ms_at_zero,
            pool: self.pool.clone(),
            threads: built.threads.clone(),
            state_parts: built.state_parts,
            merge_bytes: self.merge_bytes,
            run,
        }
    }
}

//! The end of the run: what must be there before a worker reports its result.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::BTreeSet;

use everstep_transport::protocol::Shard;

use super::event::Summary;
use super::plan::Plan;

/// How far a member has come after the last step.
#[derive(Debug)]
pub struct Finish {
    /// Master weights that have not reached the writer; the step leader is the writer.
    missing: BTreeSet<Shard>,
    /// What the device found.
    pub summary: Option<Summary>,
    /// The model is durable, or another member's to write.
    pub written: bool,
}

impl Finish {
    /// Nothing is there yet.
    pub fn new(plan: &Plan) -> Self {
        let shards = if plan.leads() { plan.shards() } else { 0 };
        let missing: BTreeSet<_> = (0..shards).map(Shard).collect();
        Self { written: missing.is_empty(), missing, summary: None }
    }

    /// Whether a shard's master weights are awaited; each is taken once.
    pub fn expect_master(&mut self, shard: Shard) -> bool {
        self.missing.remove(&shard)
    }

    /// The result, once nothing is missing.
    pub fn result(&self) -> Option<&Summary> {
        self.summary.as_ref().filter(|_| self.written)
    }
}

//! I18: within a generation each partial is added exactly once to a reduction. So a worker takes it
//! once. Where no interceptor repeats a message, members refuse no message of each other.

use std::collections::BTreeSet;

use everstep_transport::protocol::{Chunk, ChunkKind, Generation, Shard, Step, WorkerId};

use super::{Breach, Invariant};

/// A partial of a step, and the worker that has taken it.
type Taken = (Step, Shard, u32, u32, WorkerId);

#[derive(Debug, Default)]
pub(super) struct PartialSums {
    /// The newest generation in which workers took partials, and the partials.
    taken: (Generation, BTreeSet<Taken>),
}

impl PartialSums {
    pub(super) fn admitted(&mut self, worker: WorkerId, chunk: &Chunk) -> Result<(), Breach> {
        if chunk.kind != ChunkKind::Partial || chunk.generation < self.taken.0 {
            return Ok(());
        }
        if chunk.generation > self.taken.0 {
            self.taken = (chunk.generation, BTreeSet::new());
        }
        let partial = (chunk.step, chunk.shard, chunk.level, chunk.index, worker);
        if self.taken.1.insert(partial) {
            return Ok(());
        }
        Err((Invariant::I18, format!("worker {worker} takes a partial twice: {chunk:?}")))
    }
}

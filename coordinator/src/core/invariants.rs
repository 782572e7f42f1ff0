//! Assertions of a leader before it proposes the end of a run or lists a checkpoint, and of a
//! coordinator before it writes metrics lines. Each names its invariant, and a broken one stops the
//! process.
//!
//! Results, lines and messages of workers have been checked before. A core with a planted bug
//! asserts nothing here: the simulator's checks are to find the bug.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use everstep_transport::protocol::outcome::Outcome;
use everstep_transport::protocol::{CheckpointId, Step, WorkerPart};
use everstep_transport::time::Time;

use super::Core;
use crate::lines::LineRecord;
use crate::state::State;

impl Core {
    /// The end of the run is about to be proposed.
    pub(super) fn check_end(&self, now: Time, outcome: &Outcome) {
        let Outcome::Complete(results) = outcome else { return };
        if self.state.is_exempt() {
            return;
        }
        assert!(self.is_model_durable(now), "I22: a complete run has a durable model");
        assert!(self.completion.model.place().is_some(), "I22: a complete run names its model");
        let steps = self.state.run().map_or(0, |run| run.steps);
        assert!(self.written() >= Step(steps), "I13: a complete run has the line of every step");
        let members = self.state.record().map_or(0, |record| record.members.len());
        assert_eq!(results.len(), members, "I3: a complete run has every member's result");
    }
}

/// A checkpoint is about to be listed: these parts are durable.
pub(super) fn check_checkpoint(core: &Core, id: CheckpointId, parts: &[WorkerPart]) {
    if core.state.is_exempt() {
        return;
    }
    let CheckpointId { step, generation } = id;
    assert!(core.is_settled(id), "I12: step {step} of generation {generation} is not settled");
    let shards = parts.iter().flat_map(|part| &part.part.shards).map(|(shard, _)| shard.0);
    let mut shards: Vec<u32> = shards.collect();
    shards.sort_unstable();
    let all = 0..core.state.shards().unwrap_or(0);
    assert!(all.eq(shards), "I12: the checkpoint of step {step} does not have each shard once");
}

/// A manifest is about to be ordered, and parts of steps up to `sweep` are swept after it.
pub(super) fn check_sweep(core: &Core, id: CheckpointId, sweep: Step) {
    if !core.state.is_exempt() {
        assert!(sweep < id.step, "I12: the parts of a checkpoint under way are not swept");
    }
}

/// Lines are about to be written: they end with the newest that this coordinator knows.
pub(super) fn check_lines(state: &State, fresh: &[LineRecord], reach: Step) {
    if state.is_exempt() {
        return;
    }
    let steps = fresh.iter().map(|record| record.line.step.0);
    let first = reach.0 + 1 - fresh.len() as u64;
    assert!(steps.eq(first..=reach.0), "I13: each step has one line, in order");
}

//! What a report and a display need of a run's events, beside the newest events themselves.
//!
//! In: all events, in order. Events may come again that came before. Out: the present members, the
//! newest checkpoint, the rollbacks. Memory grows with the number of rollbacks, and with nothing
//! else.

use std::collections::BTreeSet;

use everstep_transport::protocol::outcome::{Event, EventKind};
use everstep_transport::protocol::{ModelPlace, Step, WorkerId};

use super::RollbackReport;

/// How many checkpoints count as restorable: the newest. A run's store keeps fewer.
const CHECKPOINTS: usize = 1_000;

/// Sums over the events of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventSums {
    /// The number of the newest event that ever came.
    newest: u64,
    /// When the run was submitted, milliseconds of Unix time.
    pub(super) submitted_unix_ms: Option<u64>,
    /// The time of the newest event, milliseconds of Unix time.
    pub(super) newest_unix_ms: u64,
    /// The members of the newest generation, in rank order. None before the first.
    pub(super) members: Option<Vec<WorkerId>>,
    /// The place where the model of a complete run is durable.
    pub(super) model: Option<ModelPlace>,
    /// All returns to an earlier step.
    pub(super) rollbacks: Vec<RollbackReport>,
    /// Whether the coordinators have told of the run's end.
    pub(super) has_ended: bool,
    checkpoints: BTreeSet<Step>,
}

impl EventSums {
    /// Takes the next event. Returns `false` if it came before.
    pub(super) fn event(&mut self, event: &Event) -> bool {
        if event.number <= self.newest {
            return false;
        }
        self.newest = event.number;
        self.newest_unix_ms = event.unix_ms;
        self.submitted_unix_ms.get_or_insert(event.unix_ms);
        match &event.kind {
            EventKind::Generation { workers, .. } => self.members = Some(workers.clone()),
            EventKind::Checkpoint { step, .. } | EventKind::Continued { step } => {
                self.checkpoints.insert(*step);
                if self.checkpoints.len() > CHECKPOINTS {
                    self.checkpoints.pop_first();
                }
            }
            EventKind::CheckpointDamaged { step, .. } => {
                self.checkpoints.remove(step);
            }
            EventKind::Rollback { from, to, reason } => {
                self.checkpoints.retain(|step| step <= to);
                let (from, to, reason) = (*from, *to, reason.to_string());
                self.rollbacks.push(RollbackReport { from, to, reason, unix_ms: event.unix_ms });
            }
            EventKind::Complete { model, .. } => {
                self.model.clone_from(model);
                self.has_ended = true;
            }
            EventKind::Failed { .. } => self.has_ended = true,
            _ => {}
        }
        true
    }

    /// The number of the newest event. 0 before the first.
    pub(super) fn newest(&self) -> u64 {
        self.newest
    }

    /// The step of the newest checkpoint that can be restored.
    pub(super) fn checkpoint(&self) -> Option<Step> {
        self.checkpoints.last().copied()
    }
}

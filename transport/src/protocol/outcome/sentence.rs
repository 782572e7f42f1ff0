//! The events of a cluster, in sentences for operators.
//!
//! Entries and snapshots hold events as values. Sentences are made where an operator reads them: in
//! logs, on a terminal, in JSON. A sentence names a worker by number, id and host where its maker
//! knows the worker, and otherwise by its id.

use std::fmt::Display;
use std::time::Duration;

use super::{EventKind, Inability};
use crate::protocol::{CoordinatorId, Step, WorkerId, WriteFailure};

impl EventKind {
    /// Whether an operator wants to hear of this event at once.
    pub fn is_trouble(&self) -> bool {
        matches!(
            self,
            Self::Lost { .. }
                | Self::Rollback { .. }
                | Self::Unreachable { .. }
                | Self::Refused { .. }
                | Self::Failed { .. }
                | Self::Unable { .. }
                | Self::Unwritten { .. }
                | Self::NoStore
                | Self::Recovered { .. }
                | Self::LinesLost { .. }
                | Self::Standstill { .. }
                | Self::CheckpointFailed { .. }
                | Self::CheckpointDamaged { .. }
                | Self::Waiting { .. }
        )
    }

    /// The workers that a sentence about trouble names.
    pub fn named_workers(&self) -> Vec<WorkerId> {
        match self {
            Self::Lost { worker, .. } => vec![*worker],
            Self::Unreachable { workers: (one, other) } => vec![*one, *other],
            Self::Unwritten { failure } => vec![failure.worker],
            _ => Vec::new(),
        }
    }

    /// A sentence about the event. `name` gives the name of a worker.
    pub fn sentence<W: Display>(&self, name: impl Fn(WorkerId) -> W) -> String {
        let called = |worker: &WorkerId| name(*worker);
        match self {
            Self::Submitted { run } => format!("run \"{run}\" was submitted"),
            Self::Registered { worker, name, .. } => {
                format!("{} registered: it is {name}", called(worker))
            }
            Self::Refused { name, reason } => format!("{name} was refused: {reason}"),
            Self::Leading { term, coordinator } => {
                format!("coordinator {coordinator} leads this cluster, in term {term}")
            }
            Self::Generation { generation, workers, at_step, redone, .. } => {
                let again = if *redone { ", and the step under way is done again" } else { "" };
                let members = members(workers.len());
                format!("generation {generation} of {members} begins after step {at_step}{again}")
            }
            Self::Joined { worker } => format!("{} joined", called(worker)),
            Self::Draining { worker } => format!("{} was asked to leave", called(worker)),
            Self::Left { worker } => format!("{} left", called(worker)),
            Self::Lost { worker, reason, .. } => format!("{} was lost: {reason}", called(worker)),
            Self::Unreachable { workers: (one, other) } => {
                let (one, other) = (called(one), called(other));
                format!("{one} and {other} cannot reach each other, and neither can be left out")
            }
            Self::Rollback { from, to, reason } => {
                format!("the run went back from step {from} to step {to}: {reason}")
            }
            Self::Recovered { coordinator } => recovered(*coordinator),
            Self::Unable { name, reason, inability: Inability::Run } => {
                format!("{name} cannot compute the run: {reason}")
            }
            Self::Unable { name, reason, inability: Inability::Place } => {
                format!("{name} cannot compute the run yet, and tries again: {reason}")
            }
            Self::Unwritten { failure: WriteFailure { worker, place, reason, .. } } => {
                format!("{} cannot write the model to {place}: {reason}", called(worker))
            }
            Self::NoStore => "no worker has a directory to write the model to".into(),
            Self::Complete { step, model } => {
                let model = model.iter().map(|place| format!(": its model is {place}"));
                format!("the run is complete, after step {step}{}", model.collect::<String>())
            }
            Self::LinesLost { from, to } => {
                format!("no process has the metrics of steps {from} to {to} any more")
            }
            Self::Failed { reason } => format!("the run failed: {reason}"),
            Self::Standstill { reason } => format!("no device of the run gets on: {reason}"),
            Self::Checkpoint { step, bytes, seconds, .. } => saved(*step, *bytes, *seconds),
            Self::CheckpointFailed { .. }
            | Self::CheckpointsResumed { .. }
            | Self::CheckpointSkipped { .. }
            | Self::CheckpointsSkipped { .. }
            | Self::CheckpointDamaged { .. } => self.checkpoint_trouble().unwrap_or_default(),
            Self::Paused { reason, .. } => format!("the run pauses: {reason}"),
            Self::Resumed => "the run goes on: an operator has resumed it".into(),
            Self::CheckpointRequested { step } => {
                format!("a checkpoint of step {step} was asked for")
            }
            Self::Continued { step } => {
                format!("the run goes on from the checkpoint of step {step} of another cluster")
            }
            Self::Waiting { awaited } => format!("the run waits: {awaited}"),
            Self::WaitingOver { owners, waited_ms } => {
                waits_no_more(owners.iter().map(called), *waited_ms)
            }
            Self::Preempted { worker, notice } => format!("{} leaves: {notice}", called(worker)),
        }
    }
}

fn recovered(coordinator: CoordinatorId) -> String {
    format!(
        "the cluster goes on from coordinator {coordinator} alone: what only the others had is lost"
    )
}

fn waits_no_more<W: Display>(owners: impl Iterator<Item = W>, waited_ms: u64) -> String {
    let owners: Vec<String> = owners.map(|owner| owner.to_string()).collect();
    let waited = Duration::from_millis(waited_ms);
    format!("the run waits no more for {}, after {waited:.1?}", owners.join(", "))
}

fn members(count: usize) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} worker{plural}")
}

fn saved(step: Step, bytes: u64, seconds: f64) -> String {
    format!("checkpoint of step {step}: {:.1} MB in {seconds:.1} s", bytes as f64 / 1e6)
}

//! The events of a cluster, in sentences for operators.
//!
//! A sentence names a worker by number, id and host as long as the state remembers the worker, and
//! by its id later.

use std::time::Duration;

use everstep_transport::protocol::outcome::{EventKind, Inability};
use everstep_transport::protocol::reason::NamedWorker;
use everstep_transport::protocol::{CoordinatorId, Step, WorkerId, WriteFailure};

use crate::state::State;

/// Whether an operator wants to hear of this event at once.
pub(crate) fn is_trouble(kind: &EventKind) -> bool {
    matches!(
        kind,
        EventKind::Lost { .. }
            | EventKind::Rollback { .. }
            | EventKind::Unreachable { .. }
            | EventKind::Refused { .. }
            | EventKind::Failed { .. }
            | EventKind::Unable { .. }
            | EventKind::Unwritten { .. }
            | EventKind::NoStore
            | EventKind::Recovered { .. }
            | EventKind::LinesLost { .. }
            | EventKind::Standstill { .. }
            | EventKind::CheckpointFailed { .. }
            | EventKind::CheckpointDamaged { .. }
            | EventKind::Waiting { .. }
    )
}

/// A sentence about the event.
pub(crate) fn sentence(state: &State, kind: &EventKind) -> String {
    let called = |worker: &WorkerId| state.called(*worker);
    match kind {
        EventKind::Submitted { run } => format!("run \"{run}\" was submitted"),
        EventKind::Registered { worker, name, .. } => {
            format!("{} registered: it is {name}", called(worker))
        }
        EventKind::Refused { name, reason } => format!("{name} was refused: {reason}"),
        EventKind::Leading { term, coordinator } => {
            format!("coordinator {coordinator} leads this cluster, in term {term}")
        }
        EventKind::Generation { generation, workers, at_step, redone, .. } => {
            let again = if *redone { ", and the step under way is done again" } else { "" };
            let members = members(workers.len());
            format!("generation {generation} of {members} begins after step {at_step}{again}")
        }
        EventKind::Joined { worker } => format!("{} joined", called(worker)),
        EventKind::Draining { worker } => format!("{} was asked to leave", called(worker)),
        EventKind::Left { worker } => format!("{} left", called(worker)),
        EventKind::Lost { worker, reason, .. } => format!("{} was lost: {reason}", called(worker)),
        EventKind::Unreachable { workers: (one, other) } => {
            let (one, other) = (called(one), called(other));
            format!("{one} and {other} cannot reach each other, and neither can be left out")
        }
        EventKind::Rollback { from, to, reason } => {
            format!("the run went back from step {from} to step {to}: {reason}")
        }
        EventKind::Recovered { coordinator } => recovered(*coordinator),
        EventKind::Unable { name, reason, inability: Inability::Run } => {
            format!("{name} cannot compute the run: {reason}")
        }
        EventKind::Unable { name, reason, inability: Inability::Place } => {
            format!("{name} cannot compute the run yet, and tries again: {reason}")
        }
        EventKind::Unwritten { failure: WriteFailure { worker, place, reason, .. } } => {
            format!("{} cannot write the model to {place}: {reason}", called(worker))
        }
        EventKind::NoStore => "no worker has a directory to write the model to".into(),
        EventKind::Complete { step, model } => {
            let model = model.iter().map(|place| format!(": its model is {place}"));
            format!("the run is complete, after step {step}{}", model.collect::<String>())
        }
        EventKind::LinesLost { from, to } => {
            format!("no process has the metrics of steps {from} to {to} any more")
        }
        EventKind::Failed { reason } => format!("the run failed: {reason}"),
        EventKind::Standstill { reason } => format!("no device of the run gets on: {reason}"),
        EventKind::Checkpoint { step, bytes, seconds, .. } => saved(*step, *bytes, *seconds),
        EventKind::CheckpointFailed { .. }
        | EventKind::CheckpointsResumed { .. }
        | EventKind::CheckpointSkipped { .. }
        | EventKind::CheckpointsSkipped { .. }
        | EventKind::CheckpointDamaged { .. } => kind.checkpoint_trouble().unwrap_or_default(),
        EventKind::Paused { reason, .. } => format!("the run pauses: {reason}"),
        EventKind::Resumed => "the run goes on: an operator has resumed it".into(),
        EventKind::CheckpointRequested { step } => {
            format!("a checkpoint of step {step} was asked for")
        }
        EventKind::Continued { step } => {
            format!("the run goes on from the checkpoint of step {step} of another cluster")
        }
        EventKind::Waiting { awaited } => format!("the run waits: {awaited}"),
        EventKind::WaitingOver { owners, waited_ms } => {
            waits_no_more(owners.iter().map(called), *waited_ms)
        }
    }
}

fn recovered(coordinator: CoordinatorId) -> String {
    format!(
        "the cluster goes on from coordinator {coordinator} alone: what only the others had is lost"
    )
}

fn waits_no_more(owners: impl Iterator<Item = NamedWorker>, waited_ms: u64) -> String {
    let owners: Vec<String> = owners.map(|owner| owner.to_string()).collect();
    let waited = Duration::from_millis(waited_ms);
    format!("the run waits no more for {}, after {waited:.1?}", owners.join(", "))
}

fn members(count: usize) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} worker{plural}")
}

fn saved(step: Step, bytes: u64, seconds: f64) -> String {
    format!("the checkpoint of step {step} is complete: {bytes} bytes, written in {seconds:.1} s")
}

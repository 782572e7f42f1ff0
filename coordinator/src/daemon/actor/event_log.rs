//! Logs the events: a sentence for people, and its parts as fields for machines.
//!
//! Trouble becomes a warning, and every other event information.

use everstep_transport::protocol::outcome::{Event, EventKind};
use tracing::{info, warn};

use crate::state::State;

/// Logs an event that the state has just taken.
pub(super) fn log(state: &State, event: &Event) {
    let words = event.kind.sentence(|worker| state.called(worker));
    let number = event.number;
    match &event.kind {
        EventKind::Lost { worker, reason, detect_ms, pause_ms } => {
            let worker = worker.0;
            warn!(
                event = "lost",
                number,
                worker,
                reason = reason.to_string(),
                detect_ms,
                pause_ms,
                "{words}"
            );
        }
        EventKind::Rollback { from, to, reason } => {
            let (from, to) = (from.0, to.0);
            warn!(event = "rollback", number, from, to, reason = reason.to_string(), "{words}");
        }
        EventKind::Unreachable { workers: (one, other) } => {
            let (one, other) = (one.0, other.0);
            warn!(event = "unreachable", number, one, other, "{words}");
        }
        EventKind::Refused { name, reason } => {
            warn!(event = "refused", number, %name, reason = reason.to_string(), "{words}");
        }
        EventKind::Failed { reason } => {
            warn!(event = "failed", number, reason = reason.to_string(), "{words}")
        }
        EventKind::Generation { generation, workers, at_step, redone, .. } => {
            let (generation, members, at_step) = (generation.0, workers.len(), at_step.0);
            info!(event = "generation", number, generation, members, at_step, redone, "{words}");
        }
        EventKind::Leading { term, coordinator } => {
            let (term, coordinator) = (term.0, coordinator.0);
            info!(event = "leading", number, term, coordinator, "{words}");
        }
        EventKind::Registered { worker, name, .. } => {
            let worker = worker.0;
            info!(event = "registered", number, worker, %name, "{words}");
        }
        EventKind::Joined { worker }
        | EventKind::Draining { worker }
        | EventKind::Left { worker } => {
            let (event, worker) = (name(&event.kind), worker.0);
            info!(event, number, worker, "{words}");
        }
        EventKind::Preempted { worker, notice } => {
            let (worker, cloud, seconds_left) =
                (worker.0, notice.cloud.name(), notice.seconds_left);
            warn!(event = "preempted", number, worker, cloud, seconds_left, "{words}");
        }
        EventKind::Waiting { awaited } => {
            let owners: Vec<u64> = awaited.owners.iter().map(|owner| owner.0).collect();
            let (shards, checkpoint) = (awaited.shards, awaited.checkpoint.0);
            warn!(event = "waiting", number, ?owners, shards, checkpoint, "{words}");
        }
        EventKind::WaitingOver { owners, waited_ms } => {
            let owners: Vec<u64> = owners.iter().map(|owner| owner.0).collect();
            warn!(event = "waiting_over", number, ?owners, waited_ms, "{words}");
        }
        other if other.is_trouble() => warn!(event = name(other), number, "{words}"),
        other => info!(event = name(other), number, "{words}"),
    }
}

/// The event's name, as `events.jsonl` has it.
fn name(kind: &EventKind) -> String {
    let value = serde_json::to_value(kind).unwrap_or_default();
    value["event"].as_str().unwrap_or_default().into()
}

//! What is known of a run under way: lines, events, workers, taken from the coordinator's updates.
//!
//! In: updates, in order. Out: one history. A rollback takes lines back; they are kept apart, since
//! time was spent on them. Files are not written here.

use std::collections::BTreeMap;

use everstep_transport::protocol::outcome::{
    Event, EventKind, OwnersAwaited, Update, Waiting, WorkerResult, WorkerState, WorkerView,
};
use everstep_transport::protocol::{
    Device, MetricsLine, ModelAwaited, ModelPlace, NodeName, Step, WorkerId,
};

use super::Protection;

/// What is known of a run under way.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// The lines of all settled steps, in order.
    pub lines: Vec<MetricsLine>,
    /// Lines that rollbacks took back, in the order of their commits.
    pub undone: Vec<MetricsLine>,
    /// All events, in order.
    pub events: Vec<Event>,
    /// The workers, by id, and the newest of those that are gone.
    pub workers: Vec<WorkerView>,
    /// What each worker that was ever told of computes on.
    pub devices: BTreeMap<WorkerId, Device>,
    /// What the user calls each worker that has registered.
    pub names: BTreeMap<WorkerId, String>,
    /// Why the bits of this run are not those of any other run of the same specification, if they
    /// are not.
    pub divergence: Option<String>,
    /// What the run waits for, while it starts no step.
    pub waiting: Option<Waiting>,
    /// Whose return the run waits for, since nobody else holds their parameter shards.
    pub owners_awaited: Option<OwnersAwaited>,
    /// What the model of a trained run waits for.
    pub model_awaited: Option<ModelAwaited>,
    /// Why workers cannot compute the run, where some cannot and it has not begun.
    pub unable: Vec<(NodeName, String)>,
    /// Pairs of members that cannot reach each other, and stop the run.
    pub unreachable: Vec<(WorkerId, WorkerId)>,
    /// Which parameter shards lack owners, and lacked them.
    pub protection: Protection,
    /// How many workers the launcher started in the place of others.
    pub respawned: u32,
    /// How often the launcher started the coordinator again.
    pub coordinator_restarts: u32,
    /// What each worker reported, once the run is complete.
    pub results: Option<Vec<WorkerResult>>,
    /// The command with which another worker joins.
    pub join: String,
    /// Where the first coordinator's HTTP API is, if it has one.
    pub api: Option<String>,
}

/// What an update did to the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lines {
    /// This many came, at the end.
    Came(usize),
    /// Some were taken back, and all must be written anew.
    TakenBack,
}

impl Progress {
    /// How many workers have registered for a run that has not begun; none once it has.
    pub fn registered(&self) -> Option<usize> {
        let begins = |event: &Event| matches!(event.kind, EventKind::Generation { .. });
        let there = self.workers.iter().filter(|view| lives(view)).count();
        (!self.events.iter().any(begins)).then_some(there)
    }

    /// The members of the current generation, in rank order; none before the first.
    pub fn members(&self) -> &[WorkerId] {
        let members = self.events.iter().rev().find_map(|event| match &event.kind {
            EventKind::Generation { workers, .. } => Some(workers.as_slice()),
            _ => None,
        });
        members.unwrap_or_default()
    }

    /// What the user calls a worker: by the label of its process, where that was started here,
    /// else by its number.
    pub fn called(&self, worker: WorkerId) -> String {
        self.names.get(&worker).cloned().unwrap_or_else(|| format!("the worker with id {worker}"))
    }

    /// The last settled step.
    pub fn step(&self) -> Step {
        self.lines.last().map_or(Step(0), |line| line.step)
    }

    /// Where the model of a complete run is durable.
    pub fn model(&self) -> Option<&ModelPlace> {
        let model = self.events.iter().rev().find_map(|event| match &event.kind {
            EventKind::Complete { model, .. } => Some(model.as_ref()),
            _ => None,
        });
        model.flatten()
    }

    /// Takes an update to heart, of a run that needs `min_workers`.
    pub(super) fn take(&mut self, update: Update, min_workers: u32) -> Lines {
        let Update { lines, events, workers, divergence, .. } = update;
        let Update { waiting, owners_awaited, model_awaited, unable, unreachable, .. } = update;
        let mut change = Lines::Came(0);
        if events.is_empty() {
            // Lines that come with events may be of a history that one of these events began; they
            // are asked for again, once all of that is known.
            change = Lines::Came(lines.len());
            self.lines.extend(lines);
        }
        for event in events {
            match &event.kind {
                EventKind::Generation { under_protected, .. } => {
                    self.protection.begin(under_protected, event.unix_ms);
                }
                EventKind::Rollback { to, .. } => {
                    let kept = self.lines.partition_point(|line| line.step <= *to);
                    self.undone.extend(self.lines.drain(kept..));
                    change = Lines::TakenBack;
                }
                _ => {}
            }
            self.events.push(event);
        }
        for view in &workers {
            self.devices.entry(view.worker).or_insert_with(|| view.device.clone());
        }
        (self.workers, self.divergence, self.unreachable) = (workers, divergence, unreachable);
        self.owners_awaited = owners_awaited;
        (self.model_awaited, self.unable) = (model_awaited, unable);
        self.waiting = waiting.or_else(|| self.deserted(min_workers));
        change
    }

    /// A run under way of which no worker lives: the coordinator may still hope for one.
    fn deserted(&self, wanted: u32) -> Option<Waiting> {
        if self.registered().is_some() || self.workers.iter().any(lives) {
            return None;
        }
        let since_unix_ms = self.events.last()?.unix_ms;
        Some(Waiting { members: 0, wanted, since_unix_ms })
    }
}

/// Whether the coordinator counts on a worker.
fn lives(view: &WorkerView) -> bool {
    !matches!(view.state, WorkerState::Lost | WorkerState::Left)
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::outcome::Outcome;
    use everstep_transport::protocol::{Cause, Generation};

    use super::*;

    fn update(steps: std::ops::Range<u64>, kinds: Vec<EventKind>) -> Update {
        let line = |step| MetricsLine { step: Step(step), ..MetricsLine::default() };
        let event = |(number, kind)| Event { number, unix_ms: 10 * number, kind };
        Update {
            run: None,
            step: Step(0),
            event: 0,
            lines: steps.map(line).collect(),
            events: (1..).zip(kinds).map(event).collect(),
            workers: Vec::new(),
            forgotten: Vec::new(),
            idle: Vec::new(),
            divergence: None,
            waiting: None,
            owners_awaited: None,
            model_awaited: None,
            unable: Vec::new(),
            unreachable: Vec::new(),
            outcome: Outcome::Running,
        }
    }

    fn generation(under_protected: Vec<(everstep_transport::protocol::Shard, u32)>) -> EventKind {
        EventKind::Generation {
            generation: Generation(1),
            cause: Cause::Start,
            workers: vec![WorkerId(4)],
            at_step: Step(0),
            redone: false,
            waiting: false,
            under_protected,
        }
    }

    fn steps(lines: &[MetricsLine]) -> Vec<u64> {
        lines.iter().map(|line| line.step.0).collect()
    }

    #[test]
    fn a_rollback_takes_lines_back_and_those_that_come_with_it_are_asked_for_again() {
        let mut progress = Progress::default();
        assert_eq!(progress.take(update(1..4, vec![generation(vec![])]), 1), Lines::Came(0));
        assert_eq!(progress.take(update(1..6, vec![]), 1), Lines::Came(5));
        let reason = "all owners of shard 0 are gone".to_string();
        let rollback = EventKind::Rollback { from: Step(5), to: Step(2), reason };
        assert_eq!(progress.take(update(6..10, vec![rollback]), 1), Lines::TakenBack);
        assert_eq!((steps(&progress.lines), steps(&progress.undone)), (vec![1, 2], vec![3, 4, 5]));
        assert_eq!(progress.take(update(3..5, vec![]), 1), Lines::Came(2));
        assert_eq!(progress.step(), Step(4));
    }

    #[test]
    fn a_run_under_way_without_workers_waits_for_as_many_as_it_needs() {
        let mut progress = Progress::default();
        progress.take(update(1..1, vec![]), 2);
        assert_eq!((progress.waiting, progress.registered()), (None, Some(0)), "not begun");
        progress.take(update(1..1, vec![generation(vec![])]), 2);
        let waiting = Waiting { members: 0, wanted: 2, since_unix_ms: 10 };
        assert_eq!((progress.waiting, progress.registered()), (Some(waiting), None));
        assert_eq!(progress.members(), [WorkerId(4)]);
    }
}

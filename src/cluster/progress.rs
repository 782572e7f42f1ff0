//! The known state of a run under way: lines, events, workers, from the coordinator's updates.
//!
//! In: updates, in order. Out: one history. A rollback takes lines back. They are kept apart, since
//! the run spent time on them. This module writes no files.

use std::collections::{BTreeMap, BTreeSet};

use everstep_transport::protocol::outcome::{
    Event, EventKind, OwnersAwaited, RunPause, Update, Waiting, WorkerResult, WorkerState,
    WorkerView,
};
use everstep_transport::protocol::{
    Device, MetricsLine, ModelAwaited, ModelPlace, NodeName, Step, WorkerId,
};

use super::Protection;

/// The known state of a run under way.
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
    /// The device of each worker that the coordinators have ever told of.
    pub devices: BTreeMap<WorkerId, Device>,
    /// The user's name for each registered worker.
    pub names: BTreeMap<WorkerId, String>,
    /// Why the bits of this run differ from those of any other run of the same specification. None
    /// if they do not.
    pub divergence: Option<String>,
    /// Set while the run starts no step and waits.
    pub waiting: Option<Waiting>,
    /// Set while the run is paused, or is to pause.
    pub paused: Option<RunPause>,
    /// Set while the run waits for workers that alone hold some parameter shards.
    pub owners_awaited: Option<OwnersAwaited>,
    /// Set while a trained run waits for its model.
    pub model_awaited: Option<ModelAwaited>,
    /// The workers that cannot compute a run that has not begun, each with its reason.
    pub unable: Vec<(NodeName, String)>,
    /// Pairs of members that cannot reach each other and stop the run.
    pub unreachable: Vec<(WorkerId, WorkerId)>,
    /// The parameter shards that lack owners, and those that did.
    pub protection: Protection,
    /// How many workers the launcher started in place of others.
    pub respawned: u32,
    /// How often the launcher started the coordinator again.
    pub coordinator_restarts: u32,
    /// Each worker's report. None until the run is complete.
    pub results: Option<Vec<WorkerResult>>,
    /// Whether the launcher was told to end, and lets all workers leave first.
    pub is_leaving: bool,
    /// The command with which another worker joins.
    pub join: String,
    /// The address of the first coordinator's HTTP API, if it has one.
    pub api: Option<String>,
}

/// The effect of an update on the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lines {
    /// This many new lines at the end.
    Came(usize),
    /// The update took lines back. All lines must be written again.
    TakenBack,
}

impl Progress {
    /// How many workers have registered for a run that has not begun. None once it has.
    pub fn registered(&self) -> Option<usize> {
        let begins = |event: &Event| matches!(event.kind, EventKind::Generation { .. });
        let there = self.workers.iter().filter(|view| lives(view)).count();
        (!self.events.iter().any(begins)).then_some(there)
    }

    /// The members of the current generation, in rank order. Empty before the first.
    pub fn members(&self) -> &[WorkerId] {
        let members = self.events.iter().rev().find_map(|event| match &event.kind {
            EventKind::Generation { workers, .. } => Some(workers.as_slice()),
            _ => None,
        });
        members.unwrap_or_default()
    }

    /// The user's name for a worker: the label of its process if this launcher started it, else its
    /// number.
    pub fn called(&self, worker: WorkerId) -> String {
        self.names.get(&worker).cloned().unwrap_or_else(|| format!("the worker with id {worker}"))
    }

    /// The last settled step.
    pub fn step(&self) -> Step {
        self.lines.last().map_or(Step(0), |line| line.step)
    }

    /// The step of the newest checkpoint that can be restored.
    pub fn checkpoint(&self) -> Option<Step> {
        let mut known = BTreeSet::new();
        for event in &self.events {
            match &event.kind {
                EventKind::Checkpoint { step, .. } | EventKind::Continued { step } => {
                    known.insert(*step);
                }
                EventKind::CheckpointDamaged { step, .. } => {
                    known.remove(step);
                }
                EventKind::Rollback { to, .. } => known.retain(|step| step <= to),
                _ => {}
            }
        }
        known.last().copied()
    }

    /// The place where the model of a complete run is durable.
    pub fn model(&self) -> Option<&ModelPlace> {
        let model = self.events.iter().rev().find_map(|event| match &event.kind {
            EventKind::Complete { model, .. } => Some(model.as_ref()),
            _ => None,
        });
        model.flatten()
    }

    /// Takes an update of a run that needs `min_workers`.
    pub(super) fn take(&mut self, update: Update, min_workers: u32) -> Lines {
        let Update { lines, events, workers, divergence, .. } = update;
        let Update { waiting, owners_awaited, model_awaited, unable, unreachable, .. } = update;
        self.paused = update.paused;
        let mut change = Lines::Came(0);
        if events.is_empty() {
            // Lines that come with events may belong to a history that one of these events began.
            // The launcher asks for them again once it knows all events.
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

    /// A run under way without a living worker. The coordinator may still hope for one.
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
    use everstep_transport::protocol::reason::RollbackReason;

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
            paused: None,
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
        let reason = RollbackReason::Asked;
        let rollback = EventKind::Rollback { from: Step(5), to: Step(2), reason };
        assert_eq!(progress.take(update(6..10, vec![rollback]), 1), Lines::TakenBack);
        assert_eq!((steps(&progress.lines), steps(&progress.undone)), (vec![1, 2], vec![3, 4, 5]));
        assert_eq!(progress.take(update(3..5, vec![]), 1), Lines::Came(2));
        assert_eq!(progress.step(), Step(4));
    }

    #[test]
    fn a_checkpoint_counts_until_it_is_damaged_or_a_rollback_passes_it() {
        let mut progress = Progress::default();
        let mut newest = |kind| {
            progress.events.push(Event { number: 1, unix_ms: 0, kind });
            progress.checkpoint().map(|step| step.0)
        };
        let saved = |step| EventKind::Checkpoint {
            step: Step(step),
            bytes: 1,
            seconds: 0.1,
            state_hash: "ab".into(),
        };
        let back = |to| {
            let reason = RollbackReason::Asked;
            EventKind::Rollback { from: Step(17), to: Step(to), reason }
        };
        assert_eq!(newest(saved(5)), Some(5));
        assert_eq!(newest(saved(10)), Some(10));
        assert_eq!(newest(saved(15)), Some(15));
        assert_eq!(newest(back(10)), Some(10));
        let damage =
            EventKind::CheckpointDamaged { step: Step(10), reason: String::new(), is_last: false };
        assert_eq!(newest(damage), Some(5));
        assert_eq!(newest(back(0)), None);
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

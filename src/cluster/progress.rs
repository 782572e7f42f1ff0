//! The known state of a run under way: lines, events, workers, from the coordinator's updates.
//!
//! In: updates, in order. Out: one history. A rollback takes lines back. The newest lines and
//! events stay in memory, and sums over all of them. The coordinators have the others, and tell
//! them again where a file of the run has lost them. This module writes no files.

use std::collections::BTreeMap;

use everstep_transport::protocol::outcome::{
    Event, EventKind, RunPause, Update, WaitNotice, Waiting, WorkerResult, WorkerState, WorkerView,
};
use everstep_transport::protocol::{
    Device, MetricsLine, ModelAwaited, ModelPlace, NodeName, Step, WorkerId,
};

use super::event_sums::EventSums;
use super::line_sums::LineSums;
use super::{GenerationReport, Protection, Recent};

/// The known state of a run under way.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// The newest lines of settled steps, in order: thousands.
    pub lines: Recent<MetricsLine>,
    /// Lines that rollbacks took back, in the order of their commits, if all history is kept.
    pub undone: Vec<MetricsLine>,
    /// The newest events, in order: thousands.
    pub events: Recent<Event>,
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
    pub owners_awaited: Option<WaitNotice>,
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
    /// Whether all lines and events stay in memory.
    pub(crate) keeps_history: bool,
    pub(crate) line_sums: LineSums,
    pub(crate) event_sums: EventSums,
}

/// The effect of an update on the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lines {
    /// This many new lines at the end.
    Came(usize),
    /// The update took lines back.
    TakenBack,
}

impl Progress {
    /// How many workers have registered for a run that has not begun. None once it has.
    pub fn registered(&self) -> Option<usize> {
        let there = self.workers.iter().filter(|view| lives(view)).count();
        self.event_sums.members.is_none().then_some(there)
    }

    /// The members of the current generation, in rank order. Empty before the first.
    pub fn members(&self) -> &[WorkerId] {
        self.event_sums.members.as_deref().unwrap_or_default()
    }

    /// All generations, including the first.
    pub fn generations(&self) -> &[GenerationReport] {
        self.line_sums.generations()
    }

    /// The user's name for a worker: the label of its process if this launcher started it, else its
    /// number.
    pub fn called(&self, worker: WorkerId) -> String {
        self.names.get(&worker).cloned().unwrap_or_else(|| format!("the worker with id {worker}"))
    }

    /// The last settled step.
    pub fn step(&self) -> Step {
        Step(self.lines.newest())
    }

    /// The step of the newest checkpoint that can be restored.
    pub fn checkpoint(&self) -> Option<Step> {
        self.event_sums.checkpoint()
    }

    /// The place where the model of a complete run is durable.
    pub fn model(&self) -> Option<&ModelPlace> {
        self.event_sums.model.as_ref()
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
            lines.into_iter().for_each(|line| self.settle(line));
        }
        for event in events {
            if self.hear(event) {
                change = Lines::TakenBack;
            }
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

    /// Takes the line of the next settled step.
    pub(super) fn settle(&mut self, line: MetricsLine) {
        self.line_sums.line(&line);
        self.lines.push(line);
    }

    /// Takes the next event. Returns whether it took lines back.
    pub(crate) fn hear(&mut self, event: Event) -> bool {
        let is_new = self.event_sums.event(&event);
        let mut takes_back = false;
        if is_new {
            self.line_sums.event(&event.kind);
            match &event.kind {
                EventKind::Generation { under_protected, .. } => {
                    self.protection.begin(under_protected, event.unix_ms);
                }
                EventKind::Rollback { to, .. } => {
                    self.take_back(*to);
                    takes_back = true;
                }
                _ => {}
            }
        }
        self.events.push(event);
        takes_back
    }

    /// The steps after this one are undone.
    fn take_back(&mut self, to: Step) {
        let undone = self.lines.cut(to.0);
        if self.keeps_history {
            self.undone.extend(undone);
        }
        let summed = self.line_sums.back_to(to.0);
        match self.lines.after(summed).map(<[_]>::to_vec) {
            Some(again) => again.iter().for_each(|line| self.line_sums.line(line)),
            None => self.lines.rewind(summed),
        }
    }

    /// The coordinators have only lines that come after those so far, which a store had.
    pub(super) fn begin_here(&mut self) {
        self.line_sums.begin_here(self.lines.newest());
    }

    /// Forgets the lines after this step, or after an earlier one, which it returns. The
    /// coordinators tell them again. They do not have lines that came from a store.
    pub(super) fn rewind_lines(&mut self, step: u64) -> u64 {
        let from = self.line_sums.back_to(step.max(self.line_sums.base()));
        self.lines.rewind(from);
        from
    }

    /// Drops the oldest lines and events from memory, if there are many.
    pub(super) fn trim(&mut self) {
        if !self.keeps_history {
            self.lines.trim();
            self.events.trim();
        }
    }

    /// A run under way without a living worker. The coordinator may still hope for one.
    fn deserted(&self, wanted: u32) -> Option<Waiting> {
        if self.registered().is_some() || self.workers.iter().any(lives) {
            return None;
        }
        Some(Waiting { members: 0, wanted, since_unix_ms: self.event_sums.newest_unix_ms })
    }
}

/// Whether the coordinator counts on a worker.
fn lives(view: &WorkerView) -> bool {
    !matches!(view.state, WorkerState::Lost | WorkerState::Left)
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::{Cause, Generation};

    use super::*;
    use everstep_transport::protocol::reason::RollbackReason;

    fn update(steps: std::ops::Range<u64>, kinds: Vec<EventKind>) -> Update {
        update_after(0, steps, kinds)
    }

    /// An update with events after the one of this number.
    fn update_after(event: u64, steps: std::ops::Range<u64>, kinds: Vec<EventKind>) -> Update {
        let numbers = event + 1..;
        let line = |step| MetricsLine { step: Step(step), ..MetricsLine::default() };
        let numbered = |(number, kind)| Event { number, unix_ms: 10 * number, kind };
        Update {
            event,
            lines: steps.map(line).collect(),
            events: numbers.zip(kinds).map(numbered).collect(),
            ..Update::default()
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
        let mut progress = Progress { keeps_history: true, ..Progress::default() };
        assert_eq!(progress.take(update(1..4, vec![generation(vec![])]), 1), Lines::Came(0));
        assert_eq!(progress.take(update(1..6, vec![]), 1), Lines::Came(5));
        let reason = RollbackReason::Asked;
        let rollback = EventKind::Rollback { from: Step(5), to: Step(2), reason };
        assert_eq!(progress.take(update_after(1, 6..10, vec![rollback]), 1), Lines::TakenBack);
        assert_eq!((steps(&progress.lines), steps(&progress.undone)), (vec![1, 2], vec![3, 4, 5]));
        assert_eq!(progress.take(update(3..5, vec![]), 1), Lines::Came(2));
        assert_eq!(progress.step(), Step(4));
    }

    #[test]
    fn a_checkpoint_counts_until_it_is_damaged_or_a_rollback_passes_it() {
        let mut progress = Progress::default();
        let mut number = 0;
        let mut newest = |kind| {
            number += 1;
            progress.hear(Event { number, unix_ms: 0, kind });
            progress.checkpoint().map(|step| step.0)
        };
        let saved = |step| EventKind::Checkpoint {
            step: Step(step),
            bytes: 1,
            seconds: 0.1,
            state_hash: [8; 32],
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
    fn a_rollback_past_the_lines_in_memory_has_those_before_it_asked_for_again() {
        let mut progress = Progress::default();
        progress.take(update(1..1, vec![generation(vec![])]), 1);
        for page in 0..40 {
            progress.take(update(1_000 * page + 1..1_000 * page + 1_001, vec![]), 1);
            progress.trim();
        }
        let reason = RollbackReason::Asked;
        let rollback = EventKind::Rollback { from: Step(40_000), to: Step(9_999), reason };
        progress.take(update_after(1, 1..1, vec![rollback]), 1);
        let from = progress.step().0;
        assert!(from <= 9_999 && from > 9_900, "{from}");
        assert_eq!(progress.line_sums.settled().steps, from);
        progress.take(update(from + 1..10_000, vec![]), 1);
        assert_eq!(progress.line_sums.settled().steps, 9_999);
        assert_eq!(progress.rewind_lines(0), 0, "a file has lost them all");
        assert_eq!((progress.step(), progress.lines.is_whole()), (Step(0), true));
    }

    /// Bytes of this process in memory.
    fn resident() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kibibytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok());
        kibibytes.map(|number: u64| number << 10).expect("a number of kB")
    }

    #[test]
    fn ten_million_steps_take_no_more_memory_than_the_first_thousands() {
        let mut progress = Progress::default();
        progress.take(update(1..1, vec![generation(vec![])]), 1);
        let mut page = |number: u64| {
            let first = 1_000 * number + 1;
            progress.take(update(first..first + 1_000, vec![]), 1);
            let saved = EventKind::Continued { step: Step(first) };
            progress.take(update_after(number + 1, 1..1, vec![saved]), 1);
            progress.trim();
        };
        (0..20).for_each(&mut page);
        let before = resident();
        (20..10_000).for_each(&mut page);
        let grown = resident().saturating_sub(before);
        assert!(grown < 16 << 20, "{grown} bytes more");
        assert_eq!(progress.line_sums.settled().steps, 10_000_000);
        assert_eq!(progress.checkpoint(), Some(Step(9_999_001)));
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

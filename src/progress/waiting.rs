//! The reasons why a run waits, in plain sentences.

use std::time::{Duration, Instant};

use everstep_transport::protocol::RunSpec;
use everstep_transport::protocol::outcome::{WorkerState, WorkerView};

use crate::cluster::Progress;

/// Prints the reason now and then.
pub(crate) struct WaitReports {
    start_workers: u32,
    /// Whether this launcher starts all workers that the run needs to begin.
    complete: bool,
    said_at: Instant,
    /// Whether the run has begun, and waits.
    stands: bool,
}

/// How many members that read a checkpoint are shown by name.
const RESTORING_SHOWN: usize = 4;
/// The time between two reports, at least.
const WAITING_LINE_INTERVAL: Duration = Duration::from_secs(3);

impl WaitReports {
    /// Reports on a run of which `workers` workers start here.
    pub(crate) fn new(run: &RunSpec, workers: u32) -> Self {
        let start_workers = run.start_workers;
        let complete = workers >= start_workers;
        Self { start_workers, complete, said_at: Instant::now(), stands: false }
    }

    /// The sentences that are due now. For a run that has not begun: how many workers have
    /// registered, and the first time also how others join. For a run that stands still: at once,
    /// which workers take part and how another one joins.
    pub(crate) fn sentences(&mut self, progress: &Progress) -> Vec<String> {
        let registered = progress.registered();
        let waits = progress.waiting.is_some()
            || progress.paused.is_some()
            || progress.owners_awaited.is_some()
            || progress.model_awaited.is_some();
        let stands = registered.is_none() && waits;
        let is_new = stands && !self.stands;
        self.stands = stands;
        if self.said_at.elapsed() < WAITING_LINE_INTERVAL && !is_new {
            return Vec::new();
        }
        let said = match (registered, progress.waiting) {
            (Some(registered), _) => self.beginning(registered, progress),
            (None, None) if progress.paused.is_some() => paused(progress).into_iter().collect(),
            (None, Some(waiting)) => vec![format!(
                "waiting: {} of at least {} workers take part. Another joins with: {}",
                waiting.members, waiting.wanted, progress.join
            )],
            (None, None) => match (&progress.owners_awaited, &progress.model_awaited) {
                (Some(awaited), _) => vec![format!("waiting: {awaited}")],
                (None, Some(awaited)) => vec![format!("waiting: {awaited}")],
                (None, None) => return Vec::new(),
            },
        };
        self.said_at = Instant::now();
        said
    }

    fn beginning(&mut self, registered: usize, progress: &Progress) -> Vec<String> {
        let wanted = self.start_workers;
        let mut sentences =
            vec![format!("waiting: {registered} of {wanted} workers have registered")];
        if !std::mem::replace(&mut self.complete, true) {
            sentences.push(format!("others join with: {}", progress.join));
        }
        sentences
    }
}

/// How far the members have read the checkpoint with which their generation begins. None if they
/// read none, or have read it.
pub(crate) fn restoring(progress: &Progress) -> Option<String> {
    let is_member = |view: &&WorkerView| view.rank.is_some();
    let trains = |view: &&WorkerView| view.state == WorkerState::Training;
    let waits = |view: &WorkerView| {
        Some(format!("{} waits: {}", progress.called(view.worker), view.waits_for.as_ref()?))
    };
    let waits: Vec<String> =
        progress.workers.iter().filter(is_member).filter(trains).filter_map(waits).collect();
    let others = waits.len().saturating_sub(RESTORING_SHOWN);
    let shown = waits.get(..waits.len() - others).filter(|shown| !shown.is_empty())?.join("; ");
    Some(if others == 0 { shown } else { format!("{shown}; and {others} more") })
}

/// Why the run is paused, and how it goes on. None if it is not.
pub(crate) fn paused(progress: &Progress) -> Option<String> {
    let paused = progress.paused.as_ref()?;
    Some(format!("{paused}. `everstep run resume` lets it go on"))
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::outcome::{self, Event, EventKind, Update};
    use everstep_transport::protocol::{
        Cause, Generation, Message, Rank, Step, WorkerId, exemplars,
    };

    use super::*;

    fn begun(progress: &mut Progress) {
        let kind = EventKind::Generation {
            generation: Generation(1),
            cause: Cause::Start,
            workers: vec![],
            at_step: Step(0),
            redone: false,
            waiting: false,
            under_protected: vec![],
        };
        progress.hear(Event { number: 1, unix_ms: 0, kind });
    }

    #[test]
    fn what_a_run_waits_for_is_said_until_it_begins() {
        let long_ago = Instant::now() - WAITING_LINE_INTERVAL;
        let (start_workers, complete, stands) = (3, false, false);
        let mut waiting = WaitReports { start_workers, complete, said_at: long_ago, stands };
        let mut progress = Progress { join: "join so".into(), ..Progress::default() };
        let sentence = "waiting: 0 of 3 workers have registered";
        assert_eq!(waiting.sentences(&progress), [sentence, "others join with: join so"]);
        assert_eq!(waiting.sentences(&progress), [""; 0], "not all the time");
        waiting.said_at = long_ago;
        assert_eq!(waiting.sentences(&progress), [sentence], "how others join, but once");
        begun(&mut progress);
        waiting.said_at = long_ago;
        assert_eq!(waiting.sentences(&progress), [""; 0]);
    }

    #[test]
    fn members_that_read_a_checkpoint_are_shown_with_how_far_they_are() {
        let mut updates = exemplars::all().into_iter().filter_map(|message| match message {
            Message::Update(Update { workers, .. }) => workers.into_iter().next(),
            _ => None,
        });
        let view = updates.next().expect("an update with a worker");
        let reads = |number: u64| WorkerView {
            worker: WorkerId(number),
            rank: Some(Rank(number as u32)),
            state: WorkerState::Training,
            waits_for: Some(format!("it has read {number}.0 of 9.0 MB of the checkpoint")),
            ..view.clone()
        };
        let mut progress = Progress { workers: vec![reads(1), reads(2)], ..Progress::default() };
        progress.names.extend([1, 2].map(|id| (WorkerId(id), format!("worker {id}"))));
        let read = |number| format!("worker {number} waits: it has read {number}.0 of 9.0 MB of");
        let words = restoring(&progress).expect("they read");
        assert!(words.starts_with(&read(1)) && words.contains(&read(2)), "{words}");
        progress.workers = (1..=6).map(reads).collect();
        assert!(restoring(&progress).expect("they read").ends_with("; and 2 more"));
        progress.workers = vec![WorkerView { rank: None, ..reads(1) }];
        assert_eq!(restoring(&progress), None, "it joins");
        progress.workers = vec![WorkerView { waits_for: None, ..reads(1) }];
        assert_eq!(restoring(&progress), None, "it has read all");
    }

    #[test]
    fn a_run_that_stands_still_says_so_at_once_and_how_another_joins() {
        let (said_at, start_workers) = (Instant::now(), 2);
        let mut waiting = WaitReports { start_workers, complete: true, said_at, stands: false };
        let mut progress = Progress { join: "join so".into(), ..Progress::default() };
        begun(&mut progress);
        assert_eq!(waiting.sentences(&progress), [""; 0]);
        progress.waiting = Some(outcome::Waiting { members: 1, wanted: 2, since_unix_ms: 0 });
        let sentence = "waiting: 1 of at least 2 workers take part. Another joins with: join so";
        assert_eq!(waiting.sentences(&progress), [sentence]);
        assert_eq!(waiting.sentences(&progress), [""; 0], "not all the time");
        waiting.said_at = Instant::now() - WAITING_LINE_INTERVAL;
        assert_eq!(waiting.sentences(&progress), [sentence]);
    }
}

//! What workers say of the run's store while it does not take or give what they want.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use everstep_transport::protocol::WorkerId;
use everstep_transport::time::Time;

use crate::core::Core;
use crate::core::failure_detector::WORKER_SUSPECT_AFTER;
use crate::core::workers::bounded;

/// The run's store does not take or give what a worker wants.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct CheckpointStoreError {
    /// The worker that cannot use the store.
    pub worker: WorkerId,
    /// The worker as people know it.
    #[serde(skip)]
    pub called: String,
    /// What the store answers, in the worker's words.
    pub reason: String,
    /// Since when each heartbeat of the worker says so, milliseconds of Unix time.
    pub since_unix_ms: u64,
    /// Whether the run takes no step, or does not end, before the store answers.
    pub waits: bool,
}

/// The errors of the workers that the store fails.
#[derive(Debug, Default)]
pub(super) struct StoreErrors(BTreeMap<WorkerId, StoreOutage>);

/// A worker has said in each heartbeat that the store fails it.
#[derive(Debug)]
struct StoreOutage {
    since: Time,
    /// Until when: the newest heartbeat.
    until: Time,
    /// What the store answers, in the newest words of the worker.
    words: String,
}

impl StoreErrors {
    /// A worker says how the store does. `None`: well.
    fn take(&mut self, now: Time, worker: WorkerId, error: Option<String>) {
        let Some(words) = error else { return drop(self.0.remove(&worker)) };
        let words = bounded(&words);
        let earlier = self.0.get(&worker);
        // A heartbeat that did not arrive may have said that the store answers again.
        let earlier = earlier.filter(|it| now.since(it.until) < WORKER_SUSPECT_AFTER);
        let since = earlier.map_or(now, |it| it.since);
        self.0.insert(worker, StoreOutage { since, until: now, words });
    }

    /// The oldest error of these workers.
    pub(super) fn oldest(
        &self,
        is_there: impl Fn(WorkerId) -> bool,
    ) -> Option<(WorkerId, Time, &str)> {
        let there = self.0.iter().filter(|(worker, _)| is_there(**worker));
        let oldest = there.min_by_key(|(worker, failing)| (failing.since, **worker));
        oldest.map(|(worker, failing)| (*worker, failing.since, failing.words.as_str()))
    }

    /// The workers that have said so for this long. Silence counts for nothing: a worker that is
    /// not heard may have been told by the store that all is well.
    pub(super) fn lasting(&self, span: Duration) -> BTreeSet<WorkerId> {
        let old = self.0.iter().filter(|(_, it)| it.until.since(it.since) >= span);
        old.map(|(worker, _)| *worker).collect()
    }

    /// The same, of workers that are heard.
    pub(super) fn lasting_until(&self, now: Time, span: Duration) -> BTreeSet<WorkerId> {
        let mut found = self.lasting(span);
        found.retain(|worker| now.since(self.0[worker].until) < WORKER_SUSPECT_AFTER);
        found
    }

    /// Drops what workers said that are gone.
    pub(super) fn keep(&mut self, is_there: impl Fn(WorkerId) -> bool) {
        self.0.retain(|worker, _| is_there(*worker));
    }
}

impl Core {
    /// A worker says whether the store does what it wants.
    pub(in crate::core) fn on_store_status(
        &mut self,
        now: Time,
        worker: WorkerId,
        error: Option<String>,
    ) {
        if self.state.is_present(worker) {
            self.checkpoints.store_errors.take(now, worker, error);
        }
    }

    /// The oldest error of the run's store, while there is one.
    pub(in crate::core) fn store_error(&self) -> Option<CheckpointStoreError> {
        let is_there = |worker| self.state.is_present(worker);
        let found = self.checkpoints.store_errors.oldest(is_there).filter(|_| self.running())?;
        let (worker, since, words) = found;
        let since_unix_ms = self.unix_ms(since);
        let (called, reason) = (self.state.called(worker).to_string(), words.to_string());
        let ends = self.awaits_last_checkpoint() || self.awaits_stored_model();
        let waits = self.restores().is_some() || ends;
        Some(CheckpointStoreError { worker, called, reason, since_unix_ms, waits })
    }
}

//! A store that is tried until it does what a job wants.
//!
//! Input: an attempt, which says what it wants of the store, and the jobs that come meanwhile.
//! Output: the attempt's result, or why the job ends without one. A store that fails is tried
//! again, after pauses that grow, and a report says so once. This module knows no checkpoint.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use everstep_checkpoint::store::probe::probe;
use everstep_checkpoint::store::{self, Environment, Place, Store, StoreError};

use super::TakeReport;
use crate::step::event::{StoreJob, StoreReport};
use crate::store_work::{Attempt, StoreWork};

/// The pause after the first error of the store. Each further pause is twice as long.
const STORE_BACKOFF: Duration = Duration::from_secs(1);
/// The longest pause after an error.
const STORE_BACKOFF_MAX: Duration = Duration::from_secs(30);

/// Why a job ends without a result.
#[derive(Debug)]
pub(super) enum Abandoned {
    /// A later job takes its place. This was the store's last error.
    Replaced(String),
    /// The store must not do it, for this reason.
    Refused(String),
    /// The worker needs no store any more.
    Ended,
}

/// Takes reports to the worker.
pub(super) struct Reports {
    take: TakeReport,
    /// Whether a report has said that the store fails.
    is_failing: bool,
}

impl Reports {
    pub(super) fn new(take: TakeReport) -> Self {
        Self { take, is_failing: false }
    }

    /// Hands a report over. None once the worker needs no store any more.
    pub(super) fn give(&mut self, report: StoreReport) -> Option<()> {
        (self.take)(report).then_some(())
    }

    /// Says whether the store fails, if that is news.
    fn tell(&mut self, error: Option<String>) {
        match (&error, self.is_failing) {
            (Some(reason), false) => {
                tracing::warn!(reason, "the store of checkpoints fails: it is tried again");
            }
            (None, true) => tracing::info!("the store of checkpoints works again"),
            (None, false) => return,
            (Some(_), true) => {}
        }
        self.is_failing = error.is_some();
        (self.take)(StoreReport::Failing(error));
    }
}

/// Jobs that come while the thread does something that gives way to all of them.
pub(super) struct WaitingJobs<'a> {
    jobs: &'a Receiver<StoreJob>,
    passed: &'a mut VecDeque<StoreJob>,
}

impl WaitingJobs<'_> {
    /// Whether a job waits, or no further one will come.
    pub(super) fn are_there(&mut self) -> bool {
        loop {
            match self.jobs.try_recv() {
                Ok(job) => self.passed.push_back(job),
                Err(TryRecvError::Empty) => return !self.passed.is_empty(),
                Err(TryRecvError::Disconnected) => return true,
            }
        }
    }
}

/// The run's store, and the jobs for it.
pub(super) struct PersistentStore {
    /// The store's path or URL.
    path: String,
    jobs: Receiver<StoreJob>,
    /// Jobs that have come while another one was under way, in order.
    passed: VecDeque<StoreJob>,
    /// Opened and probed. None before, and after an error of opening.
    store: Option<Box<dyn Store>>,
}

impl PersistentStore {
    pub(super) fn new(path: &str, jobs: Receiver<StoreJob>) -> Self {
        Self { path: path.into(), jobs, passed: VecDeque::new(), store: None }
    }

    /// Opens the store before the first job, so that a store that cannot be used, or is another
    /// run's, is told of at once. Returns when the store is open, or when there is a job, which
    /// tries on.
    ///
    /// A directory that is not there yet stays so: a part makes it. Where a run goes on, a store
    /// that is not mounted must not look like an empty one.
    pub(super) fn open_early(&mut self, work: &StoreWork, reports: &mut Reports) {
        let mut pause = STORE_BACKOFF;
        while !self.is_missing_directory() {
            let opened = self.open().and_then(|store| work.look(store));
            let Err(error) = opened else { return reports.tell(None) };
            reports.tell(Some(error.to_string()));
            match self.jobs.recv_timeout(pause) {
                Ok(job) => return self.passed.push_back(job),
                Err(RecvTimeoutError::Timeout) => pause = (2 * pause).min(STORE_BACKOFF_MAX),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn is_missing_directory(&self) -> bool {
        let place = self.path.parse();
        matches!(place, Ok(Place::Directory(path)) if !path.try_exists().unwrap_or(true))
    }

    /// Waits for the next job. None once there will be no more.
    pub(super) fn next(&mut self) -> Option<StoreJob> {
        self.passed.pop_front().or_else(|| self.jobs.recv().ok())
    }

    /// Tries a job until the store does it, a job that replaces this one has come, or the worker
    /// ends.
    pub(super) fn persist<T>(
        &mut self,
        reports: &mut Reports,
        job: &mut StoreJob,
        mut attempt: impl FnMut(
            &dyn Store,
            &mut Reports,
            &mut StoreJob,
        ) -> Result<Attempt<T>, StoreError>,
    ) -> Result<T, Abandoned> {
        let mut pause = STORE_BACKOFF;
        loop {
            let tried = self.open().and_then(|store| attempt(store, reports, job));
            let error = match tried {
                Ok(Attempt::Done(done)) => {
                    reports.tell(None);
                    return Ok(done);
                }
                Ok(Attempt::Refused(reason)) => {
                    reports.tell(None);
                    return Err(Abandoned::Refused(reason));
                }
                Ok(Attempt::MayNot(reason)) => {
                    reports.tell(Some(reason.clone()));
                    return Err(Abandoned::Refused(reason));
                }
                Err(error) => error,
            };
            let reason = error.to_string();
            reports.tell(Some(reason.clone()));
            let until = Instant::now() + pause;
            pause = (2 * pause).min(STORE_BACKOFF_MAX);
            loop {
                if self.passed.iter().any(|later| job.is_replaced_by(later)) {
                    return Err(Abandoned::Replaced(reason));
                }
                match self.jobs.recv_timeout(until.saturating_duration_since(Instant::now())) {
                    Ok(job) => self.passed.push_back(job),
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => return Err(Abandoned::Ended),
                }
            }
        }
    }

    /// The store, and the jobs that come while a caller reads it.
    pub(super) fn open_with_jobs(&mut self) -> Result<(&dyn Store, WaitingJobs<'_>), StoreError> {
        self.open()?;
        let Self { jobs, passed, store, .. } = self;
        let store = store.as_deref().expect("it was opened");
        Ok((store, WaitingJobs { jobs, passed }))
    }

    /// The store. Opens it, and asks whether it keeps what checkpoints need.
    fn open(&mut self) -> Result<&dyn Store, StoreError> {
        if self.store.is_none() {
            let place = self.path.parse::<Place>();
            let place = place.map_err(|error| StoreError::refuse(&self.path, error.to_string()))?;
            let store = store::open(&place, &Environment::of_process())?;
            probe(&*store)?;
            self.store = Some(store);
        }
        Ok(self.store.as_deref().expect("it was opened"))
    }
}

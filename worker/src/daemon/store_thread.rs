//! The thread that reads and writes checkpoints.
//!
//! Input: [`StoreJob`]s in order. Output: [`StoreReport`]s. A store that fails is tried again,
//! after pauses that grow, and a report says so once. The thread has the lowest priority of the
//! worker's threads: training never waits for it. What a job does is in [`crate::store_work`].

mod persistent_store;
mod verify;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;

use everstep_transport::protocol::SavedPart;

use self::persistent_store::{Abandoned, PersistentStore, Reports};
use self::verify::CheckpointVerifier;
use crate::device::checkpoint_facts::CheckpointFacts;
use crate::step::event::{StoreJob, StoreReport};
use crate::store_work::{ClusterIdentity, StoreWork};

/// The least that there is: while training keeps all cores busy, saving has the moments in which a
/// device waits for others, and one part in twenty of a core beside it.
const NICE: i32 = 19;

/// Takes reports. Returns false once nothing listens any more.
pub type TakeReport = Box<dyn FnMut(StoreReport) -> bool + Send>;

/// Starts the thread of a worker of this cluster. It ends when the sender is dropped.
pub fn start(
    facts: CheckpointFacts,
    cluster: &ClusterIdentity,
    take: TakeReport,
) -> Sender<StoreJob> {
    let (jobs, received) = channel();
    let builder = thread::Builder::new().name("store".into());
    let work = StoreWork::new(facts, cluster);
    let run = move || {
        let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
        StoreThread::new(work, received, take).run();
    };
    builder.spawn(run).expect("the system gives a process a thread");
    jobs
}

struct StoreThread {
    work: StoreWork,
    store: PersistentStore,
    reports: Reports,
    /// The checkpoint that the thread reads while it has no job.
    verifier: Option<CheckpointVerifier>,
}

impl StoreThread {
    fn new(work: StoreWork, jobs: Receiver<StoreJob>, take: TakeReport) -> Self {
        let store = PersistentStore::new(work.path(), jobs);
        Self { work, store, reports: Reports::new(take), verifier: None }
    }

    fn run(mut self) {
        self.store.open_early(&self.work, &mut self.reports);
        while let Some(job) = self.next() {
            let done = match job {
                StoreJob::Verify { id } => {
                    self.verifier = Some(CheckpointVerifier::new(id));
                    Some(())
                }
                job => self.perform(job),
            };
            if done.is_none() {
                return;
            }
        }
    }

    /// The next job. Until there is one, reads the checkpoint that is to be verified.
    fn next(&mut self) -> Option<StoreJob> {
        let Self { work, store, reports, verifier } = self;
        if let Some(reading) = verifier
            && reading.read_on(work, store, reports)?
        {
            *verifier = None;
        }
        store.next()
    }

    /// Does a job. None once the worker needs no store any more.
    fn perform(&mut self, mut job: StoreJob) -> Option<()> {
        let began = Instant::now();
        let Self { work, store, reports, .. } = self;
        let done = store.persist(reports, &mut job, |store, reports, job| {
            work.attempt(store, job, &mut |report| reports.give(report).is_some())
        });
        let report = match done {
            Ok(report) => report,
            Err(Abandoned::Replaced(reason) | Abandoned::Refused(reason)) => job.given_up(reason),
            Err(Abandoned::Ended) => return None,
        };
        match report {
            Some(StoreReport::Saved(part)) => {
                let part = SavedPart { write_ms: began.elapsed().as_millis() as u64, ..part };
                let SavedPart { commit, bytes, write_ms, .. } = &part;
                tracing::debug!(step = commit.step.0, bytes, write_ms, "part saved");
                reports.give(StoreReport::Saved(part))
            }
            Some(report) => reports.give(report),
            None => Some(()),
        }
    }
}

#[cfg(test)]
mod tests;

//! When the thread reads a checkpoint whole, to see whether it is damaged.
//!
//! An operator waits for the verdict, and no step does. So the thread reads while it has no other
//! job, shard by shard. A store that does not answer is not asked again: the operator hears why.

use std::time::{Duration, Instant};

use everstep_transport::protocol::{CheckpointId, Verification};

use super::persistent_store::{PersistentStore, Reports};
use crate::step::event::StoreReport;
use crate::store_work::{CheckpointReading, StoreWork};

/// The time between two reports of how far a checkpoint is read.
const READING_REPORT_INTERVAL: Duration = Duration::from_millis(500);

/// A checkpoint under way, and when its last report was.
pub(super) struct CheckpointVerifier {
    reading: CheckpointReading,
    reported_at: Instant,
}

impl CheckpointVerifier {
    /// Nothing of the checkpoint is read yet.
    pub(super) fn new(id: CheckpointId) -> Self {
        Self { reading: CheckpointReading::of(id), reported_at: Instant::now() }
    }

    /// Reads on until there is a verdict, which it reports, or until the thread has something else
    /// to do. Returns whether there was a verdict. None once the worker needs no store any more.
    pub(super) fn read_on(
        &mut self,
        work: &StoreWork,
        store: &mut PersistentStore,
        reports: &mut Reports,
    ) -> Option<bool> {
        let Self { reading, reported_at } = self;
        let id = reading.id;
        let verdict = match store.open_with_jobs() {
            Err(error) => Some(Verification::Unread(error.to_string())),
            Ok((store, mut jobs)) => work.verify(store, reading, &mut |bytes, total| {
                if reported_at.elapsed() >= READING_REPORT_INTERVAL {
                    *reported_at = Instant::now();
                    let state = Verification::Reading { bytes, total };
                    // A thread that is to end finds so when it looks for jobs.
                    let _ = reports.give(StoreReport::Verification { id, state });
                }
                !jobs.are_there()
            }),
        };
        let Some(state) = verdict else { return Some(false) };
        reports.give(StoreReport::Verification { id, state })?;
        Some(true)
    }
}

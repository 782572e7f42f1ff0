//! A worker's directory, and the thread that writes the model's file there.

use std::collections::BTreeSet;

use everstep_transport::protocol::{Generation, Shard};
use everstep_transport::time::Time;
use everstep_worker::step::event::{FileJob, FileReport, Input};

use super::World;
use super::device::place_of;
use super::types::Event;
use crate::check::{Observation, Violation};

/// The thread and its file.
#[derive(Debug, Default)]
pub(super) struct SimModelFile {
    /// How many parameter shards the complete file has.
    shards: u32,
    /// The generation of the newest file.
    generation: Generation,
    /// The shards that the open file lacks. None while no file is open.
    missing: Option<BTreeSet<Shard>>,
    /// When the jobs so far are done.
    free_at: Time,
}

impl SimModelFile {
    /// The thread of a device that was built now.
    pub(super) fn new(shards: u32) -> Self {
        Self { shards, ..Self::default() }
    }

    /// Does a job in a directory that is full, or is not.
    fn perform(&mut self, job: FileJob, is_full: bool) -> Option<FileReport> {
        let (is_open, missing) = (self.missing.is_some(), self.missing.take());
        match job {
            FileJob::Close => None,
            FileJob::Open { generation } => {
                self.generation = generation;
                let opened = (0..self.shards).map(Shard).collect();
                self.missing = Some(opened).filter(|_| !is_full);
                Some(if is_full { no_space() } else { FileReport::Opened })
            }
            FileJob::Write { .. } if is_full => is_open.then(no_space),
            FileJob::Write { shard, .. } => {
                let mut missing = missing?;
                missing.remove(&shard);
                let is_complete = missing.is_empty();
                self.missing = Some(missing).filter(|_| !is_complete);
                Some(if is_complete { FileReport::Written } else { FileReport::Taken })
            }
        }
    }
}

fn no_space() -> FileReport {
    FileReport::Unwritten("no space left".into())
}

impl World {
    pub(super) fn give_file(&mut self, place: usize, job: FileJob) {
        let slot = self.workers[place].slot();
        let silent_until = self.faults.directory_silent_until(slot);
        let full_until = self.faults.store_full_until(slot);
        let delay = self.random.delay();
        let worker = &mut self.workers[place];
        let at = self.now.max(worker.model_file.free_at).max(silent_until) + delay;
        worker.model_file.free_at = at;
        if let Some(report) = worker.model_file.perform(job, at < full_until) {
            let generation = worker.model_file.generation;
            let done = Box::new((generation, report));
            self.queue.put(at, Event::ModelFile(place, worker.builds, done));
        }
    }

    /// The thread of a worker's model file reports.
    pub(super) fn on_file_report(
        &mut self,
        place: usize,
        build: u64,
        generation: Generation,
        report: FileReport,
    ) -> Result<(), Violation> {
        if self.workers[place].builds != build || self.workers[place].ended() {
            return Ok(());
        }
        if report == FileReport::Written {
            let place = place_of(self.workers[place].slot());
            self.observe(Observation::Durable(&place))?;
        }
        self.step_worker(place, Input::File(generation, report))
    }
}

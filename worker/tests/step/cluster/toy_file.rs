//! A toy of the thread that writes the model's file: jobs in order, in a directory that may fail.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use everstep_transport::protocol::{Generation, Shard};
use everstep_worker::step::event::{FileJob, FileReport};

#[derive(Debug, Default)]
pub struct ToyFile {
    jobs: VecDeque<FileJob>,
    generation: Generation,
    /// The shards that the open file lacks. None while no file is open.
    missing: Option<BTreeSet<Shard>>,
    /// The bits that were written.
    pub model: BTreeMap<Shard, Vec<u32>>,
    /// How many more times the file cannot be opened.
    pub full: u32,
    /// How many more writes fail.
    pub torn: u32,
    /// The directory does not answer.
    pub is_silent: bool,
}

impl ToyFile {
    pub fn give(&mut self, job: FileJob) {
        self.jobs.push_back(job);
    }

    /// The newest job that waits.
    pub fn newest_job(&self) -> Option<&FileJob> {
        self.jobs.back()
    }

    /// Does a job, if the directory answers.
    pub fn work(&mut self) -> Option<(Generation, FileReport)> {
        let job = self.jobs.pop_front_if(|_| !self.is_silent)?;
        let report = match job {
            FileJob::Open { generation } => {
                self.generation = generation;
                self.open()
            }
            FileJob::Write { shard, values } => self.write(shard, &values)?,
            FileJob::Close => {
                self.missing = None;
                return None;
            }
        };
        Some((self.generation, report))
    }

    fn open(&mut self) -> FileReport {
        if self.full > 0 {
            self.full -= 1;
            return FileReport::Unwritten("no space left".into());
        }
        self.missing = Some((0..3).map(Shard).collect());
        FileReport::Opened
    }

    fn write(&mut self, shard: Shard, values: &[f32]) -> Option<FileReport> {
        let mut missing = self.missing.take()?;
        if self.torn > 0 {
            self.torn -= 1;
            return Some(FileReport::Unwritten("input/output error".into()));
        }
        missing.remove(&shard);
        self.model.insert(shard, values.iter().map(|value| value.to_bits()).collect());
        let is_complete = missing.is_empty();
        self.missing = Some(missing).filter(|_| !is_complete);
        Some(if is_complete { FileReport::Written } else { FileReport::Taken })
    }
}

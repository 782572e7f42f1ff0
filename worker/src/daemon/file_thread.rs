//! The thread that writes the model's file.
//!
//! Input: [`FileJob`]s in order. Output: [`FileReport`]s, each with the generation of its file. A
//! directory that does not answer stops this thread and nothing else: the device still hands out
//! its weights to another worker that writes. When it answers again, the thread omits what a later
//! job has made void.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;

use everstep_kernels::reduce;
use everstep_transport::protocol::{Generation, Shard};

use crate::device::model_file::ModelFile;
use crate::device::model_path::remove_if_passing;
use crate::step::event::{FileJob, FileReport};

/// The thread gives way to the network thread, as the device does.
const NICE: i32 = 5;

/// Starts the thread. It ends with the job under way when the sender is dropped. `file` is None if
/// this worker has neither a directory nor a store. `take` gets the reports.
pub fn start(
    file: Option<ModelFile>,
    take: impl Fn(Generation, FileReport) + Send + 'static,
) -> Sender<FileJob> {
    let (jobs, received) = channel();
    let run = move || {
        let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
        run(file, JobQueue { received, waiting: VecDeque::new() }, take);
    };
    let builder = thread::Builder::new().name("model-file".into());
    builder.spawn(run).expect("the system gives a process a thread");
    jobs
}

/// The jobs that have come.
struct JobQueue {
    received: Receiver<FileJob>,
    waiting: VecDeque<FileJob>,
}

impl JobQueue {
    /// The next job that is not void. None if there is none, and there will be no more.
    fn next(&mut self) -> Option<FileJob> {
        if self.waiting.is_empty() {
            self.waiting.push_back(self.received.recv().ok()?);
        }
        let is_over = loop {
            match self.received.try_recv() {
                Ok(job) => self.waiting.push_back(job),
                Err(error) => break error == TryRecvError::Disconnected,
            }
        };
        let closes = |job: &FileJob| matches!(job, FileJob::Close);
        if let Some(at) = self.waiting.iter().rposition(closes) {
            self.waiting.drain(..at);
        }
        self.waiting.pop_front().filter(|_| !is_over)
    }
}

fn run(mut file: Option<ModelFile>, mut jobs: JobQueue, take: impl Fn(Generation, FileReport)) {
    let mut of = Generation::default();
    while let Some(job) = jobs.next() {
        let report = match job {
            FileJob::Open { generation } => {
                of = generation;
                Some(open(file.as_mut()))
            }
            FileJob::Write { shard, values } => {
                file.as_mut().and_then(|file| write(file, shard, &values))
            }
            FileJob::Close => {
                file.iter_mut().for_each(ModelFile::close);
                None
            }
        };
        if let Some(report) = report {
            take(of, report);
        }
    }
    if let Some(mut file) = file {
        file.close();
        remove_if_passing(file.path());
    }
}

fn open(file: Option<&mut ModelFile>) -> FileReport {
    let Some(file) = file else {
        return FileReport::Unwritten("this worker has no directory".into());
    };
    match file.open() {
        Ok(()) => FileReport::Opened,
        Err(error) => FileReport::Unwritten(error.to_string()),
    }
}

/// None if the file is not open.
fn write(file: &mut ModelFile, shard: Shard, values: &[f32]) -> Option<FileReport> {
    if !file.is_open() {
        return None;
    }
    let range = reduce::shard_range(file.parameters(), shard.0 as usize);
    Some(match file.write(range, values) {
        Ok(false) => FileReport::Taken,
        Ok(true) => FileReport::Written,
        Err(error) => FileReport::Unwritten(error.to_string()),
    })
}

#[cfg(test)]
mod tests;

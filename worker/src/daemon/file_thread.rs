//! The thread that writes the model's file.
//!
//! Input: [`FileJob`]s in order. Output: [`FileReport`]s, each with the generation of its file. A
//! directory that does not answer stops this thread and nothing else: the device still hands out
//! its weights to another worker that writes.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use everstep_kernels::reduce;
use everstep_transport::protocol::{Generation, Shard};

use crate::device::model_file::ModelFile;
use crate::step::event::{FileJob, FileReport};

/// The thread gives way to the network thread, as the device does.
const NICE: i32 = 5;

/// Starts the thread. It ends when the sender is dropped. `file` is None if this worker has neither
/// a directory nor a store. `take` gets the reports.
pub fn start(
    file: Option<ModelFile>,
    take: impl Fn(Generation, FileReport) + Send + 'static,
) -> Sender<FileJob> {
    let (jobs, received) = channel();
    let run = move || {
        let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
        run(file, &received, take);
    };
    let builder = thread::Builder::new().name("model-file".into());
    builder.spawn(run).expect("the system gives a process a thread");
    jobs
}

fn run(
    mut file: Option<ModelFile>,
    jobs: &Receiver<FileJob>,
    take: impl Fn(Generation, FileReport),
) {
    let mut of = Generation::default();
    for job in jobs {
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
    file.iter_mut().for_each(ModelFile::close);
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

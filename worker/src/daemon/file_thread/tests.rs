//! The thread with real files.

use std::fs::File;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use everstep_kernels::buffer::{Buffer, Shared};
use everstep_kernels::layout::{Init, Layout};
use everstep_transport::protocol::exemplars;
use rustix::fs::{CWD, mkfifoat};

use super::*;

/// Enough for several shards.
const PARAMETERS: usize = 100_000;

/// The thread of a file in a directory, and its reports.
struct Thread {
    jobs: Sender<FileJob>,
    reports: mpsc::Receiver<(Generation, FileReport)>,
    /// The weights of each shard.
    values: Vec<Shared>,
}

impl Thread {
    fn of(directory: &Path) -> Self {
        let mut layout = Layout::new();
        layout.push("weight", &[PARAMETERS], Init::Constant(0.0));
        let path = directory.join("model.safetensors");
        let file = ModelFile::new(&path, 1, &layout, &exemplars::run().model, "aa");
        let (taken, reports) = mpsc::channel();
        let take = move |generation, report| {
            let _ = taken.send((generation, report)); // the test may be over
        };
        let of_shard = |shard| {
            let length = reduce::shard_range(layout.count(), shard).len();
            Shared::new(Buffer::detached(vec![shard as f32; length]))
        };
        let values = (0..reduce::shard_count(layout.count())).map(of_shard).collect();
        Self { jobs: start(Some(file), take), reports, values }
    }

    fn give(&self, job: FileJob) {
        self.jobs.send(job).expect("it listens");
    }

    fn open(&self, generation: u64) {
        self.give(FileJob::Open { generation: Generation(generation) });
    }

    fn write(&self, shards: std::ops::Range<usize>) {
        for shard in shards {
            let values = Shared::clone(&self.values[shard]);
            self.give(FileJob::Write { shard: Shard(shard as u32), values });
        }
    }

    /// The next report, with the generation of its file.
    fn told(&self) -> (u64, FileReport) {
        let (generation, report) =
            self.reports.recv_timeout(Duration::from_secs(60)).expect("a report");
        (generation.0, report)
    }

    /// The reports on so many shards, of which the last one completes the file.
    fn completes(&self, generation: u64, shards: usize) {
        for _ in 1..shards {
            assert_eq!(self.told(), (generation, FileReport::Taken));
        }
        assert_eq!(self.told(), (generation, FileReport::Written));
    }
}

#[test]
fn a_file_is_begun_anew_in_each_generation() {
    let directory = tempfile::tempdir().expect("a directory");
    let thread = Thread::of(directory.path());
    let all = thread.values.len();
    assert!(all > 1, "some shards come before the last one");
    thread.open(1);
    assert_eq!(thread.told(), (1, FileReport::Opened));
    thread.write(0..1);
    assert_eq!(thread.told(), (1, FileReport::Taken));
    thread.give(FileJob::Close);
    thread.write(1..all);
    thread.open(2);
    assert_eq!(thread.told(), (2, FileReport::Opened), "a file that is not open takes nothing");
    thread.write(0..all);
    thread.completes(2, all);
    let files = std::fs::read_dir(directory.path()).expect("read").count();
    assert_eq!(files, 1, "the model and nothing else");
}

#[test]
fn a_directory_that_is_gone_is_told_of_and_the_file_is_begun_anew() {
    let directory = tempfile::tempdir().expect("a directory");
    let runs = directory.path().join("runs");
    let thread = Thread::of(&runs);
    let all = thread.values.len();
    let is_unwritten = |told| matches!(told, (_, FileReport::Unwritten(_)));
    thread.open(1);
    assert!(is_unwritten(thread.told()));
    thread.write(0..all);
    std::fs::create_dir(&runs).expect("made");
    thread.open(1);
    assert_eq!(thread.told(), (1, FileReport::Opened), "what came meanwhile is discarded");
    std::fs::remove_dir_all(&runs).expect("gone");
    thread.write(0..all);
    let mut told =
        std::iter::repeat_with(|| thread.told()).skip_while(|(_, it)| *it == FileReport::Taken);
    assert!(told.next().is_some_and(is_unwritten), "no rename succeeds");
    std::fs::create_dir(&runs).expect("back");
    thread.open(1);
    assert_eq!(thread.told(), (1, FileReport::Opened));
    thread.write(0..all);
    thread.completes(1, all);
}

/// Opening a pipe does not return until another process opens its other end, as an operation on a
/// file server that is away.
#[test]
fn a_directory_that_does_not_answer_is_waited_out() {
    let directory = tempfile::tempdir().expect("a directory");
    let thread = Thread::of(directory.path());
    let path = directory.path().join("model.safetensors");
    mkfifoat(CWD, &path, 0o600.into()).expect("a pipe");
    thread.open(1);
    let pipe = File::options().write(true).open(&path).expect("the thread has opened it");
    thread.write(0..1);
    thread.open(1);
    thread.give(FileJob::Close);
    thread.open(2);
    assert!(thread.reports.recv_timeout(Duration::from_millis(300)).is_err());
    std::fs::remove_file(&path).expect("gone");
    drop(pipe);
    let (generation, report) = thread.told();
    assert!(matches!(report, FileReport::Unwritten(_)), "no model was there: {report:?}");
    let next = thread.told();
    assert_eq!((generation, next), (1, (2, FileReport::Opened)), "void jobs are omitted");
    thread.write(0..thread.values.len());
    thread.completes(2, thread.values.len());
}

#[test]
fn a_worker_without_a_directory_says_so() {
    let (taken, reports) = mpsc::channel();
    let jobs = start(None, move |_, report| taken.send(report).expect("it listens"));
    jobs.send(FileJob::Open { generation: Generation(1) }).expect("it listens");
    let told = reports.recv_timeout(Duration::from_secs(60)).expect("a report");
    assert_eq!(told, FileReport::Unwritten("this worker has no directory".into()));
}

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use everstep_kernels::layout::{Init, Layout};
use everstep_kernels::optimizer::ShardState;
use everstep_kernels::reduce;
use everstep_transport::protocol::message::Fingerprint;
use everstep_transport::protocol::{
    CheckpointSpec, LossScale, MetricsLine, OnFailure, Step, Term, WorkerId, exemplars,
};

use super::*;
use crate::registry::Registry;
use crate::step::event::ShardToSave;

/// Longer than anything takes here, however busy the machine is.
const STORE_TEST_TIMEOUT: Duration = Duration::from_secs(30);
const PARAMETERS: usize = 4_096;

fn facts(path: &Path) -> CheckpointFacts {
    let mut layout = Layout::new();
    layout.push("weights", &[PARAMETERS], Init::Normal { deviation: 0.1 });
    let mut run = exemplars::run();
    run.checkpoint = Some(CheckpointSpec {
        path: path.display().to_string(),
        every: 5,
        keep: 2,
        keep_every: 0,
        on_failure: OnFailure::Continue,
    });
    let optimizer = Registry::new().build_optimizer(&run).expect("a valid optimizer");
    let (model, data) = ([1; 32], [2; 32]);
    let shards = reduce::shard_count(PARAMETERS) as u32;
    let fingerprint =
        Fingerprint { model, data, parameters: PARAMETERS as u64, shards, samples: 9 };
    CheckpointFacts::of(&run, &fingerprint, &layout, &optimizer).expect("it has checkpoints")
}

fn commit(step: u64, generation: u64) -> Commit {
    Commit {
        generation: Generation(generation),
        step: Step(step),
        norm: 0.5,
        loss: f64::INFINITY,
        decision: Decision::Apply,
        updates: step,
        loss_scale: LossScale::default(),
        hold: false,
        line: MetricsLine::default(),
    }
}

fn state(shard: u32, step: u64) -> ShardState {
    let length = reduce::shard_range(PARAMETERS, shard as usize).len();
    let slot = |of: u64| (0..length).map(|at| (at as u64 * of + step) as f32).collect();
    ShardState { master: slot(1 + u64::from(shard)), moments: vec![slot(7), slot(9)] }
}

fn part(worker: u64, commit: &Commit, shards: std::ops::Range<u32>) -> PartToSave {
    let to_save = |shard| {
        let state = Arc::new(state(shard, commit.step.0));
        ShardToSave { shard: Shard(shard), digest: state.digest(commit.step.0), state }
    };
    let shards = shards.map(to_save).collect();
    PartToSave { worker: WorkerId(worker), commit: commit.clone(), shards }
}

/// The order to write a manifest, with the line of its step.
fn order(parts: Vec<WorkerPart>, delete: Vec<CheckpointId>) -> StoreJob {
    let CheckpointId { step, generation } = CheckpointId::of(&parts[0].part.commit);
    let line = MetricsLine { step, generation, ..MetricsLine::default() };
    let (term, lines, events) = (Term(1), vec![line], Vec::new());
    let order = ManifestToWrite { term, generation, parts, bitwise: true, delete, lines, events };
    StoreJob::Manifest(Box::new(order))
}

/// A thread, and its reports.
struct TestThread {
    jobs: Sender<StoreJob>,
    reports: Receiver<StoreReport>,
}

impl TestThread {
    fn start(path: &Path) -> Self {
        let (reports, received) = channel();
        let take = Box::new(move |report| reports.send(report).is_ok());
        Self { jobs: super::start(facts(path), take), reports: received }
    }

    fn next(&self) -> StoreReport {
        self.reports.recv_timeout(STORE_TEST_TIMEOUT).expect("a report")
    }

    fn give(&self, job: StoreJob) {
        self.jobs.send(job).expect("the thread listens");
    }

    /// Writes a whole checkpoint by two workers. Returns the answer of the manifest's writer.
    fn checkpoint(&self, commit: &Commit, delete: Vec<CheckpointId>) -> StoreReport {
        let shards = reduce::shard_count(PARAMETERS) as u32;
        let mut parts = Vec::new();
        for (worker, shards) in [(3, 0..1), (4, 1..shards)] {
            self.give(StoreJob::Save(part(worker, commit, shards)));
            let StoreReport::Saved(part) = self.next() else { panic!("it is saved") };
            parts.push(WorkerPart { worker: WorkerId(worker), part });
        }
        self.give(order(parts, delete));
        self.next()
    }

    /// Restores all shards. Returns the first damage, if there is any.
    fn restore(&self, id: CheckpointId) -> Result<Vec<Shard>, String> {
        let all: Vec<Shard> = (0..reduce::shard_count(PARAMETERS) as u32).map(Shard).collect();
        let generation = Generation(8);
        self.give(StoreJob::Restore { generation, id, shards: all.clone() });
        let mut restored = Vec::new();
        while restored.len() < all.len() {
            match self.next() {
                StoreReport::Restored { shard, digest, parts, .. } => {
                    let wanted = state(shard.0, id.step.0);
                    assert_eq!(parts[0][..], wanted.master[..]);
                    assert_eq!(parts[2][..], wanted.moments[1][..]);
                    assert_eq!(digest, wanted.digest(id.step.0));
                    restored.push(shard);
                }
                StoreReport::Damaged { reason, .. } => return Err(reason),
                other => panic!("{other:?}"),
            }
        }
        Ok(restored)
    }
}

fn id(step: u64, generation: u64) -> CheckpointId {
    CheckpointId { step: Step(step), generation: Generation(generation) }
}

#[test]
fn i12_what_was_saved_is_restored_to_the_same_bits() {
    let folder = tempfile::tempdir().expect("a folder");
    let thread = TestThread::start(folder.path());
    let StoreReport::Manifest(written) = thread.checkpoint(&commit(5, 2), Vec::new()) else {
        panic!("the manifest is written")
    };
    assert_eq!((written.id, written.deleted.len()), (id(5, 2), 0));
    assert_eq!(thread.restore(id(5, 2)).map(|shards| shards.len() > 1), Ok(true));
    // The order to write it comes again, to another worker: the state is the same one.
    assert!(matches!(thread.checkpoint(&commit(5, 2), Vec::new()), StoreReport::Manifest(_)));
}

#[test]
fn a_checkpoint_that_is_deleted_leaves_the_files_of_another_generation() {
    let folder = tempfile::tempdir().expect("a folder");
    let thread = TestThread::start(folder.path());
    thread.checkpoint(&commit(5, 2), Vec::new());
    let StoreReport::Manifest(written) = thread.checkpoint(&commit(5, 3), vec![id(5, 2)]) else {
        panic!("the manifest is written")
    };
    assert_eq!((written.id, written.deleted), (id(5, 3), vec![id(5, 2)]));
    let files = std::fs::read_dir(folder.path().join("step-000005")).expect("the folder");
    let mut names: Vec<String> =
        files.map(|file| file.expect("a file").file_name().into_string().expect("text")).collect();
    names.sort();
    assert_eq!(names, ["g0003-w3.safetensors", "g0003-w4.safetensors", "manifest.json"]);
    let gone = thread.restore(id(5, 2)).expect_err("it was deleted");
    assert!(gone.contains("it is of step 5, committed by generation 3"), "{gone}");
    assert!(thread.restore(id(5, 3)).is_ok());
}

#[test]
fn a_manifest_that_was_cut_is_deleted_with_any_generation_and_a_newer_program_s_is_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let thread = TestThread::start(folder.path());
    thread.checkpoint(&commit(5, 2), Vec::new());
    let path = folder.path().join("step-000005/manifest.json");
    let bytes = std::fs::read(&path).expect("a manifest");
    std::fs::write(&path, &bytes[..bytes.len() / 2]).expect("written");
    let StoreReport::Manifest(_) = thread.checkpoint(&commit(5, 3), vec![id(5, 0)]) else {
        panic!("the manifest is written")
    };
    assert!(thread.restore(id(5, 3)).is_ok());
    let manifest = Manifest::parse(&std::fs::read(&path).expect("a manifest")).expect("whole");
    std::fs::write(&path, Manifest { format: 9, ..manifest }.to_bytes()).expect("written");
    let told = thread.checkpoint(&commit(5, 4), vec![id(5, 0)]);
    assert!(matches!(told, StoreReport::Unsaved { .. }), "{told:?}");
}

#[test]
fn damage_is_told_by_file_and_shard() {
    let folder = tempfile::tempdir().expect("a folder");
    let thread = TestThread::start(folder.path());
    thread.checkpoint(&commit(5, 2), Vec::new());
    let path = folder.path().join("step-000005/g0002-w4.safetensors");
    let mut bytes = std::fs::read(&path).expect("a part");
    *bytes.last_mut().expect("bytes") ^= 1;
    std::fs::write(&path, &bytes).expect("written");
    let damage = thread.restore(id(5, 2)).expect_err("a bit flipped");
    assert!(damage.contains("g0002-w4.safetensors: parameter shard 3: its digest is"), "{damage}");
    std::fs::remove_file(folder.path().join("step-000005/manifest.json")).expect("removed");
    let damage = thread.restore(id(5, 2)).expect_err("there is no manifest");
    assert_eq!(damage, "step-000005/manifest.json: it is gone");
}

#[test]
fn a_store_that_fails_is_tried_again_and_gives_way_to_a_later_part() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().join("store");
    std::fs::write(&place, b"a file, and no folder").expect("written");
    let thread = TestThread::start(&place);
    thread.give(StoreJob::Save(part(3, &commit(5, 2), 0..1)));
    let StoreReport::Failing(Some(reason)) = thread.next() else { panic!("it says so") };
    thread.give(StoreJob::Save(part(3, &commit(10, 2), 0..1)));
    loop {
        match thread.next() {
            StoreReport::Failing(Some(_)) => {}
            StoreReport::Unsaved { id: given_up, reason: why } => {
                assert_eq!((given_up, why), (id(5, 2), reason));
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    std::fs::remove_file(&place).expect("removed");
    loop {
        match thread.next() {
            StoreReport::Failing(_) => {}
            StoreReport::Saved(part) => break assert_eq!(part.commit.step, Step(10)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_manifest_that_waits_for_the_store_gives_way_to_a_later_part() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().join("store");
    let thread = TestThread::start(&place);
    let shards = reduce::shard_count(PARAMETERS) as u32;
    thread.give(StoreJob::Save(part(3, &commit(5, 2), 0..shards)));
    let StoreReport::Saved(saved) = thread.next() else { panic!("it is saved") };
    let parts = vec![WorkerPart { worker: WorkerId(3), part: saved }];
    std::fs::rename(&place, folder.path().join("away")).expect("moved");
    std::fs::write(&place, b"a file, and no folder").expect("written");
    thread.give(order(parts, Vec::new()));
    let StoreReport::Failing(Some(_)) = thread.next() else { panic!("it says so") };
    std::fs::remove_file(&place).expect("removed");
    std::fs::rename(folder.path().join("away"), &place).expect("back");
    thread.give(StoreJob::Save(part(3, &commit(10, 2), 0..shards)));
    let StoreReport::Unsaved { id: given_up, .. } = thread.next() else { panic!("it gives way") };
    assert_eq!(given_up, id(5, 2));
    let StoreReport::Failing(None) = thread.next() else { panic!("the store is back") };
    let StoreReport::Saved(part) = thread.next() else { panic!("it is saved") };
    assert_eq!(part.commit.step, Step(10));
}

#[test]
fn a_state_that_changed_in_memory_is_not_saved() {
    let folder = tempfile::tempdir().expect("a folder");
    let thread = TestThread::start(folder.path());
    let mut changed = part(3, &commit(5, 2), 0..1);
    changed.shards[0].digest ^= 1;
    thread.give(StoreJob::Save(changed));
    let StoreReport::Unsaved { reason, .. } = thread.next() else { panic!("it is not saved") };
    assert!(reason.contains("parameter shard 0 changed in memory since step 5"), "{reason}");
    assert!(!folder.path().join("step-000005").exists());
}

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use everstep_checkpoint::manifest::Manifest;
use everstep_checkpoint::store::directory::DirectoryStore;
use everstep_checkpoint::store::durable::Stage;
use everstep_kernels::layout::{Init, Layout};
use everstep_kernels::optimizer::ShardState;
use everstep_kernels::reduce;
use everstep_transport::protocol::message::Fingerprint;
use everstep_transport::protocol::{
    CheckpointId, CheckpointSpec, Commit, Decision, Generation, LossScale, ManifestToWrite,
    MetricsLine, OnFailure, Shard, Step, Term, Verification, WorkerId, WorkerPart, exemplars,
};

use super::*;
use crate::device::model_file::ModelFile;
use crate::registry::Registry;
use crate::step::event::{PartToSave, ShardToSave};
use crate::store_work::Attempt;

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
        gradient_factor: 1.0,
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
    let (worker, generation) = (WorkerId(worker), commit.generation);
    PartToSave { worker, generation, commit: commit.clone(), shards }
}

fn cluster(name: &str) -> ClusterIdentity {
    ClusterIdentity { nonce: name.into(), words: format!("cluster {name}") }
}

/// The order to write a manifest, with the line of its step.
fn order(parts: Vec<WorkerPart>, delete: Vec<CheckpointId>) -> ManifestToWrite {
    let CheckpointId { step, generation } = CheckpointId::of(&parts[0].part.commit);
    let line = MetricsLine { step, generation, ..MetricsLine::default() };
    let (term, sweep, lines, events) = (Term(1), Step(0), vec![line], Vec::new());
    ManifestToWrite { term, generation, parts, bitwise: true, delete, sweep, lines, events }
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
        Self { jobs: super::start(facts(path), &cluster("a"), take), reports: received }
    }

    /// A worker of another cluster, or one that has started again.
    fn of(path: &Path, name: &str) -> Self {
        let (reports, received) = channel();
        let take = Box::new(move |report| reports.send(report).is_ok());
        Self { jobs: super::start(facts(path), &cluster(name), take), reports: received }
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
        self.give(StoreJob::Manifest(Box::new(order(parts, delete))));
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
                StoreReport::Failing(_) => {}
                other => panic!("{other:?}"),
            }
        }
        Ok(restored)
    }
}

impl TestThread {
    /// The verdict on a checkpoint.
    fn verify(&self, id: CheckpointId) -> Verification {
        self.give(StoreJob::Verify { id });
        loop {
            match self.next() {
                StoreReport::Verification { state: Verification::Reading { .. }, .. } => {}
                StoreReport::Verification { id: of, state } if of == id => return state,
                StoreReport::Failing(_) => {}
                other => panic!("{other:?}"),
            }
        }
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

/// All processes were killed between the manifest and the entry that lists it. The run went on from
/// an older checkpoint, and a later generation has trained the step again.
#[test]
fn i12_a_complete_checkpoint_that_no_log_lists_gives_way_to_that_of_a_later_generation() {
    let folder = tempfile::tempdir().expect("a folder");
    let thread = TestThread::start(folder.path());
    thread.checkpoint(&commit(4, 2), Vec::new());
    thread.checkpoint(&commit(5, 2), Vec::new());
    let StoreReport::Manifest(written) = thread.checkpoint(&commit(5, 3), Vec::new()) else {
        panic!("the manifest is written")
    };
    assert_eq!((written.id, written.deleted), (id(5, 3), vec![]));
    let files = std::fs::read_dir(folder.path().join("step-000005")).expect("the folder");
    assert_eq!(files.count(), 3, "the parts of the older one are gone");
    assert!(thread.restore(id(5, 3)).is_ok());
    assert!(thread.restore(id(4, 2)).is_ok(), "another step is another checkpoint");
    // An order of an earlier leader comes late.
    let StoreReport::NoManifest { reason, .. } = thread.checkpoint(&commit(5, 2), Vec::new())
    else {
        panic!("the newer one stays")
    };
    assert_eq!(reason, "another state of step 5 is in the store already");
    assert!(thread.restore(id(5, 3)).is_ok());
}

#[test]
fn a_manifest_of_another_run_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let thread = TestThread::start(folder.path());
    thread.checkpoint(&commit(5, 2), Vec::new());
    let path = folder.path().join("step-000005/manifest.json");
    let there = Manifest::parse(&std::fs::read(&path).expect("a manifest")).expect("whole");
    let foreign = Manifest { run: "other".into(), ..there }.to_bytes();
    std::fs::write(&path, &foreign).expect("written");
    let told = thread.checkpoint(&commit(5, 3), Vec::new());
    assert!(matches!(told, StoreReport::NoManifest { .. }), "{told:?}");
    assert_eq!(std::fs::read(&path).expect("a manifest"), foreign);
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
    assert!(matches!(told, StoreReport::NoManifest { .. }), "{told:?}");
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
fn a_verification_names_damage_and_takes_no_store_that_is_away_for_damage() {
    let folder = tempfile::tempdir().expect("a folder");
    let [place, unmounted] = ["store", "disk"].map(|name| folder.path().join(name));
    let thread = TestThread::start(&place);
    thread.checkpoint(&commit(5, 2), Vec::new());
    assert_eq!(thread.verify(id(5, 2)), Verification::Whole);
    let path = place.join("step-000005/g0002-w4.safetensors");
    let mut bytes = std::fs::read(&path).expect("a part");
    *bytes.last_mut().expect("bytes") ^= 1;
    std::fs::write(&path, &bytes).expect("written");
    let Verification::Damaged(why) = thread.verify(id(5, 2)) else { panic!("a bit flipped") };
    assert!(why.contains("g0002-w4.safetensors: parameter shard 3: its digest is"), "{why}");
    std::fs::rename(&place, &unmounted).expect("moved");
    std::fs::create_dir(&place).expect("an empty folder");
    let Verification::Unread(why) = thread.verify(id(5, 2)) else { panic!("no disk is there") };
    assert!(why.contains("is its disk mounted?"), "{why}");
}

#[test]
fn a_verification_gives_way_to_a_job_and_goes_on_after_it() {
    let folder = tempfile::tempdir().expect("a folder");
    TestThread::start(folder.path()).checkpoint(&commit(5, 2), Vec::new());
    let (jobs, received) = channel();
    let mut store = PersistentStore::new(&folder.path().display().to_string(), received);
    let (told, heard) = channel();
    let mut reports = Reports::new(Box::new(move |report| told.send(report).is_ok()));
    let mut verifier = CheckpointVerifier::new(id(5, 2));
    let work = StoreWork::new(facts(folder.path()), &cluster("one"));
    let mut read_on = |store: &mut PersistentStore| verifier.read_on(&work, store, &mut reports);
    jobs.send(StoreJob::Model { generation: Generation(2) }).expect("it listens");
    assert_eq!(read_on(&mut store), Some(false));
    assert!(heard.try_recv().is_err(), "there is no verdict yet");
    assert!(matches!(store.next(), Some(StoreJob::Model { .. })));
    assert_eq!(read_on(&mut store), Some(true));
    let verdict = heard.try_recv().expect("a report");
    let whole = matches!(verdict, StoreReport::Verification { state: Verification::Whole, .. });
    assert!(whole, "{verdict:?}");
}

/// A disk that is not mounted leaves an empty folder: the checkpoints in it are not damaged.
#[test]
fn a_store_with_nothing_in_it_is_waited_for_and_is_no_damaged_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let [place, unmounted] = ["store", "disk"].map(|name| folder.path().join(name));
    TestThread::start(&place).checkpoint(&commit(5, 2), Vec::new());
    std::fs::rename(&place, &unmounted).expect("moved");
    std::fs::create_dir(&place).expect("an empty folder");
    let thread = TestThread::start(&place);
    let shards = vec![Shard(0)];
    thread.give(StoreJob::Restore { generation: Generation(8), id: id(5, 2), shards });
    let StoreReport::Failing(Some(reason)) = thread.next() else { panic!("it waits") };
    assert!(reason.contains("is its disk mounted?"), "{reason}");
    std::fs::remove_dir_all(&place).expect("removed");
    std::fs::rename(&unmounted, &place).expect("moved back");
    loop {
        match thread.next() {
            StoreReport::Failing(_) => {}
            StoreReport::Restored { shard, .. } => break assert_eq!(shard, Shard(0)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_manifest_of_a_newer_program_is_waited_for_and_is_no_damaged_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let thread = TestThread::start(folder.path());
    thread.checkpoint(&commit(5, 2), Vec::new());
    let path = folder.path().join("step-000005/manifest.json");
    let manifest = Manifest::parse(&std::fs::read(&path).expect("a manifest")).expect("whole");
    std::fs::write(&path, Manifest { format: 9, ..manifest }.to_bytes()).expect("written");
    let shards = vec![Shard(0)];
    thread.give(StoreJob::Restore { generation: Generation(8), id: id(5, 2), shards });
    let StoreReport::Failing(Some(reason)) = thread.next() else { panic!("it waits") };
    assert!(reason.contains("its format is 9"), "{reason}");
}

#[test]
fn a_store_that_cannot_be_used_is_told_of_before_the_first_job() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().join("store");
    std::fs::write(&place, b"a file, and no folder").expect("written");
    let thread = TestThread::start(&place);
    let StoreReport::Failing(Some(_)) = thread.next() else { panic!("it says so") };
    std::fs::remove_file(&place).expect("removed");
    std::fs::create_dir(&place).expect("made");
    loop {
        match thread.next() {
            StoreReport::Failing(Some(_)) => {}
            StoreReport::Failing(None) => break,
            other => panic!("{other:?}"),
        }
    }
    drop(thread);
    let away = folder.path().join("away");
    let (_jobs, received) = channel();
    let mut store = PersistentStore::new(&away.display().to_string(), received);
    let work = StoreWork::new(facts(&away), &cluster("a"));
    store.open_early(&work, &mut Reports::new(Box::new(|report| panic!("{report:?}"))));
    assert!(!away.exists(), "a store that is not mounted does not look like an empty one");
}

#[test]
fn a_store_of_another_run_is_told_of_before_the_first_job() {
    let folder = tempfile::tempdir().expect("a folder");
    let other = CheckpointFacts { run_digest: "another run".into(), ..facts(folder.path()) };
    let store = DirectoryStore::open(folder.path()).expect("a store");
    StoreWork::new(other, &cluster("b")).insist(&store).expect("no run has a claim");
    let StoreReport::Failing(Some(why)) = TestThread::start(folder.path()).next() else {
        panic!("it says so")
    };
    assert!(why.contains("cluster b claims this store for another run"), "{why}");
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
    thread.give(StoreJob::Manifest(Box::new(order(parts, Vec::new()))));
    let StoreReport::Failing(Some(_)) = thread.next() else { panic!("it says so") };
    thread.give(StoreJob::Save(part(3, &commit(10, 2), 0..shards)));
    loop {
        match thread.next() {
            StoreReport::Failing(Some(_)) => {}
            StoreReport::NoManifest { id: given_up, .. } => break assert_eq!(given_up, id(5, 2)),
            other => panic!("{other:?}"),
        }
    }
    // A try between the two calls below would make the folder anew. After this report the thread
    // makes a pause.
    let StoreReport::Failing(Some(_)) = thread.next() else { panic!("the part waits, too") };
    std::fs::remove_file(&place).expect("removed");
    std::fs::rename(folder.path().join("away"), &place).expect("back");
    loop {
        match thread.next() {
            StoreReport::Failing(Some(_)) => {}
            StoreReport::Failing(None) => break,
            other => panic!("{other:?}"),
        }
    }
    let StoreReport::Saved(part) = thread.next() else { panic!("it is saved") };
    assert_eq!(part.commit.step, Step(10));
}

/// A thread whose worker has gathered a model of these weights in this file.
fn with_model(folder: &Path, store: &Path, name: &str, run: &str) -> TestThread {
    let mut layout = Layout::new();
    layout.push("weights", &[3], Init::Constant(0.0));
    let path = folder.join(name);
    let mut file = ModelFile::new(&path, 1, &layout, &exemplars::run().model, run);
    file.open().expect("opened");
    assert!(file.write(0..3, &[1.0, 2.0, 3.0]).expect("written"));
    let (reports, received) = channel();
    let take = Box::new(move |report| reports.send(report).is_ok());
    let facts = CheckpointFacts { model: Some(path), ..facts(store) };
    TestThread { jobs: super::start(facts, &cluster("a"), take), reports: received }
}

const MODEL: StoreJob = StoreJob::Model { generation: Generation(4) };

#[test]
fn i22_the_model_is_copied_into_the_store_byte_for_byte_and_again_by_another_worker() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = folder.path().join("store");
    let stored = store.join("model.safetensors");
    for name in ["one.safetensors", "everstep-passing-2.safetensors"] {
        let thread = with_model(folder.path(), &store, name, "aa");
        let gathered = std::fs::read(folder.path().join(name)).expect("gathered");
        thread.give(MODEL);
        let StoreReport::Stored { generation, place } = thread.next() else { panic!("stored") };
        assert_eq!((generation, &*place.path), (Generation(4), &*stored.display().to_string()));
        assert!(!place.host.is_empty(), "a directory is on a machine");
        assert_eq!(std::fs::read(&stored).expect("there"), gathered);
        thread.give(MODEL);
        assert!(matches!(thread.next(), StoreReport::Stored { .. }), "the core may ask again");
        assert_eq!(std::fs::read(&stored).expect("there"), gathered);
    }
    assert!(folder.path().join("one.safetensors").exists(), "the user sees it");
    assert!(!folder.path().join("everstep-passing-2.safetensors").exists(), "it has passed");
}

#[test]
fn what_is_not_the_runs_model_is_never_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = folder.path().join("store");
    std::fs::create_dir(&store).expect("made");
    let stored = store.join("model.safetensors");
    let thread = with_model(folder.path(), &store, "own.safetensors", "aa");
    with_model(folder.path(), &folder.path().join("other"), "other.safetensors", "bb");
    let other = std::fs::read(folder.path().join("other.safetensors")).expect("gathered");
    for bytes in [other, vec![], vec![255; 64], b"\x02\0\0\0\0\0\0\0{}".to_vec()] {
        std::fs::write(&stored, &bytes).expect("written");
        thread.give(MODEL);
        let StoreReport::Failing(Some(reason)) = thread.next() else { panic!("it says so") };
        assert!(reason.contains("another model is there"), "{reason}");
        assert_eq!(std::fs::read(&stored).expect("there"), bytes);
        std::fs::remove_file(&stored).expect("moved elsewhere");
        let StoreReport::Failing(None) = thread.next() else { panic!("it goes on") };
        assert!(matches!(thread.next(), StoreReport::Stored { .. }));
    }
}

/// A manifest that waits for the store gives way to a later job, but the model comes after it.
#[test]
fn a_manifest_does_not_give_way_to_the_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = folder.path().join("store");
    let thread = with_model(folder.path(), &store, "model.safetensors", "aa");
    let shards = reduce::shard_count(PARAMETERS) as u32;
    thread.give(StoreJob::Save(part(3, &commit(5, 2), 0..shards)));
    let StoreReport::Saved(saved) = thread.next() else { panic!("it is saved") };
    std::fs::rename(&store, folder.path().join("away")).expect("moved");
    std::fs::write(&store, b"a file, and no folder").expect("written");
    let parts = vec![WorkerPart { worker: WorkerId(3), part: saved }];
    thread.give(StoreJob::Manifest(Box::new(order(parts, Vec::new()))));
    thread.give(MODEL);
    let StoreReport::Failing(Some(_)) = thread.next() else { panic!("it says so") };
    std::fs::remove_file(&store).expect("removed");
    std::fs::rename(folder.path().join("away"), &store).expect("back");
    let StoreReport::Failing(None) = thread.next() else { panic!("it goes on") };
    assert!(matches!(thread.next(), StoreReport::Manifest(_)));
    assert!(matches!(thread.next(), StoreReport::Stored { .. }));
}

#[test]
fn a_cluster_that_another_one_has_outdone_writes_nothing_and_says_which() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = |step: u64| {
        let found = std::fs::read_dir(folder.path().join(format!("step-{step:06}")));
        found.map_or(0, Iterator::count)
    };
    let [first, again] = ["a", "a"].map(|name| TestThread::of(folder.path(), name));
    first.checkpoint(&commit(5, 2), Vec::new());
    let shards = reduce::shard_count(PARAMETERS) as u32;
    first.give(StoreJob::Save(part(3, &commit(10, 2), 0..shards)));
    let StoreReport::Saved(late) = first.next() else { panic!("its claim is the newest") };
    let second = TestThread::of(folder.path(), "b");
    // A restore is enough: the other cluster goes on from a checkpoint of the first one.
    assert!(second.restore(id(5, 2)).is_ok());
    for thread in [&first, &again] {
        thread.give(StoreJob::Save(part(4, &commit(15, 2), 0..shards)));
        let StoreReport::Failing(Some(reason)) = thread.next() else { panic!("it says so") };
        assert!(reason.contains("cluster b") && reason.contains("claims/000002.json"), "{reason}");
        let StoreReport::Unsaved { reason: why, .. } = thread.next() else { panic!("not saved") };
        assert_eq!(why, reason);
    }
    let parts = vec![WorkerPart { worker: WorkerId(3), part: late }];
    first.give(StoreJob::Manifest(Box::new(order(parts, vec![id(5, 2)]))));
    let StoreReport::Failing(Some(_)) = first.next() else { panic!("it says so again") };
    assert!(matches!(first.next(), StoreReport::NoManifest { .. }), "nor is the manifest");
    assert_eq!((files(5), files(10), files(15)), (3, 1, 0), "and nothing is deleted");
    // The same step, generation and workers: no file of the first cluster is written over.
    assert!(matches!(second.checkpoint(&commit(10, 2), vec![]), StoreReport::Manifest(_)));
    assert_eq!(files(10), 4);
    assert!(folder.path().join("step-000010/g0002-w3-c2.safetensors").exists());
    assert!(second.restore(id(10, 2)).is_ok());
    assert!(first.restore(id(5, 2)).is_ok(), "it may still read");
}

#[test]
fn a_store_of_another_run_takes_no_part_of_this_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let claims = folder.path().join("claims");
    std::fs::create_dir(&claims).expect("made");
    let other = r#"{"format": 1, "run": "other", "nonce": "a", "cluster": "cluster a"}"#;
    std::fs::write(claims.join("000001.json"), other).expect("written");
    let thread = TestThread::start(folder.path());
    thread.give(StoreJob::Save(part(3, &commit(5, 2), 0..1)));
    let StoreReport::Failing(Some(reason)) = thread.next() else { panic!("it says so") };
    assert!(reason.contains("Give each run a folder of its own"), "{reason}");
    assert!(!folder.path().join("step-000005").exists());
}

#[test]
fn a_checkpoint_of_which_a_part_is_gone_gets_no_manifest() {
    let folder = tempfile::tempdir().expect("a folder");
    let thread = TestThread::start(folder.path());
    let shards = reduce::shard_count(PARAMETERS) as u32;
    for damage in [|path: &Path| std::fs::remove_file(path), |path: &Path| std::fs::write(path, "")]
    {
        thread.give(StoreJob::Save(part(3, &commit(5, 2), 0..shards)));
        let StoreReport::Saved(saved) = thread.next() else { panic!("it is saved") };
        damage(&folder.path().join("step-000005/g0002-w3.safetensors")).expect("done");
        let parts = vec![WorkerPart { worker: WorkerId(3), part: saved }];
        thread.give(StoreJob::Manifest(Box::new(order(parts, vec![]))));
        let StoreReport::NoManifest { reason, .. } = thread.next() else { panic!("no manifest") };
        assert!(reason.contains("g0002-w3.safetensors"), "{reason}");
    }
}

/// Two machines have a directory of the same name.
#[test]
fn a_directory_that_not_all_workers_see_is_told_with_what_to_do() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let [one, other] = [&folders[0], &folders[1]].map(|it| TestThread::start(it.path()));
    one.give(StoreJob::Save(part(3, &commit(5, 2), 0..1)));
    let StoreReport::Saved(saved) = one.next() else { panic!("it is saved") };
    let shards = reduce::shard_count(PARAMETERS) as u32;
    other.give(StoreJob::Save(part(4, &commit(5, 2), 1..shards)));
    let StoreReport::Saved(theirs) = other.next() else { panic!("it is saved") };
    let parts = [(3, saved), (4, theirs)];
    let parts = parts.map(|(worker, part)| WorkerPart { worker: WorkerId(worker), part }).to_vec();
    other.give(StoreJob::Manifest(Box::new(order(parts, vec![]))));
    let StoreReport::NoManifest { reason, .. } = other.next() else { panic!("no manifest") };
    assert!(reason.contains("g0002-w3.safetensors is not in "), "{reason}");
    assert!(reason.contains("state a directory that all workers see"), "{reason}");
}

#[test]
fn parts_that_no_manifest_can_have_any_more_are_swept() {
    let folder = tempfile::tempdir().expect("a folder");
    let thread = TestThread::start(folder.path());
    let shards = reduce::shard_count(PARAMETERS) as u32;
    thread.checkpoint(&commit(5, 2), Vec::new());
    let mut parts = Vec::new();
    for step in [10, 15, 20] {
        thread.give(StoreJob::Save(part(3, &commit(step, 2), 0..shards)));
        let StoreReport::Saved(saved) = thread.next() else { panic!("it is saved") };
        parts = vec![WorkerPart { worker: WorkerId(3), part: saved }];
        let name = format!("step-{step:06}/g0002-w3.safetensors");
        let file = std::fs::File::open(folder.path().join(name)).expect("a part");
        let old = std::time::SystemTime::now() - Duration::from_secs(3_600);
        file.set_modified(old).expect("aged");
    }
    let order = ManifestToWrite { sweep: Step(10), ..order(parts, Vec::new()) };
    thread.give(StoreJob::Manifest(Box::new(order)));
    assert!(matches!(thread.next(), StoreReport::Manifest(_)));
    let is_there = |step: u64| folder.path().join(format!("step-{step:06}")).exists();
    assert_eq!([5, 10, 15, 20].map(is_there), [true, false, true, true]);
    assert!(thread.restore(id(5, 2)).is_ok());
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
    assert_eq!(std::fs::read_dir(folder.path().join("step-000005")).expect("a folder").count(), 0);
}

/// The other cluster claims the store while the lines go there, after the first look at the claims.
#[test]
fn a_cluster_that_is_outdone_while_it_completes_a_checkpoint_puts_no_manifest() {
    let folder = tempfile::tempdir().expect("a folder");
    let thread = TestThread::start(folder.path());
    let shards = reduce::shard_count(PARAMETERS) as u32;
    thread.give(StoreJob::Save(part(3, &commit(5, 2), 0..shards)));
    let StoreReport::Saved(part) = thread.next() else { panic!("it is saved") };
    let claims = folder.path().join("claims");
    let claim = std::fs::read_to_string(claims.join("000001.json")).expect("a claim");
    let other = claim.replace(r#""nonce":"a""#, r#""nonce":"b""#);
    assert_ne!(other, claim);
    let hook = move |stage| match stage {
        Stage::Done => std::fs::write(claims.join("000002.json"), &other),
        _ => Ok(()),
    };
    let store = DirectoryStore::with_hook(folder.path(), Arc::new(hook)).expect("a store");
    let parts = vec![WorkerPart { worker: WorkerId(3), part }];
    let mut job = StoreJob::Manifest(Box::new(order(parts, Vec::new())));
    let mut work = StoreWork::new(facts(folder.path()), &cluster("a"));
    match work.attempt(&store, &mut job, &mut |_| true) {
        Ok(Attempt::MayNot(why)) => assert!(why.contains("claims/000002.json"), "{why}"),
        told => panic!("{told:?}"),
    }
    assert!(folder.path().join("history/000005-g0002.metrics.jsonl").exists());
    assert!(!folder.path().join("step-000005/manifest.json").exists());
}

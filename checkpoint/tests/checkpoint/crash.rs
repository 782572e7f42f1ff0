//! A process that ends at any point of any write leaves no half object: what is there is whole.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use everstep_checkpoint::choose::{Wanted, newest};
use everstep_checkpoint::part::reader::verify;
use everstep_checkpoint::store::Store;
use everstep_checkpoint::store::directory::DirectoryStore;
use everstep_checkpoint::store::durable::{Stage, StageHook};
use everstep_transport::protocol::Step;

use crate::fixture::Run;

/// Files of a checkpoint: two parts and the manifest.
const FILES: usize = 3;
/// Tells the child where its store is, and at which of all stages it ends.
const CRASH_AT: &str = "EVERSTEP_TEST_CRASH_AT";

/// Writes the checkpoint of step 10, with this at each stage.
fn write_newer(root: &Path, hook: StageHook) -> Result<(), ()> {
    let store = DirectoryStore::with_hook(root, hook).expect("a store");
    let run = Run::with_moments(2);
    let part = |worker: u64, shards: &[u32]| {
        run.write_part(&store, run.plan(Step(10), worker, shards)).map_err(|_| ())
    };
    let parts = [part(11, &[0, 2, 4])?, part(12, &[1, 3])?];
    let manifest = run.manifest(Step(10), &parts);
    store.put_new(&manifest.name(), &manifest.to_bytes()).map(|_| ()).map_err(|_| ())
}

/// Counts stages, and does this at one of them.
fn at_stage(wanted: usize, what: fn() -> io::Result<()>) -> StageHook {
    let passed = AtomicUsize::new(0);
    Arc::new(move |_: Stage| match passed.fetch_add(1, Ordering::Relaxed) {
        stage if stage == wanted => what(),
        _ => Ok(()),
    })
}

/// Whatever is listed is whole: the newer checkpoint once its manifest is in place.
fn holds(root: &Path, stage: usize) {
    let store = DirectoryStore::open(root).expect("a store");
    let choice = newest(&store, Wanted::default()).expect("an answer");
    let manifest = choice.manifest.expect("the older one at least");
    assert_eq!(verify(&store, &manifest, &mut |_| {}), Ok(vec![]), "stage {stage}");
    // The manifest is the last file. It is in place from the stage after its link.
    let is_newer = stage >= (FILES - 1) * Stage::ALL.len() + 3;
    assert_eq!(manifest.step, Step(if is_newer { 10 } else { 5 }), "stage {stage}");
    // What is left of the interrupted write goes away, and the same write succeeds.
    store.sweep(u64::MAX).expect("swept");
    write_newer(root, Arc::new(|_| Ok(()))).expect("written");
    let again = newest(&store, Wanted::default()).expect("an answer");
    assert_eq!(again.manifest.map(|it| it.step), Some(Step(10)));
    let partial = |entry: io::Result<std::fs::DirEntry>| {
        entry.expect("an entry").file_name().to_string_lossy().ends_with(".partial")
    };
    let left = std::fs::read_dir(root.join("step-000010")).expect("a folder");
    assert_eq!(left.map(partial).filter(|it| *it).count(), 0);
}

#[test]
fn an_error_at_any_stage_leaves_no_half_checkpoint() {
    for stage in 0..FILES * Stage::ALL.len() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = DirectoryStore::open(folder.path()).expect("a store");
        Run::with_moments(2).write(&store, Step(5));
        let failing = at_stage(stage, || Err(io::Error::other("the process ends here")));
        write_newer(folder.path(), failing).expect_err("it ended");
        holds(folder.path(), stage);
    }
}

#[test]
fn a_process_that_is_aborted_at_any_stage_leaves_no_half_checkpoint() {
    if let Ok(told) = std::env::var(CRASH_AT) {
        let (stage, root) = told.split_once(' ').expect("a stage and a folder");
        let stage = stage.parse().expect("a number");
        let _ = write_newer(Path::new(root), at_stage(stage, || std::process::abort()));
        unreachable!("the process has ended");
    }
    let name = "crash::a_process_that_is_aborted_at_any_stage_leaves_no_half_checkpoint";
    for stage in 0..FILES * Stage::ALL.len() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = DirectoryStore::open(folder.path()).expect("a store");
        Run::with_moments(2).write(&store, Step(5));
        let child = Command::new(std::env::current_exe().expect("a path"))
            .args(["--exact", name])
            .env(CRASH_AT, format!("{stage} {}", folder.path().display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        let status = child.expect("it ran");
        assert!(std::os::unix::process::ExitStatusExt::signal(&status).is_some(), "{status}");
        holds(folder.path(), stage);
    }
}

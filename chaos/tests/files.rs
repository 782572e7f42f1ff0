//! A directory of checkpoints on a file system that loses what is not synced: a power failure at
//! any operation, and processes that end at any operation.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use everstep_chaos::files::{SimFiles, SyncFlaws};
use everstep_checkpoint::names::{ObjectName, PartName};
use everstep_checkpoint::store::directory::DirectoryStore;
use everstep_checkpoint::store::durable::DurableFiles;
use everstep_checkpoint::store::{Created, Store, StoreError, UploadSize};
use everstep_transport::protocol::{Generation, Step, WorkerId};

/// More than the changes and syncs of [`write`].
const OPERATIONS: u64 = 60;
/// The fates of what is not synced, for each operation.
const FATES: u64 = 8;

/// The manifest and the part of an older checkpoint, in the order of their deletion.
const OLDER: [ObjectName; 2] = [ObjectName::Manifest(Step(4)), part(4, 1)];

fn open(files: &SimFiles, operations: Option<u64>) -> Result<DirectoryStore, StoreError> {
    let process = Arc::new(files.process(operations));
    DirectoryStore::within(Path::new("/srv/checkpoints"), DurableFiles::on(process))
}

const fn part(step: u64, worker: u64) -> ObjectName {
    let name = PartName { generation: Generation(1), worker: WorkerId(worker), claim: 1 };
    ObjectName::Part(Step(step), name)
}

fn upload(store: &dyn Store, name: &ObjectName, bytes: &[u8]) -> Result<(), StoreError> {
    let size = UploadSize { head: 4, total: bytes.len() as u64 };
    let mut upload = store.upload(name, size)?;
    upload.write(&bytes[4..])?;
    upload.finish(&bytes[..4])
}

/// The objects that a process has made durable, with their bytes.
type Objects = BTreeMap<ObjectName, Vec<u8>>;

/// Writes two parts and what completes them, and then deletes an older checkpoint: its manifest
/// before its part. Every object that the store has acknowledged goes into `done`.
fn write(store: &dyn Store, done: &mut Objects) -> Result<(), StoreError> {
    for (name, length) in [(part(5, 1), 5_000), (part(5, 2), 900)] {
        let bytes = vec![7; length];
        upload(store, &name, &bytes)?;
        done.insert(name, bytes);
    }
    for name in [ObjectName::Claim(1), ObjectName::Manifest(Step(5))] {
        store.put_new(&name, b"a manifest, or a claim")?;
        done.insert(name, b"a manifest, or a claim".to_vec());
    }
    for name in OLDER {
        store.delete(&name)?;
        done.remove(&name);
    }
    Ok(())
}

/// Every listed object is whole, and every acknowledged object is listed.
#[track_caller]
fn holds(files: &SimFiles, done: &Objects, is_deleted: bool, when: &str) {
    let store = open(files, None).expect("it is back");
    let listing = store.list().expect("listed");
    for object in &listing {
        let bytes = store.read_whole(&object.name, 10_000).expect("read");
        let is_whole = bytes == b"a manifest, or a claim" || bytes.iter().all(|byte| *byte == 7);
        let lengths = [5_000, 900, 22];
        assert!(is_whole && lengths.contains(&bytes.len()), "{}, {when}: torn", object.name);
    }
    let is_listed = |name: &ObjectName| listing.iter().any(|object| object.name == *name);
    for name in done.keys().filter(|name| !OLDER.contains(name)) {
        assert!(is_listed(name), "{name}, {when}: it was acknowledged, and is lost");
    }
    // A part that comes back is of no manifest.
    let [manifest, part] = OLDER.map(|name| is_listed(&name));
    assert!(!is_deleted || !manifest, "{when}: a deleted manifest is back");
    assert!(part || !manifest, "{when}: a manifest has lost its part");
}

/// A store with an older checkpoint.
fn begun(fate: u64) -> (SimFiles, Objects) {
    let files = SimFiles::new(fate, SyncFlaws::default());
    let store = open(&files, None).expect("a store");
    let [manifest, part] = OLDER;
    upload(&store, &part, &[7; 900]).expect("written");
    store.put_new(&manifest, b"a manifest, or a claim").expect("written");
    let manifest = (manifest, b"a manifest, or a claim".to_vec());
    (files, Objects::from([(part, vec![7; 900]), manifest]))
}

#[test]
fn i12_what_is_acknowledged_outlasts_a_power_failure_at_any_operation() {
    for (at, fate) in (0..OPERATIONS).flat_map(|at| (0..FATES).map(move |fate| (at, fate))) {
        let (files, mut done) = begun(fate);
        let store = open(&files, None).expect("a store");
        files.cut_after(Some(at));
        let written = write(&store, &mut done);
        if written.is_ok() {
            files.cut();
        }
        holds(&files, &done, written.is_ok(), &format!("operation {at}, fate {fate}"));
        // The same work succeeds when the power is back.
        let again = open(&files, None).expect("a store");
        write(&again, &mut done).expect("written");
        holds(&files, &done, true, &format!("again, operation {at}, fate {fate}"));
    }
}

/// The first process makes the folder of the step, and ends. The second one finds it there.
#[test]
fn i12_a_part_in_a_folder_whose_maker_has_ended_outlasts_a_power_failure() {
    for (at, fate) in (0..OPERATIONS).flat_map(|at| (0..FATES).map(move |fate| (at, fate))) {
        let (files, mut done) = begun(fate);
        let ended = open(&files, Some(at)).and_then(|store| write(&store, &mut done));
        let second = open(&files, None).expect("a store");
        upload(&second, &part(5, 3), &[7; 900]).expect("written");
        done.insert(part(5, 3), vec![7; 900]);
        files.cut();
        holds(&files, &done, ended.is_ok(), &format!("operation {at}, fate {fate}"));
    }
}

/// The first process ends in the midst of its work. Another one finds some objects there, and says
/// that they are durable, or writes the same ones.
#[test]
fn i12_what_a_process_that_has_ended_left_outlasts_a_power_failure_once_another_one_relies_on_it() {
    for (at, fate) in (0..OPERATIONS).flat_map(|at| (0..FATES).map(move |fate| (at, fate))) {
        for is_written_again in [false, true] {
            let (files, mut done) = begun(fate);
            let ended = open(&files, Some(at)).and_then(|store| write(&store, &mut done));
            let second = open(&files, None).expect("a store");
            for object in second.list().expect("listed") {
                let bytes = second.read_whole(&object.name, 10_000).expect("read");
                let is_small =
                    matches!(object.name, ObjectName::Claim(_) | ObjectName::Manifest(_));
                match is_written_again && is_small {
                    true => drop(second.put_new(&object.name, &bytes).expect("written")),
                    false => second.make_durable(&object.name).expect("durable"),
                }
                done.insert(object.name, bytes);
            }
            files.cut();
            holds(&files, &done, ended.is_ok(), &format!("operation {at}, fate {fate}"));
        }
    }
}

/// The first process ends in the midst of a manifest. Another one has other bytes for it, and
/// relies on what it finds.
#[test]
fn i12_what_a_writer_of_other_bytes_finds_outlasts_a_power_failure() {
    let (name, bytes) = (ObjectName::Manifest(Step(5)), b"a manifest, or a claim");
    let mut found = 0;
    for (at, fate) in (0..OPERATIONS).flat_map(|at| (0..FATES).map(move |fate| (at, fate))) {
        let (files, mut done) = begun(fate);
        let _ = open(&files, Some(at)).and_then(|store| store.put_new(&name, bytes));
        let second = open(&files, None).expect("a store");
        if second.put_new(&name, b"other bytes").expect("written") == Created::Mine {
            continue;
        }
        found += 1;
        done.insert(name.clone(), bytes.to_vec());
        files.cut();
        holds(&files, &done, false, &format!("operation {at}, fate {fate}"));
    }
    assert!(found > 0);
}

#[test]
fn what_nobody_syncs_is_lost_or_torn() {
    for flaws in [
        SyncFlaws { skips_files: true, skips_folders: false },
        SyncFlaws { skips_files: false, skips_folders: true },
    ] {
        let harmed = (0..20).filter(|fate| {
            let files = SimFiles::new(*fate, flaws);
            let store = open(&files, None).expect("a store");
            upload(&store, &part(5, 1), &[7; 900]).expect("written");
            files.cut();
            let read = open(&files, None).and_then(|store| store.read_whole(&part(5, 1), 1_000));
            read != Ok(vec![7; 900])
        });
        assert!(harmed.count() > 5, "{flaws:?}");
    }
}

//! A store of each format, as the program wrote it: `checkpoint/tests/golden/format-N`.
//!
//! The bytes of the newest one must not change without a new number (I23).

use std::fs;
use std::path::{Path, PathBuf};

use everstep_checkpoint::claims::{self, Claim, Standing};
use everstep_checkpoint::digest::Digest;
use everstep_checkpoint::head::{Head, LENGTH_BYTES};
use everstep_checkpoint::manifest::{self, Manifest, ManifestError};
use everstep_checkpoint::names::ObjectName;
use everstep_checkpoint::part;
use everstep_checkpoint::part::reader::{CheckpointReader, ReadError};
use everstep_checkpoint::store::directory::DirectoryStore;
use everstep_checkpoint::store::{ErrorKind, Store, StoreError, StoredObject};
use everstep_transport::protocol::{Shard, Step};

use crate::fixture::{RUN, Run};

/// Set to 1, a test writes the golden store of the newest format.
const WRITE: &str = "EVERSTEP_WRITE_GOLDEN";
const STEP: Step = Step(5);

fn golden(format: u64) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/format-{format}"))
}

fn claim() -> Claim {
    Claim { run: RUN.into(), nonce: "n".into(), cluster: "the cluster of worker-1".into() }
}

/// Writes a claim and a checkpoint of two parts into a folder.
fn write(folder: &Path) -> Manifest {
    fs::create_dir_all(folder).expect("a folder");
    let store = DirectoryStore::open(folder).expect("a store");
    let held = claims::hold(&store, &[], &claim(), None).expect("claimed");
    assert_eq!(held, Standing::Holds(1));
    Run::with_moments(1).write(&store, STEP)
}

/// A copy of the golden store of a format, to be changed.
fn copied(format: u64) -> (tempfile::TempDir, DirectoryStore) {
    let folder = tempfile::tempdir().expect("a folder");
    let store = DirectoryStore::open(folder.path()).expect("a store");
    let from = DirectoryStore::open(&golden(format)).expect("the golden store");
    for object in from.list().expect("listed") {
        let bytes = from.read(&object.name, 0..object.bytes).expect("read");
        put(folder.path(), &object.name, &bytes);
    }
    (folder, store)
}

fn put(folder: &Path, name: &ObjectName, bytes: &[u8]) {
    let path = folder.join(name.to_string());
    fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    fs::write(path, bytes).expect("written");
}

fn manifest_of(store: &dyn Store) -> Manifest {
    let bytes = store.read_whole(&ObjectName::Manifest(STEP), manifest::MAX_MANIFEST_BYTES);
    Manifest::parse(&bytes.expect("the manifest")).expect("whole")
}

#[test]
fn i23_a_store_has_the_bytes_of_its_golden_files() {
    assert!([part::FORMAT, claims::FORMAT] == [manifest::FORMAT; 2], "one golden store has all");
    let folder = golden(manifest::FORMAT);
    if std::env::var_os(WRITE).is_some() {
        let _ = fs::remove_dir_all(&folder); // perhaps it is the first one
        write(&folder);
    }
    let fresh = tempfile::tempdir().expect("a folder");
    let written = write(fresh.path());
    let old = DirectoryStore::open(&folder).expect("the golden store");
    let known = manifest_of(&old);
    // The program's version and the keys of a run may change within a format.
    let (everstep, spec, spec_digest) =
        (known.everstep.clone(), known.spec.clone(), known.spec_digest);
    let written = Manifest { everstep, spec, spec_digest, ..written };
    put(fresh.path(), &ObjectName::Manifest(STEP), &written.to_bytes());
    let new = DirectoryStore::open(fresh.path()).expect("a store");
    let listed = |store: &DirectoryStore| {
        let objects = store.list().expect("listed").into_iter();
        objects.map(|object| StoredObject { changed: 0, ..object }).collect::<Vec<_>>()
    };
    assert_eq!(listed(&old), listed(&new));
    assert_eq!(listed(&new).len(), 4, "two parts, the manifest and the claim");
    for object in listed(&new) {
        let bytes = |store: &DirectoryStore| store.read(&object.name, 0..object.bytes);
        assert!(
            bytes(&new).expect("read") == bytes(&old).expect("read"),
            "the bytes of {} have changed: raise the number of its format, and read the old one. \
             If no release has written it, run this test once with {WRITE}=1",
            object.name
        );
    }
}

#[test]
fn i23_a_golden_store_is_restored_to_the_same_bits() {
    let store = DirectoryStore::open(&golden(1)).expect("the golden store");
    let (run, manifest) = (Run::with_moments(1), manifest_of(&store));
    manifest.run_spec().expect("a later program knows all keys");
    let mut reader = CheckpointReader::new(&store, &manifest);
    for shard in (0..run.shards()).map(Shard) {
        assert_eq!(reader.read(shard).expect("sound"), run.state(STEP, shard), "shard {shard}");
    }
    assert_eq!(claims::read(&store, 1), Ok(claim()));
}

#[test]
fn i23_a_manifest_of_another_format_is_refused_by_number() {
    let (_folder, store) = copied(1);
    let later = Manifest { format: 9, ..manifest_of(&store) };
    let error = Manifest::parse(&later.to_bytes()).expect_err("another format");
    assert!(matches!(error, ManifestError::Format { format: 9, .. }) && !error.is_damage());
    let words = error.to_string();
    assert!(words.starts_with("its format is 9, and this program reads format 1"), "{words}");
}

#[test]
fn i23_a_part_of_another_format_is_refused_by_name_and_number_and_is_no_damage() {
    let (folder, store) = copied(1);
    let mut manifest = manifest_of(&store);
    let name = manifest.file_name(0);
    let bytes = store.read(&name, 0..manifest.files[0].bytes).expect("a part");
    let (head, data) = bytes.split_at(manifest.files[0].head_bytes as usize);
    let mut parsed =
        Head::parse(&head[LENGTH_BYTES as usize..], data.len() as u64).expect("a head");
    parsed.metadata.insert(part::FORMAT_KEY.into(), "9".into());
    let changed = parsed.to_bytes(head.len());
    assert_eq!(changed.len(), head.len());
    put(folder.path(), &name, &[&changed, data].concat());
    manifest.files[0].head_blake3 = Digest::of(&changed);
    let first = manifest.shards.iter().position(|shard| shard.file == 0).expect("a shard");
    let read = CheckpointReader::new(&store, &manifest).read(Shard(first as u32));
    let Err(ReadError::Store(StoreError { kind, object, why, .. })) = read else {
        panic!("{read:?}");
    };
    assert_eq!((kind, object), (ErrorKind::Refuse, name.to_string()));
    assert_eq!(why, "its format is 9, and this program reads format 1. Use a newer program");
}

#[test]
fn i23_a_claim_of_another_format_is_refused_by_name_and_number() {
    let (folder, store) = copied(1);
    put(folder.path(), &ObjectName::Claim(2), br#"{"format":9,"clusters":["a","b"]}"#);
    let error = claims::read(&store, 2).expect_err("another format");
    assert_eq!((error.kind, error.object.as_str()), (ErrorKind::Refuse, "claims/000002.json"));
    assert!(error.why.starts_with("its format is 9, and this program reads format 1"));
    let listing = store.list().expect("listed");
    let held = claims::hold(&store, &listing, &claim(), None);
    assert_eq!(held, Err(error), "no program writes where it cannot read the newest claim");
}

//! A directory as a store.

use std::fs;
use std::os::unix::fs::symlink;

use everstep_checkpoint::names::ObjectName;
use everstep_checkpoint::store::directory::DirectoryStore;
use everstep_checkpoint::store::probe::probe;
use everstep_checkpoint::store::{
    Created, ErrorKind, Store, StoreError, StoredObject, Upload, UploadSize,
};
use everstep_transport::protocol::Step;

use crate::suite;

#[test]
fn a_directory_does_what_every_store_must() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = || -> Box<dyn Store> {
        Box::new(DirectoryStore::open(&folder.path().join("a/b")).expect("a store"))
    };
    suite::run(&open, &|_| {});
}

#[test]
fn foreign_files_are_neither_listed_nor_swept() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = DirectoryStore::open(folder.path()).expect("a store");
    store.put_new(&ObjectName::Manifest(Step(5)), b"{}").expect("put");
    for name in ["step-000005/notes.txt", "step-000005/.hidden", "step-5", "a b", "x.partial"] {
        fs::write(folder.path().join(name), "mine").expect("written");
    }
    fs::create_dir(folder.path().join("step-000006")).expect("made");
    fs::create_dir(folder.path().join("model.safetensors")).expect("made");
    let names: Vec<_> = store.list().expect("listed").into_iter().map(|it| it.name).collect();
    assert_eq!(names, [ObjectName::Manifest(Step(5))]);
    assert_eq!(store.sweep(u64::MAX), Ok(0));
}

#[test]
fn what_interrupted_writers_left_is_swept_once_it_is_old() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = DirectoryStore::open(folder.path()).expect("a store");
    fs::create_dir(folder.path().join("step-000005")).expect("made");
    let left = folder.path().join("step-000005/manifest.json.00112233aabbccdd.partial");
    fs::write(&left, "{").expect("written");
    assert_eq!(store.list(), Ok(vec![]), "it is not an object");
    assert_eq!(store.sweep(1_000), Ok(0), "it is young");
    assert_eq!(store.sweep(u64::MAX), Ok(1));
    assert!(!left.exists());
}

#[test]
fn a_pipe_or_a_folder_in_place_of_an_object_is_damage_and_blocks_nobody() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = DirectoryStore::open(folder.path()).expect("a store");
    let at = folder.path().join("step-000005");
    fs::create_dir(&at).expect("made");
    rustix::fs::mkfifoat(rustix::fs::CWD, at.join("manifest.json"), 0o600.into()).expect("made");
    let error = store.read_whole(&ObjectName::Manifest(Step(5)), 10).expect_err("a pipe");
    assert_eq!(error.kind, ErrorKind::Damaged, "{error}");
    fs::create_dir_all(folder.path().join("step-000006/manifest.json")).expect("made");
    let error = store.read_whole(&ObjectName::Manifest(Step(6)), 10).expect_err("a folder");
    assert_eq!(error.kind, ErrorKind::Damaged, "{error}");
}

#[test]
fn links_are_followed_when_reading_as_caches_of_models_need_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = DirectoryStore::open(&folder.path().join("snapshot")).expect("a store");
    fs::write(folder.path().join("blob"), "weights").expect("written");
    symlink("../blob", folder.path().join("snapshot/model.safetensors")).expect("linked");
    let name = "model.safetensors".parse().expect("a name");
    assert_eq!(store.read_whole(&name, 100).expect("read"), b"weights");
}

#[test]
fn a_directory_that_is_gone_is_a_place_that_is_away_and_lacks_no_object() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("store");
    let store = DirectoryStore::open(&root).expect("a store");
    let name = ObjectName::Manifest(Step(5));
    assert_eq!(store.size(&name).expect_err("not there").kind, ErrorKind::Missing);
    fs::remove_dir_all(&root).expect("gone");
    assert_eq!(store.size(&name).expect_err("away").kind, ErrorKind::Retry);
    assert_eq!(store.list().expect_err("away").kind, ErrorKind::Retry);
}

#[test]
fn a_file_in_place_of_the_directory_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    fs::write(&path, "").expect("written");
    let error = DirectoryStore::open(&path).err().expect("no directory");
    assert_eq!(error.kind, ErrorKind::Refuse, "{error}");
}

#[test]
fn a_directory_that_is_away_is_not_taken_for_an_empty_store() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = DirectoryStore::open(folder.path()).expect("a store");
    assert_eq!(store.list_claims(), Ok(vec![]), "there is no claim yet");
    fs::remove_dir_all(folder.path()).expect("removed");
    for listing in [store.list(), store.list_claims(), store.list_checkpoints()] {
        assert_eq!(listing.expect_err("away").kind, ErrorKind::Retry);
    }
}

/// A store that creates whatever is there already.
struct Careless(DirectoryStore);

impl Store for Careless {
    fn place(&self) -> &str {
        "careless://store"
    }
    fn put_new(&self, name: &ObjectName, bytes: &[u8]) -> Result<Created, StoreError> {
        self.0.delete(name)?;
        self.0.put_new(name, bytes)
    }
    fn upload(&self, name: &ObjectName, size: UploadSize) -> Result<Box<dyn Upload>, StoreError> {
        self.0.upload(name, size)
    }
    fn read(&self, name: &ObjectName, range: std::ops::Range<u64>) -> Result<Vec<u8>, StoreError> {
        self.0.read(name, range)
    }
    fn read_whole(&self, name: &ObjectName, most: u64) -> Result<Vec<u8>, StoreError> {
        self.0.read_whole(name, most)
    }
    fn size(&self, name: &ObjectName) -> Result<u64, StoreError> {
        self.0.size(name)
    }
    fn list(&self) -> Result<Vec<StoredObject>, StoreError> {
        self.0.list()
    }
    fn list_claims(&self) -> Result<Vec<StoredObject>, StoreError> {
        self.0.list_claims()
    }
    fn list_checkpoints(&self) -> Result<Vec<StoredObject>, StoreError> {
        self.0.list_checkpoints()
    }
    fn delete(&self, name: &ObjectName) -> Result<(), StoreError> {
        self.0.delete(name)
    }
    fn sweep(&self, before: u64) -> Result<u64, StoreError> {
        self.0.sweep(before)
    }
}

#[test]
fn a_store_that_ignores_conditions_is_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Careless(DirectoryStore::open(folder.path()).expect("a store"));
    let error = probe(&store).expect_err("refused");
    assert_eq!(error.kind, ErrorKind::Refuse);
    let words = error.to_string();
    assert!(words.contains("careless://store") && words.contains("If-None-Match"), "{words}");
    assert_eq!(store.list(), Ok(vec![]), "the probe is gone");
}

/// A link to itself is a name that can be listed, and that nothing can look at.
#[test]
fn a_listing_never_lacks_an_object_that_does_not_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = DirectoryStore::open(folder.path()).expect("a store");
    store.put_new(&ObjectName::Claim(1), b"a claim").expect("put");
    symlink("000002.json", folder.path().join("claims/000002.json")).expect("linked");
    let error = store.list_claims().expect_err("the newest claim cannot be looked at");
    assert_eq!(error.kind, ErrorKind::Retry, "{error}");
}

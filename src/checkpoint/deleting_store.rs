//! A store of a run under way that deletes a checkpoint while it is read, for tests.

use std::ops::Range;
use std::path::Path;

use everstep_checkpoint::names::ObjectName;
use everstep_checkpoint::store::directory::DirectoryStore;
use everstep_checkpoint::store::{Created, Store, StoreError, StoredObject, Upload, UploadSize};
use everstep_transport::protocol::Step;

/// The step of the checkpoint in the store.
pub(super) const STEP: Step = Step(5);

/// A store that deletes the checkpoint when a part is read for the first time.
pub(super) struct DeletingStore {
    inner: DirectoryStore,
    _folder: tempfile::TempDir,
}

impl DeletingStore {
    /// A store with one whole checkpoint.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("checkpoint/tests/golden/format-1");
        let (golden, inner) = (DirectoryStore::open(&golden), DirectoryStore::open(folder.path()));
        let (golden, inner) = (golden.expect("a store"), inner.expect("a store"));
        for StoredObject { name, bytes, .. } in golden.list().expect("a list") {
            let size = UploadSize { head: 0, total: bytes };
            let mut upload = inner.upload(&name, size).expect("an upload");
            upload.write(&golden.read_whole(&name, bytes).expect("read")).expect("written");
            upload.finish(&[]).expect("durable");
        }
        Self { inner, _folder: folder }
    }

    /// The store as it is: nothing is deleted by reading there.
    pub fn quiet(&self) -> &DirectoryStore {
        &self.inner
    }
}

impl Store for DeletingStore {
    fn place(&self) -> &str {
        self.inner.place()
    }
    fn put_new(&self, name: &ObjectName, bytes: &[u8]) -> Result<Created, StoreError> {
        self.inner.put_new(name, bytes)
    }
    fn upload(&self, name: &ObjectName, size: UploadSize) -> Result<Box<dyn Upload>, StoreError> {
        self.inner.upload(name, size)
    }
    fn read(&self, name: &ObjectName, range: Range<u64>) -> Result<Vec<u8>, StoreError> {
        if matches!(name, ObjectName::Part(..)) {
            self.inner.delete(&ObjectName::Manifest(STEP))?;
            self.inner.delete(name)?;
        }
        self.inner.read(name, range)
    }
    fn size(&self, name: &ObjectName) -> Result<u64, StoreError> {
        self.inner.size(name)
    }
    fn list(&self) -> Result<Vec<StoredObject>, StoreError> {
        self.inner.list()
    }
    fn list_claims(&self) -> Result<Vec<StoredObject>, StoreError> {
        self.inner.list_claims()
    }
    fn list_checkpoints(&self) -> Result<Vec<StoredObject>, StoreError> {
        self.inner.list_checkpoints()
    }
    fn delete(&self, name: &ObjectName) -> Result<(), StoreError> {
        self.inner.delete(name)
    }
    fn sweep(&self, before: u64) -> Result<u64, StoreError> {
        self.inner.sweep(before)
    }
}

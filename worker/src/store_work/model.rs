//! How the trained model gets from the file in which a worker gathered it to the run's store.

use std::fs::File;
use std::io::{self, ErrorKind as IoKind, Read};
use std::path::Path;

use everstep_checkpoint::head::MAX_HEAD_BYTES;
use everstep_checkpoint::names::{FileName, ObjectName};
use everstep_checkpoint::store::{ErrorKind, REQUEST_BYTES, Store, StoreError, UploadSize};
use everstep_transport::protocol::{CheckpointSpec, ModelPlace};

use crate::device::model_path::{is_passing, stated_in};

/// Copies the model's file into the store. Workers of one run copy equal bytes, so the copy of
/// another one is replaced. A file that is not this run's model stays.
///
/// # Errors
/// Those of the store, and those of reading the file.
pub(super) fn put(store: &dyn Store, path: &Path) -> Result<(), StoreError> {
    let name = ObjectName::File(FileName::weights());
    let unread = |error: io::Error| {
        let why = format!("the file to copy, {}, cannot be read: {error}", path.display());
        StoreError::new(ErrorKind::Retry, store.place(), &name, why)
    };
    let mut file = File::open(path).map_err(unread)?;
    let total = file.metadata().map_err(unread)?.len();
    let head = read_head(&mut file).map_err(unread)?;
    check(store, &name, stated_in(&head))?;
    let mut upload = store.upload(&name, UploadSize { head: head.len() as u64, total })?;
    let mut left = total - head.len() as u64;
    let mut piece = vec![0; REQUEST_BYTES];
    while left > 0 {
        let piece = &mut piece[..left.min(REQUEST_BYTES as u64) as usize];
        file.read_exact(piece).map_err(unread)?;
        upload.write(piece)?;
        left -= piece.len() as u64;
    }
    upload.finish(&head)
}

/// Whether the file of a worker that has no directory has been removed, since the store has it.
pub(super) fn is_removed(path: &Path) -> bool {
    is_passing(path) && !path.exists()
}

/// The place of the model in a run's store.
pub(super) fn place_in(spec: &CheckpointSpec) -> ModelPlace {
    let shown = |c: char| if c.is_control() { '?' } else { c };
    let host = match spec.is_url() {
        true => String::new(),
        false => rustix::system::uname().nodename().to_string_lossy().chars().map(shown).collect(),
    };
    ModelPlace { host, path: spec.model_path() }
}

/// The head of a safetensors file, its length included.
fn read_head(file: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = vec![0; 8];
    file.read_exact(&mut head)?;
    let length = u64::from_le_bytes(head[..8].try_into().expect("eight bytes"));
    if length > MAX_HEAD_BYTES {
        return Err(io::Error::new(IoKind::InvalidData, "it is no model's file"));
    }
    head.resize(8 + length as usize, 0);
    file.read_exact(&mut head[8..])?;
    Ok(head)
}

/// Refuses to replace what is not the model of this run.
fn check(store: &dyn Store, name: &ObjectName, own: Option<String>) -> Result<(), StoreError> {
    let refused = || {
        let why = "another model is there. Move that file elsewhere, or give each run a folder of \
                   its own";
        StoreError::new(ErrorKind::Refuse, store.place(), name, why)
    };
    let length = match store.read(name, 0..8) {
        Ok(length) => u64::from_le_bytes(length[..].try_into().expect("eight bytes")),
        Err(error) if error.is_missing() => return Ok(()),
        Err(error) if error.kind == ErrorKind::Damaged => return Err(refused()),
        Err(error) => return Err(error),
    };
    if length > MAX_HEAD_BYTES {
        return Err(refused());
    }
    match store.read(name, 0..8 + length) {
        Ok(head) if own.is_some() && stated_in(&head) == own => Ok(()),
        Ok(_) => Err(refused()),
        Err(error) if error.kind == ErrorKind::Damaged => Err(refused()),
        Err(error) => Err(error),
    }
}

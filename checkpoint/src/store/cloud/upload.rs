//! An object under way to an object store: parts of equal size, two of them at a time.
//!
//! The head of the object is known last, and is a piece of the first part. So the first part waits,
//! and the others go ahead: a service puts parts together by their numbers, whenever they come.

use std::collections::BTreeMap;
use std::sync::Arc;

use object_store::multipart::PartId;
use object_store::path::Path;
use object_store::{Error, MultipartId};
use tokio::task::JoinSet;

use super::{Io, Objects, kind, words};
use crate::names::ObjectName;
use crate::store::{ErrorKind, REQUEST_BYTES, REQUESTS_IN_FLIGHT, StoreError, Upload, UploadSize};

/// Most parts of an object: S3 takes no more.
const MAX_PARTS: u64 = 10_000;

/// Where an upload goes.
pub(super) struct UploadTarget {
    pub(super) objects: Arc<dyn Objects>,
    pub(super) path: Path,
    pub(super) id: MultipartId,
    pub(super) io: Arc<Io>,
    pub(super) place: String,
    pub(super) name: ObjectName,
}

/// An upload in parts.
pub(super) struct CloudUpload {
    target: UploadTarget,
    size: UploadSize,
    /// The bytes of each part but the last.
    part_bytes: usize,
    /// The bytes of the first part that follow the head.
    first: Vec<u8>,
    /// The bytes of the part that is being filled.
    filling: Vec<u8>,
    /// The number of the part that is being filled.
    next: usize,
    written: u64,
    sending: JoinSet<(usize, Result<PartId, Error>)>,
    sent: BTreeMap<usize, PartId>,
    is_complete: bool,
}

impl CloudUpload {
    pub(super) fn new(target: UploadTarget, size: UploadSize) -> Self {
        Self {
            target,
            size,
            part_bytes: part_bytes(size),
            first: Vec::new(),
            filling: Vec::new(),
            next: 1,
            written: size.head,
            sending: JoinSet::new(),
            sent: BTreeMap::new(),
            is_complete: false,
        }
    }

    /// Sends a part, once fewer than [`REQUESTS_IN_FLIGHT`] are under way.
    fn send(&mut self, number: usize, bytes: Vec<u8>) -> Result<(), StoreError> {
        self.wait_for(REQUESTS_IN_FLIGHT - 1)?;
        let UploadTarget { objects, path, id, io, .. } = &self.target;
        let (objects, path, id) = (objects.clone(), path.clone(), id.clone());
        let request =
            async move { (number, objects.put_part(&path, &id, number, bytes.into()).await) };
        self.sending.spawn_on(request, io.handle());
        Ok(())
    }

    /// Waits until at most so many parts are under way.
    fn wait_for(&mut self, most: usize) -> Result<(), StoreError> {
        while self.sending.len() > most {
            let sent = self.target.io.wait(self.sending.join_next()).expect("one is under way");
            let (number, part) = sent.map_err(|error| self.target.error(&error))?;
            self.sent.insert(number, part.map_err(|error| self.target.store_error(&error))?);
        }
        Ok(())
    }
}

impl Upload for CloudUpload {
    fn write(&mut self, mut bytes: &[u8]) -> Result<(), StoreError> {
        self.written += bytes.len() as u64;
        let room = self.part_bytes - self.size.head as usize - self.first.len();
        let (first, rest) = bytes.split_at(room.min(bytes.len()));
        self.first.extend_from_slice(first);
        bytes = rest;
        while !bytes.is_empty() {
            let room = self.part_bytes - self.filling.len();
            let (piece, rest) = bytes.split_at(room.min(bytes.len()));
            self.filling.extend_from_slice(piece);
            bytes = rest;
            if self.filling.len() == self.part_bytes {
                let full = std::mem::take(&mut self.filling);
                self.send(self.next, full)?;
                self.next += 1;
            }
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>, head: &[u8]) -> Result<(), StoreError> {
        let told = (head.len() as u64, self.written);
        assert_eq!(told, (self.size.head, self.size.total), "as many as announced");
        if !self.filling.is_empty() {
            let last = std::mem::take(&mut self.filling);
            self.send(self.next, last)?;
        }
        let first = [head, &std::mem::take(&mut self.first)].concat();
        self.send(0, first)?;
        self.wait_for(0)?;
        let parts = std::mem::take(&mut self.sent).into_values().collect();
        let UploadTarget { objects, path, id, io, .. } = &self.target;
        let complete = io.wait(objects.complete_multipart(path, id, parts));
        complete.map_err(|error| self.target.store_error(&error))?;
        self.is_complete = true;
        Ok(())
    }
}

impl Drop for CloudUpload {
    /// Asks the service to forget the parts. If it does not hear, its lifecycle rule does.
    fn drop(&mut self) {
        if self.is_complete {
            return;
        }
        self.sending.abort_all();
        let UploadTarget { objects, path, id, io, .. } = &self.target;
        let (objects, path, id) = (objects.clone(), path.clone(), id.clone());
        io.handle().spawn(async move { objects.abort_multipart(&path, &id).await.ok() });
    }
}

impl UploadTarget {
    fn store_error(&self, error: &Error) -> StoreError {
        // What is missing is the upload: the service has forgotten it, or the bucket is gone.
        let kind = match kind(error) {
            ErrorKind::Missing => ErrorKind::Retry,
            other => other,
        };
        StoreError::new(kind, &self.place, &self.name, words(error))
    }

    fn error(&self, error: &dyn std::fmt::Display) -> StoreError {
        StoreError::new(ErrorKind::Retry, &self.place, &self.name, words(error))
    }
}

/// Bytes of each part: 8 MiB, or more if the object would have too many parts or the head would not
/// fit in the first one.
fn part_bytes(size: UploadSize) -> usize {
    let least = size.total.div_ceil(MAX_PARTS).max(size.head).next_multiple_of(1 << 20);
    REQUEST_BYTES.max(least as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_8_mib_unless_that_would_be_too_many() {
        for (head, total, bytes) in [
            (1_000, 1 << 30, 8 << 20),
            (1_000, 78 << 30, 8 << 20),
            (1_000, 200 << 30, 21 << 20),
            (9 << 20, 1 << 30, 9 << 20),
        ] {
            assert_eq!(part_bytes(UploadSize { head, total }), bytes);
        }
    }
}

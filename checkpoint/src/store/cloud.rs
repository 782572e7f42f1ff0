//! Object stores: S3, Google Cloud Storage and Azure, through the `object_store` crate.
//!
//! The requests run on one thread of the store's own, and the verbs wait for them. So no verb may
//! be called on a thread that runs tasks.
//!
//! A create that reports "already there" may be the second try of a create that succeeded, since
//! its first answer was lost. So the bytes decide (see [`Created`]). Multipart uploads know no
//! conditions. So only small objects are created conditionally, and parts have names of their own.

pub(super) mod connect;
mod upload;

use std::fmt::Display;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

use futures_util::TryStreamExt;
use futures_util::stream::BoxStream;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{Error, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use tokio::runtime::{Builder, Handle, Runtime};

use super::place::{Environment, Service};
use super::{
    Created, ErrorKind, MAX_OBJECTS, MAX_SMALL_BYTES, Store, StoreError, StoredObject, Upload,
    UploadSize,
};
use crate::names::ObjectName;
use upload::CloudUpload;

/// A prefix of a bucket.
pub struct Bucket<'a> {
    /// The service that has it.
    pub service: Service,
    /// The name of the object, below the folder of the store.
    pub name: &'a str,
    /// Folders, without slashes at the ends.
    pub prefix: &'a str,
}

/// What a service must be able to do.
pub trait Objects: ObjectStore + MultipartStore {}

impl<T: ObjectStore + MultipartStore> Objects for T {}

/// Opens the store in a bucket. It sends nothing yet.
///
/// # Errors
/// If the environment does not say how to reach it.
pub fn open(bucket: &Bucket<'_>, environment: &Environment) -> Result<CloudStore, StoreError> {
    let place = bucket.to_string();
    let objects = connect::connect(bucket, environment, &place)?;
    let hint = connect::hint(bucket.service, environment);
    let store = CloudStore::new(objects, place, bucket.prefix)?;
    Ok(CloudStore { hint, ..store })
}

/// A store in a bucket.
pub struct CloudStore {
    objects: Arc<dyn Objects>,
    place: String,
    prefix: Path,
    io: Arc<Io>,
    /// What to do if the service does not let us in.
    hint: Option<&'static str>,
}

impl CloudStore {
    /// A store over any service. `place` is its name for people.
    ///
    /// # Errors
    /// If no thread can be started for its requests.
    pub fn new(objects: Arc<dyn Objects>, place: String, prefix: &str) -> Result<Self, StoreError> {
        let io = Io::start().map_err(|error| {
            let why = format!("no thread for its requests: {error}");
            StoreError { kind: ErrorKind::Retry, ..StoreError::refuse(&place, why) }
        })?;
        let prefix = Path::parse(prefix)
            .map_err(|error| StoreError::refuse(&place, format!("its folder: {error}")))?;
        Ok(Self { objects, place, prefix, io: Arc::new(io), hint: None })
    }

    fn path(&self, name: &ObjectName) -> Path {
        name.to_string().split('/').fold(self.prefix.clone(), |path, part| path.join(part))
    }

    fn error(&self, object: &dyn Display, error: &Error) -> StoreError {
        let kind = kind(error);
        let words = words(error);
        let why = match (kind, self.hint) {
            (ErrorKind::Missing, _) => "it is not there".into(),
            (ErrorKind::Refuse | ErrorKind::Retry, Some(hint)) => format!("{words}; {hint}"),
            _ => words,
        };
        StoreError { kind, place: self.place.clone(), object: object.to_string(), why }
    }

    /// The error of a verb that needs no object, so what is missing is the bucket.
    fn bucket_error(&self, object: &dyn Display, error: &Error) -> StoreError {
        let told = self.error(object, error);
        match told.kind {
            ErrorKind::Missing => {
                let why = "there is no such bucket or container. Create it, or name another";
                StoreError { kind: ErrorKind::Refuse, why: why.into(), ..told }
            }
            _ => told,
        }
    }

    fn prefix(&self) -> Option<&Path> {
        Some(&self.prefix).filter(|prefix| !prefix.as_ref().is_empty())
    }

    /// What a listing brings, in the order of the names.
    fn gather(
        &self,
        mut stream: BoxStream<'static, Result<ObjectMeta, Error>>,
    ) -> Result<Vec<StoredObject>, StoreError> {
        let all = async {
            let (mut found, mut seen) = (Vec::new(), 0);
            while let Some(meta) = stream.try_next().await? {
                found.extend(self.object(&meta));
                seen += 1;
                if seen > MAX_OBJECTS {
                    return Ok(None);
                }
            }
            Ok(Some(found))
        };
        let found = self.io.wait(all).map_err(|error| self.bucket_error(&"its listing", &error))?;
        let mut found = found.ok_or_else(|| {
            let why = format!("it has more than {MAX_OBJECTS} objects. Use another folder");
            StoreError::refuse(&self.place, why)
        })?;
        found.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(found)
    }

    fn object(&self, meta: &ObjectMeta) -> Option<StoredObject> {
        let prefix = self.prefix.as_ref();
        let location = meta.location.as_ref().strip_prefix(prefix)?;
        let location = if prefix.is_empty() { location } else { location.strip_prefix('/')? };
        let changed = meta.last_modified.timestamp().max(0) as u64;
        Some(StoredObject { name: location.parse().ok()?, bytes: meta.size, changed })
    }
}

impl Store for CloudStore {
    fn place(&self) -> &str {
        &self.place
    }

    fn put_new(&self, name: &ObjectName, bytes: &[u8]) -> Result<Created, StoreError> {
        assert!(bytes.len() as u64 <= MAX_SMALL_BYTES, "only small objects are put");
        let (path, payload) = (self.path(name), bytes.to_vec().into());
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match self.io.wait(self.objects.put_opts(&path, payload, options)) {
            Ok(_) => Ok(Created::Mine),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {
                super::compare(self, name, bytes)
            }
            Err(error) => Err(self.bucket_error(name, &error)),
        }
    }

    fn upload(&self, name: &ObjectName, size: UploadSize) -> Result<Box<dyn Upload>, StoreError> {
        let path = self.path(name);
        let id = self.io.wait(self.objects.create_multipart(&path));
        let id = id.map_err(|error| self.bucket_error(name, &error))?;
        let target = upload::UploadTarget {
            objects: self.objects.clone(),
            path,
            id,
            io: self.io.clone(),
            place: self.place.clone(),
            name: name.clone(),
        };
        Ok(Box::new(CloudUpload::new(target, size)))
    }

    fn read(&self, name: &ObjectName, range: Range<u64>) -> Result<Vec<u8>, StoreError> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let path = self.path(name);
        match self.io.wait(self.objects.get_range(&path, range.clone())) {
            Ok(bytes) if bytes.len() as u64 == range.end - range.start => Ok(bytes.into()),
            Ok(bytes) => {
                let end = range.start + bytes.len() as u64;
                Err(super::too_short(&self.place, name, end, range.end))
            }
            Err(error) => {
                // Services say in words of their own that an object ends before the range.
                let told = self.error(name, &error);
                let bytes = if told.is_missing() { return Err(told) } else { self.size(name) };
                match bytes {
                    Ok(bytes) if bytes < range.end => {
                        Err(super::too_short(&self.place, name, bytes, range.end))
                    }
                    _ => Err(told),
                }
            }
        }
    }

    fn size(&self, name: &ObjectName) -> Result<u64, StoreError> {
        let path = self.path(name);
        let meta = self.io.wait(self.objects.head(&path));
        meta.map(|meta| meta.size).map_err(|error| self.error(name, &error))
    }

    fn list(&self) -> Result<Vec<StoredObject>, StoreError> {
        self.gather(self.objects.list(self.prefix()))
    }

    fn list_claims(&self) -> Result<Vec<StoredObject>, StoreError> {
        self.gather(self.objects.list(Some(&self.prefix.clone().join("claims"))))
    }

    fn list_checkpoints(&self) -> Result<Vec<StoredObject>, StoreError> {
        // Claims and the history, which grows with the run, come before the probes by name. A
        // service may list them all the same.
        let before = self.prefix.clone().join("probes");
        let found = self.gather(self.objects.list_with_offset(self.prefix(), &before))?;
        let apart = |object: &StoredObject| {
            !["", "claims", "history"].contains(&object.name.folder().as_str())
        };
        Ok(found.into_iter().filter(apart).collect())
    }

    fn delete(&self, name: &ObjectName) -> Result<(), StoreError> {
        let path = self.path(name);
        match self.io.wait(self.objects.delete(&path)) {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.error(name, &error)),
        }
    }

    fn sweep(&self, _before: u64) -> Result<u64, StoreError> {
        Ok(0)
    }
}

impl Display for Bucket<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let slash = if self.prefix.is_empty() { "" } else { "/" };
        write!(f, "{}://{}{slash}{}", self.service.scheme(), self.name, self.prefix)
    }
}

/// The thread of a store's requests.
pub(crate) struct Io(Option<Runtime>);

impl Io {
    fn start() -> std::io::Result<Self> {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).thread_name("store").enable_all();
        Ok(Self(Some(builder.build()?)))
    }

    /// Waits for a request.
    fn wait<T>(&self, request: impl Future<Output = T>) -> T {
        self.handle().block_on(request)
    }

    fn handle(&self) -> &Handle {
        self.0.as_ref().expect("it runs until it is dropped").handle()
    }
}

impl Drop for Io {
    /// Abandons the requests under way, so that this never blocks.
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

fn kind(error: &Error) -> ErrorKind {
    match error {
        Error::NotFound { .. } => ErrorKind::Missing,
        Error::PermissionDenied { .. }
        | Error::Unauthenticated { .. }
        | Error::InvalidPath { .. }
        | Error::NotSupported { .. }
        | Error::NotImplemented { .. }
        | Error::UnknownConfigurationKey { .. } => ErrorKind::Refuse,
        _ => ErrorKind::Retry,
    }
}

/// An error in one short line, without the options of a URL: a token may be among them.
fn words(error: &dyn Display) -> String {
    let text = error.to_string();
    let mut line = String::new();
    for word in text.split_whitespace() {
        let (shown, cut) = word.split_once('?').map_or((word, ""), |(before, _)| (before, "?…"));
        line.extend([if line.is_empty() { "" } else { " " }, shown, cut]);
    }
    match line.char_indices().nth(600) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_in_one_line_without_tokens() {
        let text = "error\n  at https://host/a?sig=secret&x=1: reset";
        assert_eq!(words(&text), "error at https://host/a?… reset");
        assert!(words(&"ä".repeat(2_000)).len() < 1_300);
    }
}

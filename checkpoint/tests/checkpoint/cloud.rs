//! Object stores: one in memory that does all right, and the same one with the faults of services.

use std::fmt::{self, Display};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use everstep_checkpoint::choose::{Wanted, newest};
use everstep_checkpoint::names::ObjectName;
use everstep_checkpoint::part::reader::verify;
use everstep_checkpoint::store::cloud::CloudStore;
use everstep_checkpoint::store::probe::probe;
use everstep_checkpoint::store::{
    Created, Environment, ErrorKind, Place, REQUEST_BYTES, Store, UploadSize, open,
};
use everstep_transport::protocol::Step;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartId, MultipartUpload,
    ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result,
};

use crate::fixture::Run;
use crate::suite;

/// What a service does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Nothing,
    /// The answer to a create is lost, and its second try finds the object.
    SecondTry,
    /// It answers 503.
    Away,
    /// It lets nobody in.
    Forbidden,
    /// It replaces what is there.
    IgnoresConditions,
    /// The bucket is not there.
    NoBucket,
    /// It answers no part before another one is under way, or two seconds have passed.
    SlowParts,
}

#[derive(Debug)]
struct Faulty {
    inner: InMemory,
    fault: Fault,
    in_flight: AtomicUsize,
    most_in_flight: AtomicUsize,
    largest: AtomicUsize,
    aborted: AtomicUsize,
}

impl Faulty {
    fn with(fault: Fault) -> Arc<Self> {
        Arc::new(Self {
            inner: InMemory::new(),
            fault,
            in_flight: AtomicUsize::new(0),
            most_in_flight: AtomicUsize::new(0),
            largest: AtomicUsize::new(0),
            aborted: AtomicUsize::new(0),
        })
    }

    fn refuse(&self, path: &Path) -> Result<()> {
        let source = |text: &str| -> Box<dyn std::error::Error + Send + Sync> { text.into() };
        let path = path.to_string();
        match self.fault {
            Fault::Away => Err(Error::Generic { store: "S3", source: source("503 SlowDown") }),
            Fault::Forbidden => Err(Error::PermissionDenied { path, source: source("403") }),
            Fault::NoBucket => Err(Error::NotFound { path, source: source("NoSuchBucket") }),
            Fault::Nothing | Fault::SecondTry | Fault::IgnoresConditions | Fault::SlowParts => {
                Ok(())
            }
        }
    }
}

impl Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.fault)
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        mut options: PutOptions,
    ) -> Result<PutResult> {
        self.refuse(path)?;
        if self.fault == Fault::IgnoresConditions {
            options.mode = PutMode::Overwrite;
        }
        let put = self.inner.put_opts(path, payload, options).await;
        let (path, source) = (path.to_string(), "412".into());
        match put {
            Ok(_) if self.fault == Fault::SecondTry => Err(Error::AlreadyExists { path, source }),
            put => put,
        }
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    // The trait's name, written raw: names of the house's own do not begin like this.
    async fn r#get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.refuse(path)?;
        self.inner.get_opts(path, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

#[async_trait]
impl MultipartStore for Faulty {
    async fn create_multipart(&self, path: &Path) -> Result<MultipartId> {
        self.refuse(path)?;
        self.inner.create_multipart(path).await
    }

    async fn put_part(
        &self,
        path: &Path,
        id: &MultipartId,
        number: usize,
        data: PutPayload,
    ) -> Result<PartId> {
        let now = self.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_in_flight.fetch_max(now, Ordering::SeqCst);
        self.largest.fetch_max(data.content_length(), Ordering::SeqCst);
        let is_alone = || self.most_in_flight.load(Ordering::SeqCst) < 2;
        for _ in 0..2_000 {
            if self.fault == Fault::SlowParts && is_alone() {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        }
        let put = self.inner.put_part(path, id, number, data).await;
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
        put
    }

    async fn complete_multipart(
        &self,
        path: &Path,
        id: &MultipartId,
        parts: Vec<PartId>,
    ) -> Result<PutResult> {
        self.inner.complete_multipart(path, id, parts).await
    }

    async fn abort_multipart(&self, path: &Path, id: &MultipartId) -> Result<()> {
        self.aborted.fetch_add(1, Ordering::SeqCst);
        self.inner.abort_multipart(path, id).await
    }
}

fn store(objects: &Arc<Faulty>) -> CloudStore {
    CloudStore::new(objects.clone(), "s3://bucket/runs".into(), "runs").expect("a store")
}

#[test]
fn an_object_store_does_what_every_store_must() {
    let objects = Faulty::with(Fault::Nothing);
    let open = || -> Box<dyn Store> { Box::new(store(&objects)) };
    suite::run(&open, &|_| {});
}

#[test]
fn i12_a_checkpoint_in_an_object_store_is_restored() {
    let objects = Faulty::with(Fault::Nothing);
    let store = store(&objects);
    let written = Run::with_moments(2).write(&store, Step(500));
    let found = newest(&store, Wanted::default()).expect("an answer").manifest.expect("one");
    assert_eq!(found, written);
    assert_eq!(verify(&store, &found, &mut |_| {}), Ok(vec![]));
}

#[test]
fn a_create_that_reports_its_own_second_try_as_present_is_ours() {
    let store = store(&Faulty::with(Fault::SecondTry));
    let name = ObjectName::Manifest(Step(5));
    assert_eq!(store.put_new(&name, b"mine"), Ok(Created::Mine));
    assert_eq!(store.put_new(&name, b"other"), Ok(Created::Theirs));
    probe(&store).expect("the probe believes the bytes, too");
}

#[test]
fn a_service_that_ignores_conditions_is_refused_by_name() {
    let error = probe(&store(&Faulty::with(Fault::IgnoresConditions))).expect_err("refused");
    assert_eq!(error.kind, ErrorKind::Refuse);
    assert!(error.to_string().starts_with("s3://bucket/runs: "), "{error}");
}

#[test]
fn errors_tell_the_caller_whether_to_try_again() {
    let name = ObjectName::Manifest(Step(5));
    for (fault, kind, words) in [
        (Fault::Away, ErrorKind::Retry, "503"),
        (Fault::Forbidden, ErrorKind::Refuse, "403"),
        (Fault::NoBucket, ErrorKind::Refuse, "no such bucket or container. Create it"),
    ] {
        let store = store(&Faulty::with(fault));
        let put = store.put_new(&name, b"x").expect_err("refused");
        let upload = store.upload(&name, UploadSize { head: 0, total: 1 });
        for error in [put, upload.err().expect("refused"), probe(&store).expect_err("refused")] {
            assert_eq!(error.kind, kind, "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}

#[test]
fn two_requests_of_8_mib_are_under_way_at_most() {
    let objects = Faulty::with(Fault::SlowParts);
    let store = store(&objects);
    let total = 70 << 20;
    let name = "model.safetensors".parse().expect("a name");
    let mut upload = store.upload(&name, UploadSize { head: 100, total }).expect("begun");
    let rest = vec![7; total as usize - 100];
    upload.write(&rest).expect("written");
    upload.finish(&[1; 100]).expect("finished");
    assert_eq!(store.size(&name), Ok(total));
    assert_eq!(objects.most_in_flight.load(Ordering::SeqCst), 2);
    assert_eq!(objects.largest.load(Ordering::SeqCst), REQUEST_BYTES);
    assert_eq!(objects.aborted.load(Ordering::SeqCst), 0);
}

#[test]
fn an_upload_that_is_given_up_is_aborted() {
    let objects = Faulty::with(Fault::Nothing);
    let store = store(&objects);
    let name = "model.safetensors".parse().expect("a name");
    let total = 30 << 20;
    let mut upload = store.upload(&name, UploadSize { head: 8, total }).expect("begun");
    upload.write(&vec![1; 20 << 20]).expect("written");
    drop(upload);
    // The abort is on the store's thread: any later request comes after it.
    for _ in 0..6_000 {
        if objects.aborted.load(Ordering::SeqCst) == 1 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("the service was not told");
}

#[test]
fn foreign_objects_and_those_of_other_prefixes_are_not_listed() {
    let objects = Faulty::with(Fault::Nothing);
    let put = |path: &str| {
        let other = CloudStore::new(objects.clone(), "s3://bucket".into(), path).expect("a store");
        other.put_new(&ObjectName::Manifest(Step(5)), b"{}").expect("put");
    };
    ["runs", "runs2", "runs/deeper", ""].into_iter().for_each(put);
    let names: Vec<_> =
        store(&objects).list().expect("listed").into_iter().map(|it| it.name).collect();
    assert_eq!(names, [ObjectName::Manifest(Step(5))]);
}

#[test]
fn a_bucket_without_a_folder_has_the_listings_of_any_store() {
    let place = "s3://bucket".into();
    let store = CloudStore::new(Faulty::with(Fault::Nothing), place, "").expect("a store");
    suite::lists_apart(&store);
}

#[test]
fn opening_a_url_sends_nothing_and_needs_only_the_environment() {
    let keys = [("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b")];
    let keys = keys.map(|(name, value)| (name.to_string(), value.to_string()));
    let environment: Environment = keys.into_iter().collect();
    let place: Place = "s3://bucket/a".parse().expect("a place");
    let store = open(&place, &environment).expect("a store");
    assert_eq!(store.place(), "s3://bucket/a");
}

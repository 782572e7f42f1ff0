//! What every store must do. The tests run it on a directory and on an object store in memory.
//! `examples/store_suite.rs` runs it on any URL.

use std::sync::atomic::{AtomicU64, Ordering};

use everstep_checkpoint::claims::{self, Claim, Standing};
use everstep_checkpoint::names::{FileName, ObjectName, PartName};
use everstep_checkpoint::store::probe::probe;
use everstep_checkpoint::store::{Created, ErrorKind, Store, StoreError, StoredObject, UploadSize};
use everstep_transport::protocol::{CheckpointId, Generation, Step, WorkerId};

/// Opens the same place again, as another process does.
pub type Open<'a> = &'a (dyn Fn() -> Box<dyn Store> + Sync);

/// Runs everything on an empty place. Panics at the first promise that is not kept. `told` is
/// called with each step in words.
pub fn run(open: Open<'_>, told: &dyn Fn(&str)) {
    let store = open();
    assert_eq!(store.list().expect("listed"), [], "the suite needs an empty place");
    told("probe");
    probe(&*store).expect("a store that keeps checkpoints");
    assert_eq!(store.list().expect("listed"), [], "the probe left nothing");
    told("create once, whoever is first");
    creates_once(&*store);
    told("one winner of eight creators");
    has_one_winner(open);
    told("claims of eight clusters");
    claims_are_apart(open);
    told("a large object in parts, with the head last");
    uploads(&*store);
    told("an upload that is given up");
    gives_up(&*store);
    told("ranges, sizes, and what is missing");
    reads(&*store);
    told("list and delete");
    lists_and_deletes(&*store);
    told("list claims alone, and checkpoints alone");
    lists_apart(&*store);
}

/// Lists the claims and the checkpoints of an empty store without the other objects.
pub fn lists_apart(store: &dyn Store) {
    let id = CheckpointId { step: Step(5), generation: Generation(1) };
    let manifest = ObjectName::Manifest(Step(5));
    let (claim, probe) = (ObjectName::Claim(1), ObjectName::Probe(7));
    let top = ObjectName::File(FileName::config());
    let history = [ObjectName::Lines(id), ObjectName::Events(id)];
    let all = [&[claim.clone(), probe.clone(), manifest.clone(), top][..], &history].concat();
    for name in &all {
        assert_eq!(store.put_new(name, b"{}"), Ok(Created::Mine), "{name}");
    }
    let names = |listing: Result<Vec<StoredObject>, StoreError>| {
        listing.expect("listed").into_iter().map(|object| object.name).collect::<Vec<_>>()
    };
    assert_eq!(names(store.list()).len(), all.len());
    assert_eq!(names(store.list_claims()), [claim]);
    assert_eq!(names(store.list_checkpoints()), [probe, manifest]);
    all.iter().for_each(|name| store.delete(name).expect("deleted"));
    assert_eq!(store.list_checkpoints(), Ok(vec![]));
}

fn part(worker: u64) -> ObjectName {
    let name = PartName { generation: Generation(1), worker: WorkerId(worker), claim: 1 };
    ObjectName::Part(Step(5), name)
}

/// Bytes that differ everywhere, so that a part in a wrong place is noticed.
fn pattern(length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn creates_once(store: &dyn Store) {
    let name = ObjectName::Manifest(Step(5));
    assert_eq!(store.put_new(&name, b"mine"), Ok(Created::Mine));
    assert_eq!(store.put_new(&name, b"theirs"), Ok(Created::Theirs));
    assert_eq!(store.put_new(&name, b"mine"), Ok(Created::Mine), "the bytes decide");
    assert_eq!(store.put_new(&name, b""), Ok(Created::Theirs));
    assert_eq!(store.read_whole(&name, 100).expect("read"), b"mine");
    store.delete(&name).expect("deleted");
    assert_eq!(store.put_new(&name, b""), Ok(Created::Mine), "it is free again");
    assert_eq!(store.read_whole(&name, 100).expect("read"), b"");
    store.delete(&name).expect("deleted");
}

fn has_one_winner(open: Open<'_>) {
    let winners = AtomicU64::new(0);
    let create = |index: u64| {
        let created = open().put_new(&ObjectName::Manifest(Step(6)), &index.to_le_bytes());
        if created.expect("an answer") == Created::Mine {
            winners.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        (0..8).for_each(|index| drop(scope.spawn(move || create(index))));
    });
    assert_eq!(winners.into_inner(), 1);
    open().delete(&ObjectName::Manifest(Step(6))).expect("deleted");
}

fn claims_are_apart(open: Open<'_>) {
    let stands = |index: u64| {
        let (run, nonce) = ("r".to_string(), index.to_string());
        let claim = Claim { run, cluster: nonce.clone(), nonce };
        let store = open();
        let listing = store.list_claims().expect("listed");
        claims::hold(&*store, &listing, &claim, None).expect("an answer")
    };
    std::thread::scope(|scope| {
        (0..8).for_each(|index| drop(scope.spawn(move || stands(index))));
    });
    let holders = (0..8).filter(|index| stands(*index) == Standing::Holds(8));
    assert_eq!(holders.count(), 1);
    let store = open();
    (1..=8).for_each(|it| store.delete(&ObjectName::Claim(it)).expect("deleted"));
}

fn uploads(store: &dyn Store) {
    // Nothing after the head, less than a part, exactly two parts, and a part that is cut short.
    for length in [0, 1_000, (16 << 20) - 99, (20 << 20) + 12_345] {
        let (head, data) = (vec![b'h'; 99], pattern(length));
        let size = UploadSize { head: 99, total: 99 + data.len() as u64 };
        let mut upload = store.upload(&part(1), size).expect("begun");
        data.chunks(3 << 20).for_each(|piece| upload.write(piece).expect("written"));
        upload.finish(&head).expect("finished");
        assert_eq!(store.size(&part(1)), Ok(size.total));
        let whole = store.read(&part(1), 0..size.total).expect("read");
        assert!(whole == [head, data].concat(), "{length} bytes after the head");
    }
}

fn gives_up(store: &dyn Store) {
    let size = UploadSize { head: 8, total: 100 };
    let mut upload = store.upload(&part(2), size).expect("begun");
    upload.write(&[1; 50]).expect("written");
    drop(upload);
    let error = store.size(&part(2)).expect_err("nothing remains");
    assert_eq!(error.kind, ErrorKind::Missing, "{error}");
}

fn reads(store: &dyn Store) {
    let name = part(3);
    let data = pattern(10_000);
    let size = UploadSize { head: 0, total: 10_000 };
    let mut upload = store.upload(&name, size).expect("begun");
    upload.write(&data).expect("written");
    upload.finish(&[]).expect("finished");
    for range in [0..10_000, 0..1, 9_999..10_000, 1_234..5_678, 7..7] {
        let read = store.read(&name, range.clone()).expect("read");
        assert_eq!(read, data[range.start as usize..range.end as usize], "{range:?}");
    }
    for range in [0..10_001, 9_999..10_001, 20_000..20_010] {
        let error = store.read(&name, range.clone()).expect_err("beyond the end");
        assert_eq!(error.kind, ErrorKind::Damaged, "{range:?}: {error}");
    }
    let error = store.read_whole(&name, 9_999).expect_err("larger than expected");
    assert_eq!(error.kind, ErrorKind::Damaged, "{error}");
    for error in [
        store.read(&part(4), 0..1).expect_err("not there"),
        store.read_whole(&part(4), 10).expect_err("not there"),
        store.size(&part(4)).expect_err("not there"),
    ] {
        assert_eq!(error.kind, ErrorKind::Missing, "{error}");
    }
}

fn lists_and_deletes(store: &dyn Store) {
    let manifest = ObjectName::Manifest(Step(5));
    store.put_new(&manifest, b"{}").expect("put");
    let listed: Vec<_> =
        store.list().expect("listed").into_iter().map(|it| (it.name, it.bytes)).collect();
    let (first, third) = (99 + (20 << 20) + 12_345, 10_000);
    assert_eq!(listed, [(manifest.clone(), 2), (part(1), first), (part(3), third)]);
    for name in [&manifest, &part(1), &part(3), &part(3), &part(9)] {
        store.delete(name).expect("deleted, or gone already");
    }
    assert_eq!(store.list().expect("listed"), []);
}

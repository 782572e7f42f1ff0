//! What a full disk does to a store: `full_disk DIR`, a small disk of its own that
//! `tests/checkpoint/full.sh` mounts. It panics if anything half-written remains.

#[path = "../tests/checkpoint/fixture.rs"]
mod fixture;

use std::path::Path;

use everstep_checkpoint::choose::{Wanted, newest};
use everstep_checkpoint::part::reader::verify;
use everstep_checkpoint::store::directory::DirectoryStore;
use everstep_checkpoint::store::{ErrorKind, Store};
use everstep_transport::protocol::Step;

use fixture::Run;

fn main() {
    let directory = std::env::args().nth(1).expect("usage: full_disk DIR");
    let directory = Path::new(&directory);
    let store = DirectoryStore::open(directory).expect("a store");
    let run = Run::with_moments(2);
    run.write(&store, Step(5));

    // Fill the disk to the last byte.
    let ballast = directory.join("ballast");
    let filled = std::fs::write(&ballast, vec![0; 8 << 20]).expect_err("a disk of 2 MB");
    assert_eq!(filled.kind(), std::io::ErrorKind::StorageFull);

    let shards: Vec<u32> = (0..run.shards()).collect();
    let plan = || run.plan(Step(10), 11, &shards);
    let error = run.write_part(&store, plan()).expect_err("no room");
    println!("  {error}");
    assert_eq!(error.kind, ErrorKind::Retry, "a place that is full is waited for");
    let manifest = everstep_checkpoint::names::ObjectName::Manifest(Step(10));
    let error = store.put_new(&manifest, &[b' '; 100_000]).expect_err("no room");
    println!("  {error}");
    assert_eq!(error.kind, ErrorKind::Retry);
    let folder = directory.join("step-000010");
    let left = std::fs::read_dir(&folder).map_or(0, Iterator::count);
    assert_eq!(left, 0, "nothing half-written is left");
    let choice = newest(&store, Wanted::default()).expect("an answer");
    let older = choice.manifest.expect("the older one");
    assert_eq!((older.step, verify(&store, &older, &mut |_| {})), (Step(5), Ok(vec![])));

    std::fs::remove_file(ballast).expect("removed");
    let part = run.write_part(&store, plan()).expect("there is room");
    let manifest = run.manifest(Step(10), &[part]);
    store.put_new(&manifest.name(), &manifest.to_bytes()).expect("there is room");
    assert_eq!(verify(&store, &manifest, &mut |_| {}), Ok(vec![]));
    println!("full disk: all right");
}

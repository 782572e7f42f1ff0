//! I12: a checkpoint that is listed can be restored at any number of workers to the same bits.

use everstep_checkpoint::choose::{Wanted, exactly, newest};
use everstep_checkpoint::digest::shard_digest;
use everstep_checkpoint::part::reader::{CheckpointReader, verify};
use everstep_checkpoint::store::Store;
use everstep_checkpoint::store::directory::DirectoryStore;
use everstep_kernels::optimizer::ShardState;
use everstep_transport::protocol::{Shard, Step};
use safetensors::SafeTensors;

use crate::fixture::Run;

#[test]
fn i12_any_number_of_workers_restores_the_same_bits() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = DirectoryStore::open(folder.path()).expect("a store");
    for moments in 0..=2 {
        let (run, step) = (Run::with_moments(moments), Step(10 + moments as u64));
        let written = run.write(&store, step);
        let manifest = exactly(&store, step, Some(&run.identity)).expect("found");
        assert_eq!(manifest, written);
        for workers in 1..=5 {
            let mut restored: Vec<(Shard, ShardState)> = Vec::new();
            for worker in 0..workers {
                let mut reader = CheckpointReader::new(&store, &manifest);
                let owned = (0..run.shards()).filter(|shard| shard % workers == worker);
                restored.extend(
                    owned.map(Shard).map(|shard| (shard, reader.read(shard).expect("whole"))),
                );
            }
            restored.sort_by_key(|(shard, _)| *shard);
            let expected = (0..run.shards()).map(Shard).map(|it| (it, run.state(step, it)));
            assert_eq!(restored, expected.collect::<Vec<_>>(), "{workers} workers");
        }
    }
}

#[test]
fn a_writers_digest_is_the_leaf_of_the_state_hash() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = DirectoryStore::open(folder.path()).expect("a store");
    let (run, step) = (Run::with_moments(2), Step(3));
    let summary = run.write_part(&store, run.plan(step, 1, &[1, 4])).expect("written");
    for (shard, digest) in summary.shards {
        let ShardState { master, moments } = run.state(step, shard);
        let slots = std::iter::once(&master).chain(&moments).map(Vec::as_slice);
        assert_eq!(shard_digest(step, slots), digest);
    }
}

#[test]
fn any_program_reads_a_part() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = DirectoryStore::open(folder.path()).expect("a store");
    let (run, step) = (Run::with_moments(1), Step(500));
    run.write(&store, step);
    let path = folder.path().join("step-000500/g0007-w11.safetensors");
    let bytes = std::fs::read(path).expect("a file");
    let part = SafeTensors::deserialize(&bytes).expect("valid");
    let mut names = part.names();
    names.sort_unstable();
    let both = |shard: u32| [format!("{shard:06}.m"), format!("{shard:06}.master")];
    assert_eq!(names, [both(0), both(2), both(4)].concat());
    let moment = part.tensor("000004.m").expect("named");
    let expected = &run.state(step, Shard(4)).moments[0];
    let expected: Vec<u8> = expected.iter().flat_map(|value| value.to_le_bytes()).collect();
    assert_eq!((moment.shape(), moment.data()), (&[904][..], &expected[..]));
}

#[test]
fn the_newest_whole_checkpoint_is_taken_and_any_other_one_on_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = DirectoryStore::open(folder.path()).expect("a store");
    let run = Run::with_moments(2);
    assert_eq!(newest(&store, Wanted::default()), Ok(Default::default()), "nothing, and no error");
    for step in [0, 5, 1_000_000] {
        run.write(&store, Step(step));
    }
    let found = |wanted: Wanted<'_>| {
        newest(&store, wanted).expect("an answer").manifest.map(|manifest| manifest.step)
    };
    assert_eq!(found(Wanted::default()), Some(Step(1_000_000)));
    assert_eq!(found(Wanted { below: Some(Step(1_000_000)), ..Wanted::default() }), Some(Step(5)));
    assert_eq!(found(Wanted { below: Some(Step(0)), ..Wanted::default() }), None);
    assert_eq!(exactly(&store, Step(5), None).map(|it| it.step), Ok(Step(5)));
    let words = exactly(&store, Step(7), None).expect_err("none").to_string();
    assert!(
        words.contains("no checkpoint of step 7") && words.contains("1000000, 5, 0"),
        "{words}"
    );
}

#[test]
fn a_copied_folder_is_a_checkpoint() {
    let folder = tempfile::tempdir().expect("a folder");
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    let store = DirectoryStore::open(&from).expect("a store");
    let manifest = Run::with_moments(2).write(&store, Step(5));
    let copy = DirectoryStore::open(&to).expect("a store");
    std::fs::create_dir(to.join("step-000005")).expect("made");
    for object in store.list().expect("listed") {
        let name = object.name.to_string();
        std::fs::copy(from.join(&name), to.join(&name)).expect("copied");
    }
    let mut bytes = 0;
    assert_eq!(verify(&copy, &manifest, &mut |it| bytes += it), Ok(vec![]));
    assert_eq!(bytes, 5_000 * 12, "progress counts everything once");
}

//! The end of a run, and the end again in a generation that begins after it.

use everstep_kernels::buffer::Shared;
use everstep_transport::protocol::{DataShard, Shard, Step, WorkerId};
use everstep_worker::step::event::{Job, Report, ShardOrigin, Summary};

use crate::support::{SHARDS, TestDevice, enter, run};

fn finish(data_shards: std::ops::Range<u32>) -> Job {
    let data_shards = data_shards.map(DataShard).collect();
    Job::Finish { version: Step(2), data_shards }
}

/// Ends the run: returns the summary, and the masters to write.
fn end(
    test_device: &mut TestDevice,
    data_shards: std::ops::Range<u32>,
) -> (Summary, Vec<(Shard, Shared)>) {
    let reports = test_device.give(finish(data_shards));
    let Some(Report::Finished(summary)) = reports.last() else { panic!("{reports:?}") };
    let master = |report| match report {
        Report::Exported { to: WorkerId(7), shard, values } => (shard, values),
        other => panic!("{other:?}"),
    };
    let masters =
        test_device.give(Job::Masters { to: WorkerId(7) }).into_iter().map(master).collect();
    (summary.clone(), masters)
}

fn open(test_device: &mut TestDevice) {
    assert!(matches!(test_device.give(Job::Open).as_slice(), [Report::Opened]));
}

fn write(test_device: &mut TestDevice, masters: &[(Shard, Shared)]) -> Vec<Report> {
    let job = |(shard, values): &(Shard, Shared)| {
        let (shard, values) = (*shard, Shared::clone(values));
        test_device.give(Job::Write { shard, values })
    };
    masters.iter().flat_map(job).collect()
}

#[test]
fn the_end_is_done_anew_and_the_counters_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut test_device = TestDevice::of(&run(), Some(folder.path().to_path_buf()));
    test_device.give(enter(1, ShardOrigin::Seed, 0..SHARDS));
    test_device.train(1, 0..SHARDS);
    test_device.train(2, 0..SHARDS);
    let (first, masters) = end(&mut test_device, 0..4);
    open(&mut test_device);
    assert_eq!((first.evaluations.len(), first.digests.len()), (4, SHARDS as usize));
    assert_eq!(first.data_shards_computed, 16);
    assert!(write(&mut test_device, &masters[..5]).is_empty(), "not all of it has come");

    test_device.give(enter(2, ShardOrigin::Held, 0..SHARDS));
    let (again, masters) = end(&mut test_device, 2..8);
    assert!(
        write(&mut test_device, &masters).is_empty(),
        "nobody has opened it in this generation"
    );
    open(&mut test_device);
    assert_eq!(again.evaluations.len(), 6);
    assert_eq!(again.evaluations[..2], first.evaluations[2..]);
    assert_eq!((&again.digests, again.data_shards_computed), (&first.digests, 16));
    assert!(matches!(write(&mut test_device, &masters).as_slice(), [Report::Written]));

    test_device.give(enter(3, ShardOrigin::Held, 0..SHARDS));
    let (_, masters) = end(&mut test_device, 0..8);
    open(&mut test_device);
    assert!(matches!(write(&mut test_device, &masters).as_slice(), [Report::Written]));
    let files: Vec<_> = std::fs::read_dir(folder.path()).expect("read").collect();
    assert_eq!(files.len(), 1, "the model and nothing else: {files:?}");
}

#[test]
fn a_directory_that_is_gone_is_told_of_and_the_file_is_begun_anew() {
    let folder = tempfile::tempdir().expect("a folder");
    let runs = folder.path().join("runs");
    std::fs::create_dir(&runs).expect("made");
    let mut test_device = TestDevice::of(&run(), Some(runs.clone()));
    test_device.give(enter(1, ShardOrigin::Seed, 0..SHARDS));
    test_device.train(1, 0..SHARDS);
    test_device.train(2, 0..SHARDS);
    let (_, masters) = end(&mut test_device, 0..4);
    std::fs::remove_dir(&runs).expect("gone");
    std::fs::write(&runs, b"a file in its place").expect("written");
    assert!(matches!(test_device.give(Job::Open).as_slice(), [Report::Unwritten(_)]));
    assert!(write(&mut test_device, &masters).is_empty(), "what comes meanwhile is discarded");

    std::fs::remove_file(&runs).expect("gone");
    std::fs::create_dir(&runs).expect("back");
    open(&mut test_device);
    assert!(write(&mut test_device, &masters[..3]).is_empty());
    std::fs::remove_dir_all(&runs).expect("gone");
    let last = write(&mut test_device, &masters[3..]);
    assert!(matches!(last.as_slice(), [Report::Unwritten(_)]), "no rename succeeds");

    std::fs::create_dir(&runs).expect("back");
    open(&mut test_device);
    assert!(matches!(write(&mut test_device, &masters).as_slice(), [Report::Written]));
}

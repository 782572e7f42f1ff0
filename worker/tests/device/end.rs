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

#[test]
fn the_end_is_done_anew_and_the_counters_go_on() {
    let mut test_device = TestDevice::of(&run());
    test_device.give(enter(1, ShardOrigin::Seed, 0..SHARDS));
    test_device.train(1, 0..SHARDS);
    test_device.train(2, 0..SHARDS);
    let (first, masters) = end(&mut test_device, 0..4);
    assert_eq!((first.evaluations.len(), first.digests.len()), (4, SHARDS as usize));
    assert_eq!((first.data_shards_computed, masters.len()), (16, SHARDS as usize));

    test_device.give(enter(2, ShardOrigin::Held, 0..SHARDS));
    let (again, masters_again) = end(&mut test_device, 2..8);
    assert_eq!(again.evaluations.len(), 6);
    assert_eq!(again.evaluations[..2], first.evaluations[2..]);
    assert_eq!((&again.digests, again.data_shards_computed), (&first.digests, 16));
    let is_same = |((shard, values), (of, again)): (&(Shard, Shared), &(Shard, Shared))| {
        shard == of && values[..] == again[..]
    };
    assert!(masters.iter().zip(&masters_again).all(is_same), "the same weights");
}

//! The end of a run, and the end again in a generation that begins after it.

use everstep_kernels::buffer::Shared;
use everstep_transport::protocol::{DataShard, Shard, Step};
use everstep_worker::step::event::{Job, Origin, Report, Summary};

use crate::support::{Bench, SHARDS, enter, run};

fn finish(data_shards: std::ops::Range<u32>) -> Job {
    let data_shards = data_shards.map(DataShard).collect();
    Job::Finish { version: Step(2), data_shards }
}

/// What the end says: the summary, and the masters to be written.
fn ended(reports: Vec<Report>) -> (Summary, Vec<(Shard, Shared)>) {
    let mut masters = Vec::new();
    for report in reports {
        match report {
            Report::Exported { shard, values } => masters.push((shard, values)),
            Report::Finished(summary) => return (summary, masters),
            other => panic!("{other:?}"),
        }
    }
    panic!("nothing has finished")
}

fn write(bench: &mut Bench, masters: &[(Shard, Shared)]) -> Vec<Report> {
    let job = |(shard, values): &(Shard, Shared)| {
        let (shard, values) = (*shard, Shared::clone(values));
        bench.give(Job::Write { shard, values })
    };
    masters.iter().flat_map(job).collect()
}

#[test]
fn the_end_is_done_anew_and_the_counters_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut bench = Bench::of(&run(), Some(folder.path().to_path_buf()));
    bench.give(enter(1, Origin::Seed, 0..SHARDS));
    bench.train(1, 0..SHARDS);
    bench.train(2, 0..SHARDS);
    let (first, masters) = ended(bench.give(finish(0..4)));
    assert_eq!((first.evaluations.len(), first.digests.len()), (4, SHARDS as usize));
    assert_eq!(first.data_shards_computed, 16);
    assert!(write(&mut bench, &masters[..5]).is_empty(), "not all of it has come");

    bench.give(enter(2, Origin::Held, 0..SHARDS));
    let (again, masters) = ended(bench.give(finish(2..8)));
    assert_eq!(again.evaluations.len(), 6);
    assert_eq!(again.evaluations[..2], first.evaluations[2..]);
    assert_eq!((&again.digests, again.data_shards_computed), (&first.digests, 16));
    assert!(matches!(write(&mut bench, &masters).as_slice(), [Report::Written]));

    bench.give(enter(3, Origin::Held, 0..SHARDS));
    let (_, masters) = ended(bench.give(finish(0..8)));
    assert!(matches!(write(&mut bench, &masters).as_slice(), [Report::Written]));
    let files: Vec<_> = std::fs::read_dir(folder.path()).expect("read").collect();
    assert_eq!(files.len(), 1, "the model and nothing else: {files:?}");
}

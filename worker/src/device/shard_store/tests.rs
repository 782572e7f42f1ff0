use std::collections::VecDeque;
use std::sync::Arc;

use everstep_kernels::layout::Init;
use everstep_transport::protocol::{Generation, exemplars};
use everstep_transport::time::Time;

use super::*;
use crate::registry::Registry;
use crate::step::event::Gradient;

/// Keeps the reports. The jobs that wait are updates.
#[derive(Default)]
struct CollectedReports(Vec<Report>, VecDeque<Job>);

impl DeviceChannel for CollectedReports {
    fn report(&mut self, report: Report) {
        self.0.push(report);
    }
    fn wait(&mut self) -> Option<Job> {
        None
    }
    fn next_updates(&mut self, _step: Step, most: usize) -> Vec<Job> {
        self.1.drain(..most.min(self.1.len())).collect()
    }
    fn now(&self) -> Time {
        Time(0)
    }
}

/// The owner of all shards of so many weights, and the primary of most.
fn owner(weights: usize) -> ShardStore {
    let mut layout = Layout::new();
    layout.push("weights", &[weights], Init::Normal { deviation: 0.1 });
    let shards = reduce::shard_count(weights) as u32;
    let run = exemplars::run();
    let optimizer = Registry::new().build_optimizer(&run).expect("a valid optimizer");
    let initial = InitialParameters::Seed(run.seed);
    let mut store = ShardStore::new(&run, initial, layout, optimizer, Pool::new(1 << 20));
    let owned = (0..shards).map(|shard| (Shard(shard), shard % 3 != 2)).collect();
    let (generation, origin, syncing) = (Generation(1), ShardOrigin::Seed, Vec::new());
    let enter = Job::Enter { generation, origin, owned, syncing };
    store.handle(enter, &mut CollectedReports::default(), &mut |_, _| {}).expect("it enters");
    store
}

/// The owner of two shards, in one of which a bit has flipped.
fn flipped() -> ShardStore {
    let mut store = owner(2_048);
    let copy = store.copies.get_mut(&Shard(1)).expect("owned");
    let weight = &mut Arc::get_mut(&mut copy.state).expect("not shared").master[3];
    *weight = f32::from_bits(weight.to_bits() ^ 1);
    store
}

#[test]
fn parameters_that_changed_in_memory_are_not_shared() {
    let mut store = flipped();
    let mut shares = |shard| {
        let share = Job::Share { to: WorkerId(7), shards: vec![Shard(shard)] };
        let mut reports = CollectedReports::default();
        let done = store.handle(share, &mut reports, &mut |_, _| {});
        (done.is_ok(), reports.0.len())
    };
    assert_eq!((shares(0), shares(1)), ((true, 1), (false, 0)));
}

#[test]
fn weights_that_changed_in_memory_are_not_written() {
    let store = flipped();
    let masters: Vec<_> = store.masters().collect();
    assert!(matches!(&masters[..], [Ok((Shard(0), _)), Err(_)]));
    assert!(store.seal().is_err(), "nor do they enter the state hash");
}

/// What three steps make, with a checkpoint of the second one being written: all that was written,
/// and all that was reported.
fn trained(threads: usize) -> (Vec<(usize, Vec<f32>)>, Vec<String>) {
    const WEIGHTS: usize = 20_000;
    let mut store = ShardStore { threads: Threads::new(threads), ..owner(WEIGHTS) };
    let shards = reduce::shard_count(WEIGHTS) as u32;
    let (mut written, mut channel) = (Vec::new(), CollectedReports::default());
    let mut being_saved = Vec::new();
    for step in 1..=3 {
        let update = |shard| {
            let length = reduce::shard_range(WEIGHTS, shard as usize).len();
            let value = |index| (index as f32 + step as f32) * 0.01 - shard as f32;
            let values: Vec<f32> = (0..length).map(value).collect();
            let gradient = Gradient {
                digest: reduce::digest(0, &values),
                values: Shared::new(Buffer::detached(values)),
            };
            let (step, shard) = (Step(step), Shard(shard));
            let gradient = Some(gradient);
            Job::Update { shard, step, norm: 1.0, factor: 1.0, update: step.0, gradient }
        };
        channel.1 = (0..shards).map(update).collect();
        while let Some(job) = channel.1.pop_front() {
            let mut write = |start, values: &[f32]| written.push((start, values.to_vec()));
            store.handle_with_next(job, &mut channel, &mut write).expect("all is well");
        }
        if step == 2 {
            being_saved = (0..shards).map(|it| store.to_save(Shard(it), Step(2))).collect();
        }
    }
    let digests = being_saved.iter().map(|it| (it.digest, it.state.digest(2)));
    assert!(digests.into_iter().all(|(made, now)| made == now), "what is being saved stays");
    let reported = channel.0.iter().map(|report| match report {
        Report::Updated { version, shard, digest, parameters } => {
            let digests = parameters.as_ref().map(|values| reduce::digest(0, values));
            format!("{version} {shard} {digest} {digests:?}")
        }
        report => format!("{report:?}"),
    });
    (written, reported.collect())
}

#[test]
fn threads_that_share_the_updates_make_what_one_makes_in_the_same_order() {
    let (written, reported) = trained(1);
    assert!(written.len() > 30, "many shards: {}", written.len());
    assert!(
        reported.iter().any(|it| it.contains("Some"))
            && reported.iter().any(|it| it.contains("None"))
    );
    assert_eq!(trained(3), (written, reported));
}

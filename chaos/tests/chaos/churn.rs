//! Workers that come and go for a long time, and devices that hang.

use std::time::Duration;

use everstep_chaos::check::Invariant;
use everstep_chaos::fault::{Fault, Rates, Schedule};
use everstep_chaos::simulate::Simulation;
use everstep_chaos::toy;
use everstep_chaos::world::{Endured, Failure, NodeId, Prepare};
use everstep_coordinator::node;
use everstep_coordinator::plant::CorePlant;
use everstep_transport::protocol::run::Precision;
use everstep_transport::time::Time;
use everstep_worker::plant::Plant as Bug;

use crate::support::{OF_COPIES, OF_ONE_COPY, OF_THREE_COPIES};

fn at(ms: u64, fault: Fault) -> (Time, Fault) {
    (Time(0) + Duration::from_millis(ms), fault)
}

fn ignoring_the_tree() -> Prepare {
    Prepare {
        coordinator: |now, options, kept, history| {
            node::Node::planted(now, options, kept, history, CorePlant::IgnoreTree)
        },
        ..Prepare::default()
    }
}

fn ignoring_hangs() -> Prepare {
    Prepare {
        coordinator: |now, options, kept, history| {
            node::Node::planted(now, options, kept, history, CorePlant::IgnoreHangs)
        },
        ..Prepare::default()
    }
}

/// Eight workers and 64 data shards, of a run that lasts longer than `seconds`.
fn eight(seconds: u64, prepare: Prepare) -> Simulation {
    let mut run = toy::long_run();
    (run.steps, run.batch.data_shards, run.batch.micro_batch) = (5 * seconds, 64, 1);
    let span = Duration::from_secs(seconds);
    let cluster = Simulation::of(run, 8, span, Rates::none()).expect("without a fault");
    cluster.prepared(prepare).precise(Precision::F32).coordinated(1)
}

/// Every three seconds another worker dies, and a new one starts in its place.
fn churn(cycles: u64) -> Schedule {
    let crash = |cycle: u64| {
        let restart = Some(Duration::from_millis(300));
        at(
            1_000 + 3_000 * cycle,
            Fault::Crash { node: NodeId::Worker(5 * cycle as usize % 8), restart },
        )
    };
    Schedule((0..cycles).map(crash).collect())
}

/// The checkers examine every record: see `check/subtrees.rs`.
#[test]
fn i24_churn_leaves_data_shards_in_blocks() {
    let endured = eight(36, Prepare::default()).endure(OF_COPIES, &churn(11)).result;
    let changes = endured.expect("it is borne").changes;
    assert_eq!((changes.lost, changes.rollbacks), (11, 0), "{changes:?}");
}

fn ignoring_pace() -> Prepare {
    Prepare {
        coordinator: |now, options, kept, history| {
            node::Node::planted(now, options, kept, history, CorePlant::IgnorePace)
        },
        ..Prepare::default()
    }
}

/// From the third second on two of eight devices take longer. One of them recovers.
fn slow_devices() -> Schedule {
    let slow = |at_ms: u64, slot: usize, permille: u32, seconds: u64| {
        let (node, span) = (NodeId::Worker(slot), Duration::from_secs(seconds));
        at(at_ms, Fault::SlowDevice { node, permille, span })
    };
    Schedule(vec![slow(3_000, 1, 2_000, 600), slow(3_000, 6, 3_000, 200)])
}

/// The checker of I27 examines the shares as soon as a leader has had its time.
#[test]
fn i27_slow_devices_get_fewer_data_shards_and_get_them_back() {
    let schedule = slow_devices();
    let endured = eight(400, Prepare::default()).endure(OF_COPIES, &schedule).result;
    let changes = endured.expect("it is borne").changes;
    assert_eq!((changes.lost, changes.rollbacks), (0, 0), "{changes:?}");
}

#[test]
fn i27_a_leader_that_leaves_data_shards_with_slow_devices_is_found() {
    let found = eight(400, ignoring_pace()).endure(OF_COPIES, &slow_devices()).result;
    let found = found.expect_err("a step takes three times as long as it must");
    assert_eq!(found.invariant(), Some(Invariant::I27), "{found}");
}

fn median(mut numbers: Vec<u64>) -> u64 {
    numbers.sort_unstable();
    numbers[numbers.len() / 2]
}

/// A hundred workers die, and a hundred start in their places. At the end a step takes as much
/// traffic as at first. A worker keeps the sums that it sends until the commit, so it also takes as
/// much memory.
#[test]
fn i24_a_hundred_cycles_of_loss_and_join_leave_the_traffic_of_a_step_as_it_was() {
    let endured = eight(303, Prepare::default()).endure(OF_COPIES, &churn(100)).result;
    let endured = endured.expect("it is borne");
    assert_eq!((endured.changes.lost, endured.changes.rollbacks), (100, 0));
    let elements: Vec<u64> = endured.elements.into_values().collect();
    // The first worker dies after a second. No later step needs the parameters of the last one.
    let first = median(elements[1..4].to_vec());
    let last = median(elements[elements.len() - 11..elements.len() - 1].to_vec());
    assert!(last.abs_diff(first) * 10 <= first, "{first} elements at first, {last} at last");
}

#[test]
fn i24_data_shards_that_are_dealt_out_whatever_the_tree_are_found() {
    let found = eight(6, ignoring_the_tree()).endure(OF_COPIES, &churn(1)).result;
    let found = found.expect_err("it is found");
    assert_eq!(found.invariant(), Some(Invariant::I24), "{found}");
}

/// Four workers and `data_shards` data shards, for tests of hanging devices.
fn four(data_shards: u32, prepare: Prepare) -> Simulation {
    let mut run = toy::long_run();
    (run.steps, run.batch.data_shards) = (300, data_shards);
    let span = Duration::from_secs(80);
    let cluster = Simulation::of(run, 4, span, Rates::none()).expect("without a fault");
    cluster.prepared(prepare).precise(Precision::F32).coordinated(1)
}

fn measuring_anew() -> Prepare {
    Prepare { worker: |core| core.plant(Bug::MeasureAnew), ..Prepare::default() }
}

/// The device of a worker hangs at `ms` for `for_ms`.
fn hang_at(ms: u64, worker: usize, for_ms: u64) -> (Time, Fault) {
    let span = Duration::from_millis(for_ms);
    at(ms, Fault::Hang { node: NodeId::Worker(worker), span })
}

/// Four workers. The device of one hangs for `ms`.
fn hang(seed: u64, ms: u64, prepare: Prepare) -> Result<Endured, Option<Invariant>> {
    let endured = four(toy::long_run().batch.data_shards, prepare)
        .endure(seed, &Schedule(vec![hang_at(3_000, 1, ms)]))
        .result;
    endured.map_err(|failure| {
        println!("{failure}");
        failure.invariant()
    })
}

/// A worker's device hangs at different moments around a planned change of generation. Returns the
/// run's result for each moment.
fn after_a_join() -> Vec<Result<Endured, Failure>> {
    let four = four(4, Prepare::default());
    let join = at(3_000, Fault::Join { node: NodeId::Worker(4) });
    let schedule = |ms| Schedule(vec![join.clone(), hang_at(ms, 1, 70_000)]);
    let moments = (3_100..8_000).step_by(350);
    moments.map(|ms| four.endure(OF_COPIES, &schedule(ms)).result).collect()
}

#[test]
fn i11_a_device_that_hangs_around_a_change_of_generation_is_noticed() {
    for met in after_a_join() {
        let changes = met.unwrap_or_else(|failure| panic!("{failure}")).changes;
        assert_eq!((changes.lost, changes.rollbacks), (1, 0), "{changes:?}");
    }
}

/// The number of moments in which the coordinator gave up exactly `workers` workers.
fn given_up(met: &[Result<Endured, Failure>], workers: u64) -> usize {
    let all = |met: &&Result<Endured, Failure>| {
        met.as_ref().is_ok_and(|endured| endured.changes.lost == workers)
    };
    met.iter().filter(all).count()
}

/// A sample on which a device hangs strikes the next worker after the coordinator has given up the
/// first.
fn one_after_the_other(prepare: Prepare) -> Vec<Result<Endured, Failure>> {
    let four = four(4, prepare);
    let schedule = |ms| Schedule(vec![hang_at(3_000, 1, 60_000), hang_at(ms, 2, 60_000)]);
    let moments = (13_000..14_400).step_by(200);
    moments.map(|ms| four.endure(OF_THREE_COPIES, &schedule(ms)).result).collect()
}

#[test]
fn i11_a_hang_of_the_worker_that_inherits_the_data_shard_is_noticed() {
    let [noticed, anew] = [Prepare::default(), measuring_anew()].map(|prepare| {
        let met = one_after_the_other(prepare);
        given_up(&met, 2)
    });
    assert!(noticed > anew, "{noticed} and {anew}");
}

#[test]
fn i11_the_others_go_on_without_a_device_that_hangs_and_it_comes_back() {
    let endured = hang(OF_COPIES, 60_000, Prepare::default()).expect("it is borne");
    let changes = endured.changes;
    assert_eq!((changes.lost, changes.rollbacks), (1, 0), "{changes:?}");
    assert!(endured.longest < Duration::from_secs(14), "{:?}", endured.longest);
}

/// The device of one worker hangs for moments, some of which end while it computes. Other workers
/// die meanwhile, and it gets their data shards on top of its own.
#[test]
fn i18_a_device_does_one_job_after_the_other_however_hangs_end() {
    let hangs = (0..200).map(|moment| hang_at(1_000 + 137 * moment, 1, 60));
    let deaths = (0..14).map(|death| {
        let restart = Some(Duration::from_millis(300));
        at(1_500 + 2_000 * death, Fault::Crash { node: NodeId::Worker(2), restart })
    });
    let mut faults: Vec<_> = hangs.chain(deaths).collect();
    faults.sort_by_key(|(at, _)| *at);
    let (four, schedule) = (four(8, Prepare::default()), Schedule(faults));
    for seed in 0..12 {
        let endured = four.endure(seed, &schedule).result.unwrap_or_else(|it| panic!("{it}"));
        // The others die before they are members again.
        let lost = endured.changes.lost;
        assert!(lost >= 8, "seed {seed}: {lost} members were lost");
    }
}

/// Two workers compute, and two only update what they own: each of these hangs once.
#[test]
fn i11_the_others_go_on_without_a_device_that_hangs_in_an_update() {
    for worker in 0..4 {
        let schedule = Schedule(vec![hang_at(3_000, worker, 60_000)]);
        let endured = four(2, Prepare::default()).endure(OF_COPIES, &schedule).result;
        let endured = endured.unwrap_or_else(|failure| panic!("worker {worker}: {failure}"));
        let changes = endured.changes;
        assert_eq!((changes.lost, changes.rollbacks), (1, 0), "worker {worker}: {changes:?}");
        assert!(endured.longest < Duration::from_secs(14), "{worker}: {:?}", endured.longest);
    }
}

/// Two devices hang from moments around the updates of a step. In one of these each of the two has
/// its next data shard, and lacks the parameters that the other one updates. Returns the longest
/// time without a step for each.
fn hang_around_an_update(prepare: Prepare) -> Vec<Duration> {
    let of_moment = |us: u64| {
        let span = Duration::from_secs(60);
        let moment = Time(0) + Duration::from_micros(us);
        let hang = |worker| (moment, Fault::Hang { node: NodeId::Worker(worker), span });
        let schedule = Schedule(vec![hang(1), hang(2)]);
        let endured = four(4, prepare).endure(OF_THREE_COPIES, &schedule).result;
        endured.unwrap_or_else(|failure| panic!("{us} us: {failure}")).longest
    };
    (3_304_000..3_308_000).step_by(200).map(of_moment).collect()
}

#[test]
fn i11_the_others_go_on_without_two_devices_that_hang_in_the_same_update() {
    let longest = hang_around_an_update(Prepare::default());
    assert!(longest.iter().all(|it| *it < Duration::from_secs(14)), "{longest:?}");
    let ignoring = Prepare { worker: |core| core.plant(Bug::IgnoreUpdates), ..Prepare::default() };
    let longest = hang_around_an_update(ignoring);
    let is_met = longest.iter().any(|it| *it > Duration::from_secs(30));
    assert!(is_met, "no moment is in an update, so choose others: {longest:?}");
}

/// A device hangs from moments around the end of a run, in some of which it evaluates and digests.
/// Another one hangs for a moment now and then: a run that waits is not judged for a time after a
/// fault. Returns how many workers were lost for each.
fn hang_around_the_end(prepare: Prepare) -> Vec<u64> {
    let mut run = toy::long_run();
    (run.steps, run.hang_after_ms) = (10, 1_000);
    let span = Duration::from_secs(70);
    let cluster = Simulation::of(run, 4, span, Rates::none()).expect("without a fault");
    let cluster = cluster.prepared(prepare).precise(Precision::F32).coordinated(1);
    let of_moment = |us: u64| {
        let hang = Fault::Hang { node: NodeId::Worker(1), span };
        let first = (Time(0) + Duration::from_micros(us), hang);
        let others = (1..4).map(|at| hang_at(20_000 * at, 2, 1));
        let schedule = Schedule([first].into_iter().chain(others).collect());
        let endured = cluster.endure(OF_COPIES, &schedule).result;
        endured.unwrap_or_else(|failure| panic!("{us} us: {failure}")).changes.lost
    };
    (1_940_000..1_960_000).step_by(1_000).map(of_moment).collect()
}

#[test]
fn i11_the_others_end_the_run_without_a_device_that_hangs_at_its_end() {
    let lost = hang_around_the_end(Prepare::default());
    let ignoring = Prepare { worker: |core| core.plant(Bug::IgnoreUpdates), ..Prepare::default() };
    let ignored = hang_around_the_end(ignoring);
    let is_met = lost.iter().zip(&ignored).any(|(lost, ignored)| (*lost, *ignored) == (1, 0));
    assert!(is_met, "no moment is at the end, so choose others: {lost:?} {ignored:?}");
}

/// A worker dies while the device of another one hangs in an update. The device of the latter does
/// not follow into the next generation, in which it has no data shard either.
#[test]
fn i11_the_others_go_on_without_a_device_that_hangs_and_does_not_follow() {
    let crash = Fault::Crash { node: NodeId::Worker(0), restart: None };
    for worker in 1..4 {
        let schedule = Schedule(vec![hang_at(3_000, worker, 900_000), at(6_000, crash.clone())]);
        let cluster = four(2, Prepare::default());
        let endured = cluster.endure(OF_THREE_COPIES, &schedule).result;
        let endured = endured.unwrap_or_else(|failure| panic!("worker {worker}: {failure}"));
        assert_eq!((endured.changes.lost, endured.changes.rollbacks), (2, 0), "worker {worker}");
        assert!(endured.longest < Duration::from_secs(20), "{worker}: {:?}", endured.longest);
    }
}

#[test]
fn i8_a_device_that_was_only_slow_for_a_while_loses_nothing() {
    let endured = hang(OF_COPIES, 8_000, Prepare::default()).expect("it is borne");
    assert_eq!((endured.changes.lost, endured.changes.rollbacks), (0, 0));
}

#[test]
fn i21_a_device_that_hangs_with_a_last_copy_is_waited_for() {
    let endured = hang(OF_ONE_COPY, 25_000, Prepare::default()).expect("it is borne");
    assert_eq!((endured.changes.lost, endured.changes.rollbacks), (0, 0));
}

#[test]
fn i11_a_coordinator_that_believes_heartbeats_alone_is_found() {
    let found = hang(OF_COPIES, 70_000, ignoring_hangs());
    assert_eq!(found.expect_err("it is found"), Some(Invariant::I11));
}

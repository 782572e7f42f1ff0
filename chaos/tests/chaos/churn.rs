//! Workers that come and go for long, and devices that hang.

use std::time::Duration;

use everstep_chaos::check::Invariant;
use everstep_chaos::fault::{Fault, Rates, Schedule};
use everstep_chaos::simulate::Simulation;
use everstep_chaos::toy;
use everstep_chaos::world::{Endured, Node, Prepare};
use everstep_coordinator::plant::Plant;
use everstep_coordinator::seat::Seat;
use everstep_transport::protocol::run::Precision;
use everstep_transport::time::Time;

/// A seed whose run has more than one owner of each parameter shard.
const OF_COPIES: u64 = 1;
/// A seed whose run has one.
const OF_ONE_COPY: u64 = 3;

fn at(ms: u64, fault: Fault) -> (Time, Fault) {
    (Time(0) + Duration::from_millis(ms), fault)
}

fn ignoring_the_tree() -> Prepare {
    Prepare {
        coordinator: |now, options, kept, history| {
            Seat::planted(now, options, kept, history, Plant::IgnoreTree)
        },
        ..Prepare::default()
    }
}

fn ignoring_hangs() -> Prepare {
    Prepare {
        coordinator: |now, options, kept, history| {
            Seat::planted(now, options, kept, history, Plant::IgnoreHangs)
        },
        ..Prepare::default()
    }
}

/// Eight workers and 64 data shards, of a run that lasts longer than so many seconds.
fn eight(seconds: u64, prepare: Prepare) -> Simulation {
    let mut run = toy::long_run();
    (run.steps, run.batch.data_shards, run.batch.micro_batch) = (5 * seconds, 64, 1);
    let span = Duration::from_secs(seconds);
    let cluster = Simulation::of(run, 8, span, Rates::none()).expect("without a fault");
    cluster.prepared(prepare).precise(Precision::F32).coordinated(1)
}

/// Every three seconds another worker dies, and one comes in its place.
fn churn(cycles: u64) -> Schedule {
    let crash = |cycle: u64| {
        let restart = Some(Duration::from_millis(300));
        at(
            1_000 + 3_000 * cycle,
            Fault::Crash { node: Node::Worker(5 * cycle as usize % 8), restart },
        )
    };
    Schedule((0..cycles).map(crash).collect())
}

/// Every record is looked at: see `check/subtrees.rs`.
#[test]
fn i24_churn_leaves_data_shards_in_blocks() {
    let endured = eight(36, Prepare::default()).endure(OF_COPIES, &churn(11)).result;
    let changes = endured.expect("it is borne").changes;
    assert_eq!((changes.lost, changes.rollbacks), (11, 0), "{changes:?}");
}

#[test]
fn i24_data_shards_that_are_dealt_out_whatever_the_tree_are_found() {
    let found = eight(6, ignoring_the_tree()).endure(OF_COPIES, &churn(1)).result;
    let found = found.expect_err("it is found");
    assert_eq!(found.invariant(), Some(Invariant::I24), "{found}");
}

/// Four workers; the device of one hangs for so long.
fn hang(seed: u64, ms: u64, prepare: Prepare) -> Result<Endured, Option<Invariant>> {
    let mut run = toy::long_run();
    run.steps = 400;
    let span = Duration::from_secs(80);
    let cluster = Simulation::of(run, 4, span, Rates::none()).expect("without a fault");
    let cluster = cluster.prepared(prepare).precise(Precision::F32).coordinated(1);
    let span = Duration::from_millis(ms);
    let hang = at(3_000, Fault::Hang { node: Node::Worker(1), span });
    let endured = cluster.endure(seed, &Schedule(vec![hang])).result;
    endured.map_err(|failure| {
        println!("{failure}");
        failure.invariant()
    })
}

#[test]
fn i11_the_others_go_on_without_a_device_that_hangs_and_it_comes_back() {
    let endured = hang(OF_COPIES, 60_000, Prepare::default()).expect("it is borne");
    let changes = endured.changes;
    assert_eq!((changes.lost, changes.rollbacks), (1, 0), "{changes:?}");
    assert!(endured.longest < Duration::from_secs(14), "{:?}", endured.longest);
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

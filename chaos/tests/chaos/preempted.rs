//! Clouds take machines back, and tell the workers ahead: what a run may lose by that, and what
//! not. A worker that hears in time hands over, and all workers together leave a checkpoint.

use std::time::Duration;

use everstep_chaos::check::Invariant::I6;
use everstep_chaos::fault::{Fault, NoticeEnd, Rates, Schedule};
use everstep_chaos::simulate::Simulation;
use everstep_chaos::toy;
use everstep_chaos::world::{NodeId, Prepare, Tally};
use everstep_coordinator::node;
use everstep_coordinator::plant::CorePlant;
use everstep_transport::protocol::RunSpec;
use everstep_transport::protocol::run::Precision;
use everstep_transport::time::Time;

/// Seeds by which a run of four workers writes checkpoints, with one to three copies, one or three
/// coordinators, and each way in which the coordinators learn of ends.
const SAVING: [u64; 5] = [0, 3, 9, 13, 17];
/// Seeds by which each parameter shard has two or three owners.
const OF_COPIES: [u64; 4] = [0, 1, 9, 13];
/// Steps of a run that lasts longer than the faults.
const LONG: u64 = 160;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A run of so many steps, and faults for 24 s.
fn simulation(steps: u64, rates: Rates, prepare: Prepare) -> Simulation {
    let run = RunSpec { steps, ..toy::long_run() };
    let cluster = Simulation::of(run, 4, ms(24_000), rates).expect("without a fault");
    cluster.prepared(prepare).precise(Precision::F32)
}

/// The machines of all workers, and the spare ones.
fn everywhere() -> Vec<NodeId> {
    (0..6).map(NodeId::Worker).collect()
}

fn in_place_of_it() -> NoticeEnd {
    NoticeEnd::TakenBack { restart: Some(ms(500)) }
}

/// Gives these machines a notice, so long ahead, at some moments of each of these runs.
fn give_notice(seeds: &[u64], side: &[NodeId], ahead_ms: u64, end: NoticeEnd) -> Vec<Tally> {
    let cluster = simulation(LONG, Rates::none(), Prepare::default());
    let moments = [1_000, 2_540];
    let all = seeds.iter().flat_map(|seed| moments.map(|moment| (*seed, moment)));
    let endure = |(seed, moment)| {
        let fault = Fault::Preempt { side: side.to_vec(), ahead: ms(ahead_ms), end };
        let schedule = Schedule(vec![(Time(0) + ms(moment), fault)]);
        let endured = cluster.endure(seed, &schedule).result;
        endured.unwrap_or_else(|failure| panic!("seed {seed}: {failure}\n{schedule}")).changes
    };
    all.map(endure).collect()
}

#[test]
fn i6_a_worker_that_hears_in_time_hands_over_and_nothing_is_done_again() {
    for changes in give_notice(&SAVING, &[NodeId::Worker(1)], 12_000, in_place_of_it()) {
        let found = (changes.left, changes.lost, changes.redone, changes.rollbacks);
        assert_eq!(found, (1, 0, 0, 0), "{changes:?}");
    }
}

#[test]
fn i6_all_workers_that_hear_in_time_leave_a_checkpoint_of_the_last_step() {
    for changes in give_notice(&SAVING, &everywhere(), 14_000, in_place_of_it()) {
        let found = (changes.rollbacks, changes.restores, changes.undone, changes.taken);
        assert_eq!(found, (1, 1, 0, 0), "{changes:?}");
    }
}

/// Most workers are gone before they hear of it.
#[test]
fn i6_a_notice_that_is_too_short_costs_no_more_than_a_crash() {
    let changes = give_notice(&OF_COPIES, &[NodeId::Worker(1)], 700, in_place_of_it());
    let taken: u64 = changes.iter().map(|one| one.taken).sum();
    assert!(taken > 2, "{taken} workers were taken back: too dull");
    for changes in changes {
        assert_eq!((changes.rollbacks, changes.undone), (0, 0), "{changes:?}");
        assert!(changes.lost + changes.left == 1, "{changes:?}");
    }
}

/// Some workers have heard of the notice when it is withdrawn. They leave all the same, without a
/// limit of time. If all have, they leave together after a checkpoint, and whichever ends first is
/// lost to the others.
#[test]
fn i8_a_notice_that_is_withdrawn_costs_no_step() {
    let end = NoticeEnd::Withdrawn { after: ms(1_000), restart: ms(1_500) };
    let changes = give_notice(&SAVING, &everywhere(), 60_000, end);
    let left: u64 = changes.iter().map(|one| one.left).sum();
    assert!(left > 4, "{left} have left: too dull");
    for changes in changes {
        assert_eq!((changes.undone, changes.taken), (0, 0), "{changes:?}");
        assert!(changes.lost == 0 || changes.restores == 1, "{changes:?}");
    }
}

/// Notices to some and to all, of up to 12 s, among crashes, and stores that lose their power.
fn notices() -> Rates {
    Rates {
        preemptions: 6.0,
        joint_preemptions: 4.0,
        worker_crashes: 3.0,
        joins: 6.0,
        store_cuts: 6.0,
        coordinator_crashes: 2.0,
        restarts: 1.0,
        ..Rates::none()
    }
}

#[test]
fn notices_at_random_are_borne() {
    let cluster = simulation(20, notices(), Prepare::default());
    let mut all = Tally::default();
    for seed in 0..60 {
        let endured = cluster.simulate(seed).result;
        all += endured.unwrap_or_else(|failure| panic!("seed {seed}: {failure}")).changes;
    }
    let Tally { left, taken, restores, .. } = all;
    assert!(left > 100 && taken > 20 && restores > 20, "{all:?}: too dull");
}

#[test]
fn i6_workers_that_leave_together_before_a_checkpoint_is_there_are_found() {
    let prepare = Prepare {
        coordinator: |now, options, kept, history| {
            node::Node::planted(now, options, kept, history, CorePlant::LeaveUnsaved)
        },
        ..Prepare::default()
    };
    let rates = Rates { withdrawn_notices: 0.0, joint_preemptions: 6.0, ..Rates::none() };
    let cluster = simulation(40, rates, prepare);
    let found = (0..200).find_map(|seed| cluster.simulate(seed).result.err());
    let found = found.expect("it is found");
    assert_eq!(found.invariant(), Some(I6), "{found}");
}

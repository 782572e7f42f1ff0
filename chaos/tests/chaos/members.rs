//! Coordinators that come and go while a run goes on. They learn the log from a snapshot and the
//! history in pages. The cluster loses no work and no worker.

use std::time::Duration;

use everstep_chaos::fault::{Fault, Rates, Schedule};
use everstep_chaos::simulate::Simulation;
use everstep_chaos::world::{Endured, NodeId};
use everstep_transport::time::Time;

/// Seeds on which each test is tried: they set the order of all other events.
const SEEDS: u64 = 6;

fn at(ms: u64, fault: Fault) -> (Time, Fault) {
    (Time(0) + Duration::from_millis(ms), fault)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn crash(place: usize, after: u64) -> Fault {
    Fault::Crash { node: NodeId::Coordinator(place), restart: Some(ms(after)) }
}

/// The results of these faults, seed by seed, on a cluster of four workers. No worker is lost.
fn endure(coordinators: u32, faults: Vec<(Time, Fault)>) -> Vec<Endured> {
    let simulation = Simulation::new(4, ms(6_000), Rates::none()).expect("without a fault");
    let simulation = simulation.coordinated(coordinators);
    let endured = |seed| {
        let met = simulation.endure(seed, &Schedule(faults.clone())).result;
        let endured = met.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        assert_eq!((endured.changes.lost, endured.changes.redone), (0, 0), "seed {seed}");
        endured
    };
    (0..SEEDS).map(endured).collect()
}

#[test]
fn every_disk_is_lost_and_replaced_one_after_the_other_while_the_run_goes_on() {
    let wipe = |place| Fault::Wipe { node: NodeId::Coordinator(place), restart: ms(50) };
    let faults = vec![at(600, wipe(0)), at(1_800, wipe(1)), at(3_000, wipe(2))];
    for endured in endure(3, faults) {
        assert_eq!((endured.changes.joined, endured.changes.installed), (3, 3));
        assert!(endured.changes.pages >= 3);
    }
}

#[test]
fn who_is_removed_comes_again_as_another_one() {
    let remove = |place| Fault::Remove { node: NodeId::Coordinator(place), restart: Some(ms(300)) };
    let faults = vec![at(600, remove(0)), at(2_200, remove(1))];
    for endured in endure(3, faults) {
        assert_eq!((endured.changes.removed, endured.changes.joined), (2, 2));
    }
}

#[test]
fn three_become_one_for_good_and_that_one_goes_on() {
    let remove = |place| Fault::Remove { node: NodeId::Coordinator(place), restart: None };
    let faults = vec![at(600, remove(0)), at(2_200, remove(2)), at(3_800, crash(1, 100))];
    for endured in endure(3, faults) {
        assert_eq!((endured.changes.removed, endured.changes.joined), (2, 0));
    }
}

/// The removed coordinator is cut off meanwhile. No other one can tell it, so the one that it dials
/// refuses it.
#[test]
fn i11_who_does_not_hear_that_it_was_removed_is_refused_and_ends() {
    let gone = NodeId::Coordinator(2);
    let faults = vec![
        at(600, Fault::Partition { side: vec![gone], span: ms(3_000) }),
        at(1_600, Fault::Remove { node: gone, restart: None }),
    ];
    for endured in endure(3, faults) {
        assert_eq!((endured.changes.removed, endured.changes.joined), (1, 0));
    }
}

#[test]
fn i9_a_full_disk_ends_its_coordinator_and_takes_nothing_away() {
    let full = |node| Fault::FullDisk { node, restart: ms(200) };
    let faults = vec![
        at(600, full(NodeId::Leader)),
        at(1_800, full(NodeId::Coordinator(1))),
        at(3_000, full(NodeId::Leader)),
    ];
    for coordinators in [1, 3] {
        let full: u64 = endure(coordinators, faults.clone()).iter().map(|it| it.changes.full).sum();
        assert!(full >= 2 * SEEDS, "{full} times");
    }
}

#[test]
fn a_damaged_log_is_refused_and_another_coordinator_takes_its_place() {
    let damage = |node| Fault::Damage { node, restart: ms(50) };
    let faults = vec![at(600, damage(NodeId::Leader)), at(2_600, damage(NodeId::Coordinator(0)))];
    for endured in endure(3, faults) {
        assert_eq!((endured.changes.replaced, endured.changes.joined), (2, 2));
    }
}

#[test]
fn a_leader_that_is_asked_to_stop_hands_over_and_nothing_waits() {
    let stop = |after| Fault::Stop { node: NodeId::Leader, restart: ms(after) };
    let faults = vec![at(1_000, stop(100)), at(2_000, stop(100)), at(3_000, stop(100))];
    for endured in endure(3, faults) {
        assert_eq!(endured.changes.stopped, 3);
    }
}

#[test]
fn one_alone_is_joined_by_another_that_goes_again() {
    let spare = NodeId::Coordinator(1);
    let faults = vec![
        at(700, Fault::Join { node: spare }),
        at(2_500, Fault::Remove { node: spare, restart: None }),
    ];
    for endured in endure(1, faults) {
        assert_eq!((endured.changes.joined, endured.changes.removed), (1, 1));
    }
}

/// Seed 25 of one coordinator: as soon as one of two had applied the removal, it did not hear the
/// other any more, and neither could lead.
#[test]
fn i11_of_two_coordinators_the_one_that_leads_is_removed() {
    let faults = vec![
        at(700, Fault::Join { node: NodeId::Coordinator(1) }),
        at(2_500, Fault::Remove { node: NodeId::Leader, restart: None }),
    ];
    for endured in endure(1, faults) {
        assert_eq!(endured.changes.removed, 1);
    }
}

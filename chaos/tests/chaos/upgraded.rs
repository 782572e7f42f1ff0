//! A cluster is upgraded one coordinator after the other, while a run goes on: I23. A later build
//! knows one format of the log more.

use std::time::Duration;

use everstep_chaos::check::Invariant::I23;
use everstep_chaos::fault::{Fault, Rates, Schedule};
use everstep_chaos::simulate::{Simulated, Simulation};
use everstep_chaos::world::{LATER_LOG_FORMAT, NodeId, Prepare};
use everstep_coordinator::node;
use everstep_coordinator::plant::CorePlant;
use everstep_coordinator::state::LOG_FORMATS;
use everstep_transport::time::Time;

/// Seeds on which each test is tried: they set the order of all other events.
const SEEDS: u64 = 8;
const SPAN: Duration = Duration::from_secs(8);

/// A coordinator of today's build ends, and starts again with the later build.
fn upgrade(ms: u64, node: NodeId) -> (Time, Fault) {
    let restart = Some(Duration::from_millis(200));
    (Time(0) + Duration::from_millis(ms), Fault::Crash { node, restart })
}

fn cluster(prepare: Prepare, rates: Rates) -> Simulation {
    let simulation = Simulation::new(4, SPAN, rates).expect("without a fault");
    simulation.coordinated(3).prepared(prepare)
}

fn endure(faults: &[(Time, Fault)], prepare: Prepare) -> impl Iterator<Item = Simulated> {
    let (simulation, schedule) = (cluster(prepare, Rates::none()), Schedule(faults.to_vec()));
    (0..SEEDS).map(move |seed| simulation.endure(seed, &schedule))
}

fn upgraded() -> Prepare {
    Prepare { upgrades: true, ..Prepare::default() }
}

#[test]
fn i23_the_later_format_begins_with_the_last_coordinator_that_knows_it() {
    let coordinators = [0, 1, 2].map(NodeId::Coordinator);
    let all = [600, 1_800, 3_000].iter().zip(coordinators).map(|(at, node)| upgrade(*at, node));
    let all: Vec<_> = all.collect();
    for (faults, newest) in [(&all[..], LATER_LOG_FORMAT), (&all[..2], *LOG_FORMATS.end())] {
        for (seed, simulated) in endure(faults, upgraded()).enumerate() {
            let endured = simulated.result.unwrap_or_else(|failure| panic!("{seed}: {failure}"));
            assert_eq!(endured.changes.log_format, Some(newest), "seed {seed}");
            assert_eq!((endured.changes.lost, endured.changes.redone), (0, 0), "seed {seed}");
        }
    }
}

/// Coordinators crash, lose their disks, are removed and join, each as a later build.
#[test]
fn i23_whatever_comes_and_goes_each_coordinator_reads_the_log() {
    let rates = Rates {
        coordinator_crashes: 30.0,
        coordinator_wipes: 4.0,
        coordinator_removals: 4.0,
        coordinator_joins: 6.0,
        ..Rates::none()
    };
    let simulation = cluster(upgraded(), rates);
    let mut later = 0;
    for seed in 0..60 {
        let met = simulation.simulate(seed).result;
        let endured = met.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        later += u64::from(endured.changes.log_format == Some(LATER_LOG_FORMAT));
    }
    assert!(later >= 10, "{later} clusters came to the later format");
}

#[test]
fn i23_a_leader_that_proposes_what_others_cannot_read_is_found() {
    let prepare = Prepare {
        coordinator: |now, options, kept, history| {
            node::Node::planted(now, options, kept, history, CorePlant::ProposeNewest)
        },
        ..upgraded()
    };
    let faults = [upgrade(600, NodeId::Leader), upgrade(1_800, NodeId::Leader)];
    let failures: Vec<_> = endure(&faults, prepare).filter_map(|it| it.result.err()).collect();
    assert!(!failures.is_empty(), "the bug does no harm");
    assert!(failures.iter().all(|failure| failure.invariant() == Some(I23)), "{failures:?}");
}

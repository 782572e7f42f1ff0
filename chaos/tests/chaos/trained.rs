//! Runs that have committed their last step, while every store refuses the model for a minute.

use std::time::Duration;

use everstep_chaos::fault::{DrainOrigin, Fault, Rates, Schedule};
use everstep_chaos::simulate::Simulation;
use everstep_chaos::toy;
use everstep_chaos::world::{NodeId, Tally};
use everstep_transport::protocol::run::Precision;
use everstep_transport::time::Time;

use crate::support::OF_THREE_COPIES;

/// Four workers train twenty steps within five seconds, and their stores are full for a minute.
/// From then on one of these faults happens every ten seconds. Returns the counts of changes.
fn while_stores_are_full(faults: Vec<Fault>) -> Tally {
    let span = Duration::from_secs(70);
    let cluster = Simulation::of(toy::long_run(), 4, span, Rates::none()).expect("faultless");
    let full =
        |slot| Fault::FullStore { node: NodeId::Worker(slot), span: Duration::from_secs(60) };
    let at = |ms: u64, fault| (Time(0) + Duration::from_millis(ms), fault);
    let mut schedule: Vec<_> = (0..5).map(|slot| at(100, full(slot))).collect();
    schedule.extend(faults.into_iter().zip(1..).map(|(fault, turn)| at(10_000 * turn, fault)));
    let simulation = cluster.precise(Precision::F32).coordinated(1);
    let endured = simulation.endure(OF_THREE_COPIES, &Schedule(schedule)).result;
    endured.unwrap_or_else(|failure| panic!("{failure}")).changes
}

fn crash(slot: usize) -> Fault {
    Fault::Crash { node: NodeId::Worker(slot), restart: None }
}

fn drain(slot: usize, by: DrainOrigin) -> Fault {
    Fault::Drain { node: NodeId::Worker(slot), by, grace: None }
}

/// Of four workers three die one after the other. The run repairs the copies in between.
#[test]
fn i6_a_trained_run_repairs_its_copies_while_its_model_waits() {
    let changes = while_stores_are_full(vec![crash(3), crash(2), crash(1)]);
    assert_eq!((changes.lost, changes.rollbacks), (3, 0), "{changes:?}");
}

#[test]
fn workers_leave_a_trained_run_while_its_model_waits() {
    let asked = vec![
        drain(3, DrainOrigin::Machine),
        drain(2, DrainOrigin::Operator),
        drain(1, DrainOrigin::Machine),
    ];
    let changes = while_stores_are_full(asked);
    assert_eq!((changes.left, changes.lost, changes.rollbacks), (3, 0, 0), "{changes:?}");
}

/// A worker that comes after the last step takes over the copies of the others.
#[test]
fn a_worker_joins_a_trained_run_and_all_others_leave_it() {
    let join = Fault::Join { node: NodeId::Worker(4) };
    let [a, b, c, d] = [0, 1, 2, 3].map(|slot| drain(slot, DrainOrigin::Machine));
    let changes = while_stores_are_full(vec![join, a, b, c, d]);
    assert_eq!((changes.left, changes.lost, changes.rollbacks), (4, 0, 0), "{changes:?}");
}

/// Directories are on a file server that is away for a minute: where a worker is told to write, and
/// where the next run looks for the place of its model. No worker is lost for it.
#[test]
fn directories_that_do_not_answer_cost_time_and_no_worker() {
    let span = Duration::from_secs(70);
    let cluster = Simulation::of(toy::long_run(), 4, span, Rates::none()).expect("faultless");
    let silent = |slot| {
        let away = Duration::from_secs(60);
        let fault = Fault::SilentDirectory { node: NodeId::Worker(slot), span: away };
        (Time(0) + Duration::from_millis(100), fault)
    };
    for slots in [0..4, 0..1, 1..2, 2..3, 3..4] {
        let schedule = Schedule(slots.clone().map(silent).collect());
        let simulation = cluster.clone().precise(Precision::F32).coordinated(1);
        let endured = simulation.endure(OF_THREE_COPIES, &schedule).result;
        let endured = endured.unwrap_or_else(|failure| panic!("{slots:?}: {failure}"));
        assert_eq!((endured.changes.lost, endured.changes.rollbacks), (0, 0), "{slots:?}");
        assert!(endured.completed > 1, "{slots:?}");
    }
}

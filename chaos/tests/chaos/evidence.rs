//! Events that look like the end of a worker but are none: addresses, refusals, and a leader that
//! alone hears no worker. Each rule has a planted bug that breaks it.

use std::time::Duration;

use everstep_chaos::check::Invariant::{self, I6, I8, I16, I21};
use everstep_chaos::fault::{DrainOrigin, Fault, Rates, Schedule};
use everstep_chaos::simulate::Simulation;
use everstep_chaos::world::{NodeId, Prepare};
use everstep_coordinator::node;
use everstep_coordinator::plant::CorePlant;
use everstep_transport::protocol::run::Precision;
use everstep_transport::time::Time;

use crate::support::{OF_COPIES, OF_ONE_COPY};

macro_rules! plant {
    ($plant:ident) => {
        Prepare {
            coordinator: |now, options, kept, history| {
                node::Node::planted(now, options, kept, history, CorePlant::$plant)
            },
            ..Prepare::default()
        }
    };
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn at(at: u64, fault: Fault) -> (Time, Fault) {
    (Time(0) + ms(at), fault)
}

fn simulation(rates: Rates, prepare: Prepare) -> Simulation {
    let cluster = Simulation::new(4, ms(20_000), rates).expect("without a fault");
    cluster.prepared(prepare).precise(Precision::F32)
}

/// The cluster bears the faults. With the bug it breaks one of these promises.
#[track_caller]
fn find(prepare: Prepare, faults: Vec<(Time, Fault)>, promised: &[Invariant]) {
    let schedule = Schedule(faults);
    let sound = simulation(Rates::none(), Prepare::default());
    let endured = sound.endure(OF_ONE_COPY, &schedule).result;
    let endured = endured.unwrap_or_else(|failure| panic!("{failure}\n{schedule}"));
    assert_eq!(endured.changes.rollbacks, 0, "{:?}", endured.changes);
    let found = simulation(Rates::none(), prepare).endure(OF_ONE_COPY, &schedule).result;
    let found = found.expect_err("it is found");
    assert!(found.invariant().is_some_and(|it| promised.contains(&it)), "{found}");
}

/// The first machine is cut off. A worker on another machine states its address.
#[test]
fn i21_an_address_that_counts_as_proof_is_found() {
    let (node, of) = (NodeId::Worker(4), NodeId::Worker(1));
    let faults = vec![
        at(900, Fault::Misstate { node, of }),
        at(1_000, Fault::Partition { side: vec![of], span: ms(10_000) }),
        at(6_000, Fault::Join { node }),
    ];
    find(plant!(AddressIsProof), faults, &[I6, I21]);
}

/// A firewall refuses a living worker to the coordinators.
#[test]
fn i21_a_refusal_that_counts_as_proof_is_found() {
    let faults = vec![at(1_000, Fault::Refuse { node: NodeId::Worker(1), span: ms(10_000) })];
    find(plant!(RefusalIsProof), faults, &[I6, I21]);
}

/// A firewall refuses probes of a worker, which stands still again and again for a moment. All
/// other packets pass. The first run is under way until then: the coordinators of a later one know
/// nothing yet.
#[test]
fn i8_a_prober_that_forgets_that_refusals_were_wrong_is_found() {
    let node = NodeId::Worker(1);
    let refuse = at(500, Fault::RefuseProbes { node, span: ms(5_000) });
    let pauses = [50, 120, 300, 450, 90].into_iter().enumerate();
    let pauses = pauses
        .map(|(index, span)| at(2_000 + 600 * index as u64, Fault::Pause { node, span: ms(span) }));
    let schedule = Schedule([refuse].into_iter().chain(pauses).collect());
    let sound = simulation(Rates::none(), Prepare::default());
    let endured = sound.endure(OF_COPIES, &schedule).result;
    assert_eq!(endured.expect("it is borne").changes.lost, 0);
    let prepare = Prepare { forgets_wrong_refusals: true, ..Prepare::default() };
    let found = simulation(Rates::none(), prepare).endure(OF_COPIES, &schedule).result;
    assert_eq!(found.expect_err("it is found").invariant(), Some(I8));
}

/// A worker that is to leave has all the time that it needs. Meanwhile another worker loses its
/// link.
#[test]
fn i16_a_last_copy_that_leaves_is_found() {
    let drain = Fault::Drain { node: NodeId::Worker(1), by: DrainOrigin::Machine, grace: None };
    let ends = (NodeId::Leader, NodeId::Worker(2));
    let faults = vec![at(1_000, drain), at(1_030, Fault::Disconnect { ends })];
    find(plant!(LastCopiesLeave), faults, &[I6, I16, I21]);
}

/// Two workers are told to leave at once, or one in the middle of a repair, over slow links. Each
/// has all the time that it needs.
#[test]
fn i16_workers_that_leave_together_or_in_a_repair_hand_over_first() {
    let slow = |(one, other)| Fault::Slow {
        ends: (NodeId::Worker(one), NodeId::Worker(other)),
        extra: ms(400),
        span: ms(15_000),
    };
    let drain =
        |slot| Fault::Drain { node: NodeId::Worker(slot), by: DrainOrigin::Machine, grace: None };
    let crash = Fault::Crash { node: NodeId::Worker(3), restart: None };
    for (first, left, lost) in [(drain(2), 2, 0), (crash, 1, 1)] {
        let pairs = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];
        let mut faults: Vec<_> = pairs.map(|pair| at(900, slow(pair))).into();
        faults.extend([at(1_000, first), at(1_030, drain(1))]);
        let schedule = Schedule(faults);
        let cluster = simulation(Rates::none(), Prepare::default());
        let endured = cluster.endure(OF_COPIES, &schedule).result;
        let changes = endured.unwrap_or_else(|failure| panic!("{failure}")).changes;
        let found = (changes.left, changes.lost, changes.rollbacks);
        assert_eq!(found, (left, lost, 0), "{changes:?}");
    }
}

/// For most of the time no worker reaches the leader, but they reach all other coordinators, and
/// one worker dies. The run goes on under another leader as soon as the first one has led for its
/// time. A coordinator that is alone can only wait.
#[test]
fn i11_a_leader_that_alone_hears_no_worker_lets_another_one_lead() {
    let completed = |coordinators| {
        let cluster = Simulation::new(4, ms(45_000), Rates::none()).expect("without a fault");
        let cluster = cluster.coordinated(coordinators).precise(Precision::F32);
        let schedule = Schedule(vec![
            at(1_000, Fault::Deafen { node: NodeId::Leader, span: ms(43_000) }),
            at(1_500, Fault::Crash { node: NodeId::Worker(2), restart: None }),
        ]);
        let endured = cluster.endure(OF_COPIES, &schedule).result;
        let endured = endured.unwrap_or_else(|failure| panic!("{coordinators}: {failure}"));
        assert_eq!(endured.changes.rollbacks, 0, "{:?}", endured.changes);
        endured.completed
    };
    assert_eq!(completed(1), 1, "only after the fault");
    assert!(completed(3) > 1, "one under another leader, and one after the fault");
}

/// All of these at random, with ordinary crashes.
#[test]
fn misleading_evidence_is_borne() {
    let rates = Rates {
        refusals: 6.0,
        refused_probes: 6.0,
        deaf_coordinators: 4.0,
        misstatements: 6.0,
        worker_crashes: 4.0,
        joins: 6.0,
        drains: 4.0,
        ..Rates::none()
    };
    let cluster = simulation(rates, Prepare::default());
    for seed in 0..60 {
        let result = cluster.simulate(seed).result;
        result.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

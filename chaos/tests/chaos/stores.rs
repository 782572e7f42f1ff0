//! The run's store: its power fails, its disk tears a checkpoint, the cluster is lost, and another
//! cluster goes on from it. And planted bugs of what workers do there, and of what they do not
//! sync.

use std::time::Duration;

use everstep_chaos::check::Invariant::{self, I3, I12, I22};
use everstep_chaos::fault::{Fault, Rates, Schedule};
use everstep_chaos::files::SyncFlaws;
use everstep_chaos::simulate::Simulation;
use everstep_chaos::toy;
use everstep_chaos::world::{Prepare, Tally};
use everstep_coordinator::node;
use everstep_coordinator::plant::CorePlant;
use everstep_transport::protocol::RunSpec;
use everstep_transport::protocol::run::Precision;
use everstep_transport::time::Time;
use everstep_worker::plant::Plant;

/// Each bug is found within this many seeds.
const SEEDS: u64 = 200;

fn simulation(rates: Rates, prepare: Prepare) -> Simulation {
    let cluster = Simulation::new(4, Duration::from_secs(20), rates).expect("without a fault");
    cluster.prepared(prepare).precise(Precision::F32)
}

/// The store's machine loses its power all the time, and workers end in their jobs.
fn cuts() -> Rates {
    Rates { store_cuts: 30.0, worker_crashes: 6.0, saves: 6.0, ..Rates::none() }
}

/// All members end at once, all the time: the run goes back to its newest checkpoint. It may be
/// damaged, or another cluster goes on from it.
fn restores() -> Rates {
    Rates {
        joint_crashes: 12.0,
        restarts: 1.0,
        torn_checkpoints: 8.0,
        lost_clusters: 3.0,
        store_cuts: 6.0,
        ..Rates::none()
    }
}

#[track_caller]
fn bear(rates: Rates, seeds: u64) -> Tally {
    let simulation = simulation(rates, Prepare::default());
    let mut all = Tally::default();
    for seed in 0..seeds {
        let endured = simulation.simulate(seed).result;
        all += endured.unwrap_or_else(|failure| panic!("seed {seed}: {failure}")).changes;
    }
    all
}

#[track_caller]
fn find(rates: Rates, prepare: Prepare, promised: &[Invariant]) {
    let simulation = simulation(rates, prepare);
    for seed in 0..SEEDS {
        if let Err(failure) = simulation.simulate(seed).result {
            let invariant = failure.invariant();
            assert!(invariant.is_some_and(|it| promised.contains(&it)), "seed {seed}: {failure}");
            println!("found with {} seeds: {failure}", seed + 1);
            return;
        }
    }
    panic!("not found with {SEEDS} seeds")
}

// Stores that fail.

#[test]
fn i12_listed_checkpoints_outlast_power_failures_of_the_store() {
    let Tally { checkpoints, lost, .. } = bear(cuts(), 40);
    assert!(checkpoints > 200 && lost > 20, "{checkpoints} checkpoints, {lost} lost: too dull");
}

#[test]
fn i12_a_run_goes_on_from_its_store_after_its_cluster_is_lost() {
    let Tally { continued, restores, .. } = bear(restores(), 60);
    assert!(continued > 20 && restores > 20, "{continued} clusters, {restores}: too dull");
}

/// Members that train need no store. If they waited for it, the run would stand still for too long.
#[test]
fn i11_a_store_that_is_away_for_long_costs_checkpoints_and_no_step() {
    let run = RunSpec { steps: 450, ..toy::long_run() };
    let seconds = Duration::from_secs;
    let cluster = Simulation::of(run, 4, seconds(75), Rates::none()).expect("without a fault");
    let cluster = cluster.precise(Precision::F32);
    let away = (Time(0) + seconds(2), Fault::StoreAway { span: seconds(70) });
    for seed in [0, 3, 9] {
        let [usual, outage] = [vec![], vec![away.clone()]].map(|faults| {
            let endured = cluster.endure(seed, &Schedule(faults)).result;
            endured.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"))
        });
        let Tally { lost, redone, rollbacks, checkpoints, .. } = outage.changes;
        assert_eq!((lost, redone, rollbacks), (0, 0, 0), "seed {seed}");
        assert!(outage.longest < seconds(5), "seed {seed}: {:?}", outage.longest);
        let most = usual.changes.checkpoints / 2;
        assert!((2..most).contains(&checkpoints), "seed {seed}: {checkpoints} of {most}");
    }
}

// Two clusters.

#[test]
fn i12_a_cluster_that_goes_on_from_a_store_keeps_the_one_before_from_writing() {
    let simulation = simulation(Rates::none(), Prepare::default());
    let contended = (0..60).map(|seed| {
        let contended = simulation.contend(seed, false);
        contended.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"))
    });
    let contended = contended.filter(|contended| *contended).count();
    assert!(contended > 15, "{contended} of 60: too dull");
}

#[test]
fn i12_a_cluster_that_begins_anew_in_the_same_store_keeps_the_one_before_from_writing() {
    let simulation = simulation(Rates::none(), Prepare::default());
    for seed in 0..40 {
        let contended = simulation.contend(seed, true);
        contended.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

#[test]
fn i12_a_claim_that_is_ignored_is_found() {
    let prepare = Prepare { store: |work| work.plant(Plant::IgnoreClaim), ..Prepare::default() };
    let simulation = simulation(Rates::none(), prepare);
    let found = (0..SEEDS).find_map(|seed| simulation.contend(seed, false).err());
    let found = found.expect("it is found");
    assert_eq!(found.invariant(), Some(I12), "{found}");
}

// What is not synced, and what is not looked at.

#[test]
fn i12_a_part_that_nobody_syncs_is_found() {
    let sync_flaws = SyncFlaws { skips_files: true, ..SyncFlaws::default() };
    find(cuts(), Prepare { sync_flaws, ..Prepare::default() }, &[I12]);
}

#[test]
fn i12_a_folder_that_nobody_syncs_is_found() {
    let sync_flaws = SyncFlaws { skips_folders: true, ..SyncFlaws::default() };
    find(cuts(), Prepare { sync_flaws, ..Prepare::default() }, &[I12, I22]);
}

#[test]
fn i3_a_torn_part_that_is_accepted_is_found() {
    let prepare = Prepare { store: |work| work.plant(Plant::AcceptTorn), ..Prepare::default() };
    find(restores(), prepare, &[I3]);
}

/// Workers look themselves whether a part is there, so they have a bug as well.
#[test]
fn i12_a_part_that_is_deleted_though_a_manifest_refers_to_it_is_found() {
    let prepare = Prepare {
        coordinator: |now, options, kept, history| {
            node::Node::planted(now, options, kept, history, CorePlant::SweepAhead)
        },
        store: |work| work.plant(Plant::BelieveOrder),
        ..Prepare::default()
    };
    find(Rates::default(), prepare, &[I12]);
}

/// As above.
#[test]
fn i12_a_checkpoint_that_lacks_a_part_is_found() {
    let prepare = Prepare {
        coordinator: |now, options, kept, history| {
            node::Node::planted(now, options, kept, history, CorePlant::ListWithoutPart)
        },
        store: |work| work.plant(Plant::BelieveOrder),
        ..Prepare::default()
    };
    find(Rates::default(), prepare, &[I12]);
}

#[test]
fn i12_a_checkpoint_of_an_unsettled_step_is_found() {
    let prepare = Prepare {
        coordinator: |now, options, kept, history| {
            node::Node::planted(now, options, kept, history, CorePlant::ListUnsettled)
        },
        ..Prepare::default()
    };
    find(Rates::default(), prepare, &[I12]);
}

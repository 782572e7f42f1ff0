//! Whole clusters under seeded faults: no result is wrong, nothing hangs, no run fails, and after
//! the last fault the run becomes complete with the reference's bits.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use everstep_chaos::check::Invariant;
use everstep_chaos::fault::{DrainOrigin, Fault, Rates, Schedule, TOLERATED_OUTAGE};
use everstep_chaos::simulate::{Simulated, Simulation};
use everstep_chaos::world::{Endured, InFlight, MAX_STANDSTILL, NodeId, Tally};
use everstep_transport::protocol::{Message, MetricsLine, Rank, Record, Zone};
use everstep_transport::time::Time;

use crate::support::{Toy, VIRTUAL_TIME_LIMIT, WORKERS};

const MINUTE: Duration = Duration::from_secs(60);

fn simulation(rates: Rates) -> Simulation {
    Simulation::new(4, MINUTE, rates).expect("without a fault")
}

/// Simulates these seeds on `threads` threads. The results are in the order of the seeds.
fn simulate(simulation: &Simulation, seeds: u64, threads: u64) -> Vec<Simulated> {
    let share = |first| -> Vec<(u64, Simulated)> {
        let mine = (first..seeds).step_by(threads as usize);
        mine.map(|seed| (seed, simulation.simulate(seed))).collect()
    };
    let mut found: Vec<(u64, Simulated)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|first| {
                scope.spawn({
                    let share = &share;
                    move || share(first)
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    found.sort_by_key(|(seed, _)| *seed);
    found.into_iter().map(|(_, simulated)| simulated).collect()
}

#[track_caller]
fn assert_endured(seeds: &[Simulated]) {
    for (seed, simulated) in seeds.iter().enumerate() {
        if let Err(failure) = &simulated.result {
            panic!("seed {seed}: {failure}");
        }
    }
}

fn changes<'a>(endured: impl IntoIterator<Item = &'a Endured>) -> Tally {
    let mut all = Tally::default();
    endured.into_iter().for_each(|endured| all += endured.changes);
    all
}

#[test]
fn four_hundred_seeds_of_every_fault_that_a_run_survives_keep_every_promise() {
    let seeds = simulate(&simulation(Rates::default()), 400, 2);
    assert_endured(&seeds);
    let endured: Vec<&Endured> =
        seeds.iter().filter_map(|simulated| simulated.result.as_ref().ok()).collect();
    // A bit may flip in the memory of the last living worker. The world asserts that a run fails
    // for no other reason.
    let failed: Vec<_> = endured.iter().enumerate().filter(|(_, one)| one.failed > 0).collect();
    assert!(failed.len() <= 4, "more than one seed in a hundred: {failed:?}");
    let completed: u64 = endured.iter().map(|one| one.completed).sum();
    let changes = changes(endured);
    let Tally { generations, lost, left, redone, rollbacks, checkpoints, restores, .. } = changes;
    assert!(completed > 1_200 && generations > 4_000, "{completed} runs, {generations}: too dull");
    assert!(lost > 800 && left > 100 && redone > 500 && rollbacks > 50, "too dull");
    assert!(checkpoints > 2_000 && restores > 25, "{changes:?}: too dull");
}

/// Some or all workers stand still together for up to 16 s, and nothing else goes wrong.
#[test]
fn i8_sixty_seeds_of_standstills_cost_no_worker() {
    let rates = Rates { standstills: 1.5, ..Rates::none() };
    assert_endured(&simulate(&simulation(rates), 60, 2));
}

/// Firewalls refuse probes, and nothing else, while processes stand still for up to 1.5 s.
#[test]
fn i8_sixty_seeds_of_refused_probes_and_pauses_cost_no_worker() {
    let rates = Rates { refused_probes: 8.0, pauses: 12.0, ..Rates::none() };
    let seeds = simulate(&simulation(rates), 60, 2);
    assert_endured(&seeds);
    let endured = seeds.iter().filter_map(|simulated| simulated.result.as_ref().ok());
    let Tally { lost, .. } = changes(endured);
    assert!(lost < 20, "{lost} members were lost: few pauses meet a link that is new to refusals");
}

#[test]
fn i3_fifty_seeds_of_mistakes_end_runs_and_change_none() {
    // No worker is lost: if the other owner were lost before the next vote, the wrong copy would be
    // alone.
    let rates = Rates { mistakes: 3.0, ..Rates::tolerated() };
    let seeds = simulate(&simulation(rates), 50, 2);
    assert_endured(&seeds);
    let endured = seeds.iter().filter_map(|simulated| simulated.result.as_ref().ok());
    let failed: u64 = endured.map(|one| one.failed).sum();
    assert!(failed > 20, "{failed} runs failed: too dull");
}

#[test]
fn i3_memory_that_changes_costs_workers_and_no_run_that_has_another() {
    let rates = Rates { flips: 4.0, garbles: 4.0, ..Rates::default() };
    let seeds = simulate(&simulation(rates), 150, 2);
    assert_endured(&seeds);
    let endured: Vec<&Endured> =
        seeds.iter().filter_map(|simulated| simulated.result.as_ref().ok()).collect();
    let failed: u64 = endured.iter().map(|one| one.failed).sum();
    let completed: u64 = endured.iter().map(|one| one.completed).sum();
    // A run that fails has lost its last worker to a flip. Else the judge would have found it.
    assert!(completed > 400 && failed < 20, "{completed} runs, {failed} failed");
}

#[test]
fn i8_faults_that_must_be_borne_cost_no_worker() {
    // The faults are few enough not to meet: two at once may be more than a cluster can bear.
    let rates = Rates {
        pauses: 1.0,
        clogs: 1.0,
        partitions: 0.5,
        one_way_partitions: 0.5,
        bridges: 0.5,
        ..Rates::tolerated()
    };
    let seeds = simulate(&simulation(rates), 60, 2);
    assert_endured(&seeds);
    let endured = seeds.iter().filter_map(|simulated| simulated.result.as_ref().ok());
    let Tally { lost, .. } = changes(endured);
    assert!(lost < 20, "{lost} members were lost: most interruptions are alone");
}

#[test]
fn the_same_seed_gives_the_same_trace_to_the_byte_on_any_thread() {
    let simulation = simulation(Rates::default());
    let (one, two) = (simulate(&simulation, 20, 1), simulate(&simulation, 20, 2));
    for (one, two) in one.iter().zip(&two) {
        assert_eq!((one.digest, one.events), (two.digest, two.events));
    }
    let (first, second) = (simulation.record(7), simulation.record(7));
    assert_eq!(first.lines, second.lines);
    assert_eq!(first.digest, one[7].digest, "words change nothing");
    assert_ne!(one[0].digest, one[1].digest);
}

#[test]
fn without_faults_every_run_is_complete_in_its_first_generation() {
    let seeds = simulate(&simulation(Rates::none()), 10, 2);
    assert_endured(&seeds);
    for endured in seeds.iter().filter_map(|one| one.result.as_ref().ok()) {
        // A coordinator asks for lines that another one has written sooner.
        let Tally { log_format, checkpoints, line_pages, .. } = endured.changes;
        let generations = endured.completed;
        let once = Tally { generations, checkpoints, line_pages, log_format, ..Tally::default() };
        assert_eq!(endured.changes, once);
    }
}

/// No shard has two owners in one zone, unless most machines are in that zone.
#[test]
fn owners_of_a_shard_stand_in_different_zones_where_machines_do() {
    type Zones = BTreeMap<SocketAddr, Option<Zone>>;
    fn parts(record: &Record, zones: &Zones) -> bool {
        let zone = |rank: &Rank| zones[&record.member(*rank).address].as_ref();
        let mut owners =
            record.owners.iter().map(|run| [zone(&run.owners[0]), zone(&run.owners[1])]);
        owners.all(|[one, other]| one.is_none() || one != other)
    }
    let (toy, records) = (Toy::new(|_| {}), Rc::new(Cell::new(0)));
    for seed in 0..40 {
        let mut world = toy.world(4, seed);
        let (mut zones, records) = (Zones::new(), records.clone());
        world.intercept(move |in_flight| {
            let InFlight::Messages { messages, .. } = in_flight else { return };
            for message in messages {
                match message {
                    Message::Register(it) => _ = zones.insert(it.address, it.zone.clone()),
                    Message::Announce(record) => {
                        let labels = || zones.values().flatten();
                        let crowd = |label| labels().filter(|other| *other == label).count();
                        let most = labels().map(crowd).max().unwrap_or_default();
                        assert!(most > 2 || parts(record, &zones), "{zones:?}: {record:?}");
                        records.set(records.get() + u64::from(most == 2));
                    }
                    _ => {}
                }
            }
        });
        world.run(VIRTUAL_TIME_LIMIT).expect("nothing is changed");
    }
    assert!(records.get() > 40, "{} records: too dull", records.get());
}

// One fault, at any moment of a run.

/// The results of some faults at every tenth of a second of a run, in a cluster of three.
fn at_every_moment(faults: &[Fault]) -> Vec<Endured> {
    at_every_moment_of(Toy::new(|_| {}), faults)
}

/// The same of these runs.
fn at_every_moment_of(toy: Toy, faults: &[Fault]) -> Vec<Endured> {
    let (toy, alone) = toy.with_reference();
    let moments = (0..20).map(|tenth| Time(0) + Duration::from_millis(100 * tenth));
    let endure = |(seed, at): (u64, Time)| {
        let schedule = Schedule(faults.iter().map(|fault| (at, fault.clone())).collect());
        let endured = toy.world(3, seed).endure(&schedule, SEVERAL_RUNS, alone.state_hash);
        endured.unwrap_or_else(|failure| panic!("{faults:?} at {at:?}: {failure}"))
    };
    (0..).zip(moments).map(endure).collect()
}

/// Long enough for several runs.
const SEVERAL_RUNS: Duration = Duration::from_secs(12);

fn longest(endured: &[Endured]) -> Duration {
    endured.iter().map(|one| one.longest).max().unwrap_or_default()
}

#[test]
fn a_worker_that_crashes_is_lost_and_nothing_else_is() {
    for node in [NodeId::Worker(0), NodeId::Worker(2)] {
        for restart in [None, Some(Duration::from_millis(300))] {
            let endured = at_every_moment(&[Fault::Crash { node, restart }]);
            let Tally { lost, rollbacks, .. } = changes(&endured);
            assert!((10..=20).contains(&lost), "{node}: {lost} lost");
            assert_eq!(rollbacks, 0, "I6: every shard has another owner");
            assert!(longest(&endured) < Duration::from_secs(1), "{:?}", longest(&endured));
        }
    }
}

/// Every commit and every line is compared with those of one worker without faults.
#[test]
fn i2_held_out_samples_have_the_same_loss_on_any_workers_and_when_a_step_is_done_again() {
    let evaluated = Toy::new(|run| run.data.validation_every = 2);
    let (toy, alone) = evaluated.clone().with_reference();
    let losses = |lines: &[MetricsLine]| -> Vec<Option<u64>> {
        lines.iter().map(|line| line.validation_loss.map(f64::to_bits)).collect()
    };
    let expected = losses(&alone.lines);
    let due: Vec<bool> = expected.iter().map(Option::is_some).collect();
    assert_eq!(due, [false, true, false, true, false, true]);
    let plain = Toy::new(|_| {}).complete(1, 0);
    assert_eq!(plain.state_hash, alone.state_hash, "an evaluation changes nothing");
    for workers in WORKERS {
        let finished = toy.complete(workers, 9);
        assert_eq!(losses(&finished.lines), expected, "{workers} workers");
    }
    let restart = Some(Duration::from_millis(300));
    let crash = Fault::Crash { node: NodeId::Worker(2), restart };
    let Tally { lost, redone, .. } = changes(&at_every_moment_of(evaluated, &[crash]));
    assert!(lost >= 10 && redone >= 5, "{lost} lost, {redone} redone: too dull");
}

#[test]
fn i8_a_coordinator_that_crashes_costs_nothing() {
    let restart = Some(Duration::from_millis(800));
    let endured = at_every_moment(&[Fault::Crash { node: NodeId::Leader, restart }]);
    let Tally { lost, redone, rollbacks, .. } = changes(&endured);
    assert_eq!((lost, redone, rollbacks), (0, 0, 0));
}

#[test]
fn a_run_whose_workers_crash_all_at_once_is_done_again_from_the_beginning() {
    let side: Vec<NodeId> = (0..3).map(NodeId::Worker).collect();
    let restart = Some(Duration::from_millis(300));
    let endured = at_every_moment(&[Fault::CrashTogether { side, restart }]);
    let Tally { rollbacks, .. } = changes(&endured);
    assert!((10..=20).contains(&rollbacks), "{rollbacks} rollbacks");
}

#[test]
fn a_worker_that_is_asked_to_leave_leaves_and_nothing_is_done_again() {
    for by in [DrainOrigin::Machine, DrainOrigin::Operator] {
        let grace = Some(Duration::from_secs(5));
        let endured = at_every_moment(&[Fault::Drain { node: NodeId::Worker(1), by, grace }]);
        let Tally { lost, left, redone, rollbacks, .. } = changes(&endured);
        assert_eq!((lost, redone, rollbacks), (0, 0, 0), "{by:?}");
        assert!((10..=20).contains(&left), "{by:?}: {left} have left");
    }
}

#[test]
fn a_worker_that_joins_becomes_a_member_and_nothing_is_done_again() {
    // Long enough that the worker syncs its shards before the run is over, at every moment of its
    // start.
    let toy = Toy::new(|run| run.steps = 30);
    let endured = at_every_moment_of(toy, &[Fault::Join { node: NodeId::Worker(4) }]);
    for (tenth, one) in endured.iter().enumerate() {
        let Tally { generations, lost, redone, .. } = one.changes;
        assert_eq!((lost, redone), (0, 0));
        // A worker that starts at the very beginning may be there when the first generation is
        // made.
        let joins = generations - one.completed;
        assert!(joins == 1 || (joins == 0 && tenth < 5), "{joins} joins, asked after {tenth}/10 s");
    }
}

#[test]
fn i8_a_pause_that_must_be_borne_delays_the_run_and_costs_no_worker() {
    for node in [NodeId::Leader, NodeId::Worker(0), NodeId::Worker(2)] {
        let endured = at_every_moment(&[Fault::Pause { node, span: TOLERATED_OUTAGE }]);
        assert_eq!(changes(&endured).lost, 0, "{node}");
    }
}

#[test]
fn a_partition_costs_a_worker_or_is_borne_by_its_length() {
    let partition = |span| Fault::Partition { side: vec![NodeId::Worker(1)], span };
    assert_eq!(changes(&at_every_moment(&[partition(TOLERATED_OUTAGE)])).lost, 0);
    let endured = at_every_moment(&[partition(Duration::from_secs(8))]);
    assert!(changes(&endured).lost > 10 && changes(&endured).rollbacks == 0);
}

#[test]
fn two_members_that_do_not_reach_each_other_are_parted_and_the_run_goes_on() {
    let ends = (NodeId::Worker(0), NodeId::Worker(2));
    let endured = at_every_moment(&[Fault::Bridge { ends, span: SEVERAL_RUNS }]);
    let Tally { lost, rollbacks, .. } = changes(&endured);
    assert!(lost > 10 && rollbacks == 0, "{lost} lost, {rollbacks} rollbacks");
    // Each schedule completes one run when they reach each other again. The other runs complete
    // meanwhile.
    let runs: u64 = endured.iter().map(|one| one.completed).sum();
    assert!(runs > 40, "{runs} runs in 20 times");
}

#[test]
fn two_members_that_lose_their_link_go_on_together() {
    let ends = (NodeId::Worker(0), NodeId::Worker(2));
    let endured = at_every_moment(&[Fault::Disconnect { ends }]);
    let Tally { lost, generations, .. } = changes(&endured);
    let runs: u64 = endured.iter().map(|one| one.completed).sum();
    assert_eq!(lost, 0, "the first time they go on together");
    assert!(generations > runs + 10, "in another generation");
}

#[test]
fn a_flipped_bit_costs_the_worker_whose_device_finds_it() {
    let endured = at_every_moment(&[Fault::Flip { node: NodeId::Worker(1) }]);
    let Tally { lost, rollbacks, .. } = changes(&endured);
    assert!((1..=20).contains(&lost) && rollbacks == 0, "{lost} lost");
}

// The judge itself.

#[test]
fn i11_what_is_lost_without_its_connection_is_found_as_stuck() {
    let (toy, alone) = Toy::new(|_| {}).with_reference();
    let mut world = toy.world(3, 1);
    let mut lost = false;
    world.intercept(move |in_flight| {
        let InFlight::Messages { messages, .. } = in_flight else { return };
        let vote = messages.iter().any(|message| matches!(message, Message::Prepared(_)));
        if vote && !std::mem::replace(&mut lost, true) {
            messages.clear();
        }
    });
    let met = world.endure(&Schedule::default(), MINUTE, alone.state_hash);
    let failure = met.expect_err("nobody repeats a vote");
    assert_eq!(failure.invariant(), Some(Invariant::I11));
    assert!(failure.to_string().contains(&format!("{MAX_STANDSTILL:?}")), "{failure}");
    assert!(failure.to_string().contains("has committed step 0"), "{failure}");
}

#[test]
fn i8_a_worker_whose_heartbeats_nobody_carries_is_lost_without_a_fault() {
    let (toy, alone) = Toy::new(|run| run.steps = 40).with_reference();
    let mut world = toy.world(3, 1);
    world.intercept(|in_flight| {
        let InFlight::Messages { from: NodeId::Worker(1), to, messages } = in_flight else {
            return;
        };
        if matches!(to, NodeId::Coordinator(_)) {
            messages.retain(|message| !matches!(message, Message::Heartbeat(_)));
        }
    });
    let met = world.endure(&Schedule::default(), MINUTE, alone.state_hash);
    assert_eq!(met.expect_err("it is lost").invariant(), Some(Invariant::I8));
}

#[test]
fn i20_a_pause_whose_answers_nobody_carries_is_found() {
    let (toy, alone) = Toy::new(|_| {}).with_reference();
    let mut world = toy.world(3, 1);
    world.intercept(|in_flight| {
        let InFlight::Messages { messages, .. } = in_flight else { return };
        messages.retain(|message| !matches!(message, Message::Status(_)));
    });
    let met = world.endure(&Schedule::default(), MINUTE, alone.state_hash);
    assert_eq!(met.expect_err("nobody plans").invariant(), Some(Invariant::I20));
}

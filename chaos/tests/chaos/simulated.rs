//! Whole clusters under seeded faults: nothing wrong is computed, nothing hangs, and when nothing
//! goes wrong any more the run becomes complete with the reference's bits (I7, I8, I10, I11).

use std::thread;
use std::time::Duration;

use everstep_chaos::check::Invariant;
use everstep_chaos::fault::{Fault, Rates, Schedule, TOLERATED};
use everstep_chaos::simulate::{Simulated, Simulation};
use everstep_chaos::world::{DECLARED, Endured, Node, Passing};
use everstep_transport::protocol::Message;
use everstep_transport::time::Time;

use crate::support::Toy;

const MINUTE: Duration = Duration::from_secs(60);

fn simulation(rates: Rates) -> Simulation {
    Simulation::new(4, MINUTE, rates).expect("without a fault")
}

/// Simulates these seeds on `threads` threads; the results are in the order of the seeds.
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

#[test]
fn five_hundred_seeds_of_every_fault_keep_every_promise() {
    let seeds = simulate(&simulation(Rates::default()), 500, 2);
    assert_endured(&seeds);
    let endured = seeds.iter().filter_map(|simulated| simulated.result.as_ref().ok());
    let (completed, failed) =
        endured.fold((0, 0), |(all, some), one| (all + one.completed, some + one.failed));
    assert!(completed > 500 && failed > 500, "{completed} complete, {failed} failed: too dull");
}

#[test]
fn i8_faults_that_must_be_borne_end_no_run() {
    // Few enough to tell them apart: two at once may be more than can be borne.
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
    let failed: u64 = seeds.iter().filter_map(|one| Some(one.result.as_ref().ok()?.failed)).sum();
    assert!(failed < 20, "{failed} runs failed: most interruptions are alone");
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
fn without_faults_every_run_is_complete() {
    let seeds = simulate(&simulation(Rates::none()), 10, 2);
    assert_endured(&seeds);
    assert!(seeds.iter().all(|one| one.result.as_ref().is_ok_and(|it| it.failed == 0)));
}

// One fault, at any moment of a run.

/// What one fault at every tenth of a second of a run leads to, in a cluster of three.
fn at_every_moment(fault: &Fault) -> Vec<Endured> {
    let (toy, alone) = Toy::new(|_| {}).with_reference();
    let moments = (0..20).map(|tenth| Time(0) + Duration::from_millis(100 * tenth));
    let endure = |(seed, at): (u64, Time)| {
        let schedule = Schedule(vec![(at, fault.clone())]);
        let endured = toy.world(3, seed).endure(&schedule, SECONDS, alone.state_hash);
        endured.unwrap_or_else(|failure| panic!("{fault} at {at:?}: {failure}"))
    };
    (0..).zip(moments).map(endure).collect()
}

/// Long enough for every fault to have been declared.
const SECONDS: Duration = Duration::from_secs(12);

fn failed(seeds: &[Endured]) -> u64 {
    seeds.iter().map(|endured| endured.failed).sum()
}

#[test]
fn a_process_that_crashes_is_missed_in_time_whenever_it_was() {
    for node in [Node::Coordinator, Node::Worker(0), Node::Worker(2)] {
        for restart in [None, Some(Duration::from_millis(300))] {
            let endured = at_every_moment(&Fault::Crash { node, restart });
            assert!(failed(&endured) > 10, "{node}: {} runs failed", failed(&endured));
            assert!(endured.iter().all(|one| one.longest < DECLARED), "{endured:?}");
        }
    }
}

#[test]
fn i8_a_pause_that_must_be_borne_delays_the_run_and_ends_none() {
    for node in [Node::Coordinator, Node::Worker(0), Node::Worker(2)] {
        let endured = at_every_moment(&Fault::Pause { node, span: TOLERATED });
        assert_eq!(failed(&endured), 0, "{node}");
    }
}

#[test]
fn a_partition_is_declared_or_borne_by_its_length() {
    let partition = |span| Fault::Partition { side: vec![Node::Worker(1)], span };
    assert_eq!(failed(&at_every_moment(&partition(TOLERATED))), 0);
    assert!(failed(&at_every_moment(&partition(Duration::from_secs(8)))) > 10);
}

// The judge itself.

#[test]
fn i11_what_is_lost_without_its_connection_is_found_as_stuck() {
    let (toy, alone) = Toy::new(|_| {}).with_reference();
    let mut world = toy.world(3, 1);
    let mut lost = false;
    world.meddle(move |passing| {
        let Passing::Messages { messages, .. } = passing else { return };
        let vote = messages.iter().any(|message| matches!(message, Message::Prepared(_)));
        if vote && !std::mem::replace(&mut lost, true) {
            messages.clear();
        }
    });
    let met = world.endure(&Schedule::default(), MINUTE, alone.state_hash);
    let failure = met.expect_err("nobody repeats a vote");
    assert_eq!(failure.invariant(), Some(Invariant::I11));
    assert!(failure.to_string().contains("has committed step 0"), "{failure}");
}

#[test]
fn i8_a_worker_whose_heartbeats_nobody_carries_is_lost_without_a_fault() {
    let (toy, alone) = Toy::new(|run| run.steps = 40).with_reference();
    let mut world = toy.world(3, 1);
    world.meddle(|passing| {
        let Passing::Messages { from: Node::Worker(1), to, messages } = passing else { return };
        if to == Node::Coordinator {
            messages.retain(|message| !matches!(message, Message::Heartbeat(_)));
        }
    });
    let met = world.endure(&Schedule::default(), MINUTE, alone.state_hash);
    assert_eq!(met.expect_err("it is lost").invariant(), Some(Invariant::I8));
}

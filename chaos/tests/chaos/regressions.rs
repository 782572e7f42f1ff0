//! Failures that seeds have found: each with the few faults that it took, as a schedule of its own.

use std::time::Duration;

use everstep_chaos::fault::{DrainOrigin, Fault, Rates, Schedule};
use everstep_chaos::simulate::Simulation;
use everstep_chaos::world::{Endured, NodeId};
use everstep_transport::protocol::run::Precision;
use everstep_transport::time::Time;

const MINUTE: Duration = Duration::from_secs(60);
/// The leader at that moment.
const COORDINATOR: NodeId = NodeId::Leader;

fn worker(slot: usize) -> NodeId {
    NodeId::Worker(slot)
}

/// A fault, `ms` milliseconds after the beginning.
fn at(ms: f64, fault: Fault) -> (Time, Fault) {
    (Time((ms * 1e6) as u64), fault)
}

fn crash(node: NodeId, restart_ms: u64) -> Fault {
    let restart = (restart_ms > 0).then(|| Duration::from_millis(restart_ms));
    Fault::Crash { node, restart }
}

fn clog(from: NodeId, to: NodeId, ms: u64) -> Fault {
    Fault::Clog { from, to, span: Duration::from_millis(ms) }
}

fn bridge(one: NodeId, other: NodeId, ms: u64) -> Fault {
    Fault::Bridge { ends: (one, other), span: Duration::from_millis(ms) }
}

fn together(slots: &[usize], restart_ms: u64) -> Fault {
    let side = slots.iter().copied().map(worker).collect();
    let restart = (restart_ms > 0).then(|| Duration::from_millis(restart_ms));
    Fault::CrashTogether { side, restart }
}

fn pause(node: NodeId, ms: u64) -> Fault {
    Fault::Pause { node, span: Duration::from_millis(ms) }
}

/// A cluster of four without faults of its own. The seed chooses the precision.
fn four(span: Duration) -> Simulation {
    Simulation::new(4, span, Rates::none()).expect("without a fault")
}

/// A cluster of four that trains in f32, without faults of its own.
fn full(span: Duration) -> Simulation {
    four(span).precise(Precision::F32)
}

/// A cluster bears these faults.
#[track_caller]
fn bear(simulation: &Simulation, seed: u64, faults: Vec<(Time, Fault)>) -> Endured {
    let met = simulation.endure(seed, &Schedule(faults)).result;
    met.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"))
}

/// A cluster of four with these faults. All other choices follow from the seed.
#[track_caller]
fn endure(seed: u64, faults: Vec<(Time, Fault)>) -> Endured {
    bear(&full(MINUTE), seed, faults)
}

#[test]
fn i20_a_learner_that_dies_between_a_hold_and_its_pause() {
    let endured = endure(
        171,
        vec![
            at(19460.621, crash(worker(3), 1_119)),
            at(21924.525, crash(COORDINATOR, 2_846)),
            at(32106.160, Fault::Join { node: worker(5) }),
            at(32454.112, crash(worker(5), 0)),
        ],
    );
    assert_eq!(endured.changes.rollbacks, 0);
}

#[test]
fn i11_a_learner_whose_link_of_an_earlier_life_ends_after_it_was_met() {
    let side = vec![worker(0), worker(2), worker(5)];
    let span = Duration::from_millis(2_342);
    endure(
        128,
        vec![
            at(41908.305, clog(worker(4), worker(0), 660)),
            at(46370.492, Fault::Partition { side, span }),
        ],
    );
}

#[test]
fn i16_an_owner_that_dies_when_it_has_said_what_it_holds() {
    endure(
        339,
        vec![
            at(20416.776, pause(worker(2), 1_324)),
            at(22682.143, Fault::Disconnect { ends: (worker(2), COORDINATOR) }),
            at(22723.243, crash(worker(0), 0)),
        ],
    );
}

#[test]
fn i8_a_worker_that_hears_nothing_and_a_coordinator_that_was_hardly_late() {
    let side = vec![worker(0), worker(5)];
    let span = Duration::from_millis(8_149);
    endure(
        78,
        vec![at(31537.445, Fault::OneWay { side, span }), at(33080.128, pause(COORDINATOR, 114))],
    );
}

#[test]
fn i11_a_worker_that_leaves_before_the_first_generation() {
    let grace = Some(Duration::from_secs(5));
    endure(
        811,
        vec![
            at(42478.682, clog(COORDINATOR, worker(3), 8_707)),
            at(50443.228, pause(worker(1), 4_687)),
            at(52624.470, pause(worker(2), 7_643)),
            at(53235.050, Fault::Drain { node: worker(2), by: DrainOrigin::Operator, grace }),
        ],
    );
}

#[test]
fn i17_everyone_who_knew_how_far_the_first_generation_came_is_gone() {
    for tenth in 5..15 {
        let fault = together(&[0, 1, 2, 3, 4, 5], 300);
        let endured = endure(tenth, vec![at(100.0 * tenth as f64, fault)]);
        assert_eq!(endured.changes.rollbacks, 1, "at {tenth} tenths of a second");
    }
}

/// Twelve seconds of a cluster of four.
fn twelve_seconds() -> Simulation {
    full(Duration::from_secs(12))
}

/// The same, once for each seed, with faults that depend on it.
#[track_caller]
fn sweep(seeds: u64, faults: impl Fn(u64) -> Vec<(Time, Fault)>) {
    sweep_of(&twelve_seconds(), seeds, faults);
}

/// The same for another cluster.
#[track_caller]
fn sweep_of(simulation: &Simulation, seeds: u64, faults: impl Fn(u64) -> Vec<(Time, Fault)>) {
    for seed in 0..seeds {
        let met = simulation.endure(seed, &Schedule(faults(seed))).result;
        met.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

/// All workers but the one on machine 0 crash one after the other, with time to mend in between.
/// The last of them comes again.
fn down_to_one() -> Vec<(Time, Fault)> {
    let crashes = [(600.0, 3, 0), (1_400.0, 2, 0), (2_200.0, 1, 150)];
    crashes.map(|(ms, slot, restart_ms)| at(ms, crash(worker(slot), restart_ms))).into()
}

/// The last member and the worker that is to end its waiting lose each other while that one catches
/// up: for a moment, or for so long that a dial fails at first.
#[test]
fn i11_a_learner_that_is_cut_off_while_the_run_waits_for_it() {
    sweep(60, |seed| {
        let mut faults = down_to_one();
        let ends = (worker(0), worker(1));
        let span = Duration::from_secs(5);
        let ms = 2_350.0 + 5.0 * (seed / 2) as f64;
        let long = seed % 2 == 1;
        let cut = if long { Fault::Bridge { ends, span } } else { Fault::Disconnect { ends } };
        faults.push(at(ms, cut));
        faults
    });
}

#[test]
fn i13_lines_that_only_a_member_has_that_is_left_behind() {
    sweep(60, |seed| {
        let mut faults = down_to_one();
        let ms = 2_300.0 + 20.0 * (seed % 30) as f64;
        faults.push(at(ms, bridge(worker(0), COORDINATOR, 6_000)));
        faults
    });
}

#[test]
fn i17_a_learner_does_not_know_how_far_the_last_member_has_come() {
    sweep(120, |seed| {
        let mut faults = down_to_one();
        let ms = 2_400.0 + 10.0 * (seed % 60) as f64;
        let side = vec![worker(0)];
        faults.push(at(ms, Fault::Partition { side, span: Duration::from_secs(6) }));
        faults
    });
}

#[test]
fn i16_a_learner_whose_updates_wait_behind_a_pass() {
    endure(8418, vec![at(418.974, crash(worker(3), 715)), at(1084.155, crash(worker(2), 1_867))]);
}

#[test]
fn i5_a_step_leader_that_commits_in_a_generation_that_is_over() {
    endure(
        2503,
        vec![at(42292.112, pause(worker(1), 3_828)), at(46024.947, crash(COORDINATOR, 980))],
    );
}

/// With one copy of all shards the leader can leave out neither. It leaves out none, and the run
/// goes on when they reach each other again.
#[test]
fn i11_a_pair_that_cannot_reach_each_other_and_cannot_be_parted() {
    const OF_ONE_COPY: [u64; 4] = [3, 7, 11, 12];
    let span = Duration::from_secs(18);
    let simulation = full(span);
    for seed in OF_ONE_COPY {
        let faults = vec![at(1_000.0, bridge(worker(0), worker(1), 15_000))];
        let met = simulation.endure(seed, &Schedule(faults)).result;
        let changes = met.unwrap_or_else(|failure| panic!("seed {seed}: {failure}")).changes;
        assert_eq!((changes.lost, changes.rollbacks), (0, 0), "seed {seed}");
        assert!((4..=12).contains(&changes.generations), "seed {seed}: {changes:?}");
    }
}

/// No other worker has a copy of the shards of one worker.
#[test]
fn i21_a_worker_that_stands_still_is_waited_for() {
    for ms in [9_500, 12_000, 28_000] {
        let endured = endure(3, vec![at(1_000.0, pause(worker(1), ms))]);
        assert_eq!(endured.changes.rollbacks, 0, "{ms} ms");
    }
}

/// The coordinator that told the history was removed, and the part that it told is in no file for
/// good. If the coordinator that heard it crashes then, it can hear nothing more of the first one.
#[test]
fn i13_who_was_told_the_history_crashes_when_nobody_else_has_it() {
    let (founder, joins) = (NodeId::Coordinator(0), NodeId::Coordinator(1));
    let restart = Duration::from_millis(200);
    sweep_of(&twelve_seconds().coordinated(1), 20, |_| {
        vec![
            at(700.0, Fault::Join { node: joins }),
            at(1_400.0, Fault::CrashExpelling { restart }),
            at(1_500.0, Fault::Remove { node: founder, restart: None }),
        ]
    });
}

/// The new coordinator has not heard the history when it comes to lead, since their link was lost.
#[test]
fn i13_who_founded_the_cluster_is_removed_before_it_has_told_the_history() {
    let (founder, joins) = (NodeId::Coordinator(0), NodeId::Coordinator(1));
    let (ends, extra) = ((founder, joins), Duration::from_millis(40));
    sweep_of(&twelve_seconds().coordinated(1), 20, |seed| {
        let (ms, span) = (1_400.0 + 5.0 * seed as f64, Duration::from_millis(300 + 5 * seed));
        vec![
            at(700.0, Fault::Join { node: joins }),
            at(1_100.0, Fault::Slow { ends, extra, span }),
            at(ms, Fault::Disconnect { ends }),
            at(ms + 130.0, Fault::Remove { node: founder, restart: None }),
        ]
    });
}

/// The new coordinator comes to lead before it has asked for lines, and before the first one has
/// told how many there are. The next workers of the run have none of them.
#[test]
fn i13_who_has_all_lines_is_removed_as_soon_as_another_has_joined() {
    let ends = (worker(2), worker(3));
    let (extra, span) = (Duration::from_nanos(35_763_333), Duration::from_nanos(1_931_046_965));
    let (by, grace) = (DrainOrigin::Machine, Some(Duration::from_nanos(3_346_129_975)));
    let faults = vec![
        at(13_852.173, Fault::Slow { ends, extra, span }),
        at(14_236.682, Fault::CutStore),
        at(22_633.359, Fault::Deafen { node: COORDINATOR, span: Duration::from_millis(11_693) }),
        at(24_978.575, Fault::Drain { node: worker(0), by, grace }),
        at(27_787.543, Fault::Join { node: NodeId::Coordinator(1) }),
        at(28_746.246, Fault::Remove { node: COORDINATOR, restart: None }),
    ];
    bear(&four(MINUTE), 31_772, faults);
}

/// Its leader sends a message every 25 ms, and it answers none before its disk goes on. The other
/// faults keep the run, and with it the cluster, from their end.
#[test]
fn i10_a_follower_whose_disk_stands_still_for_nine_seconds() {
    let (restart, span) = (Duration::from_millis(3_703), Duration::from_millis(8_744));
    endure(
        1880,
        vec![
            at(11863.050, Fault::Wipe { node: COORDINATOR, restart }),
            at(35068.844, Fault::Stall { node: NodeId::Coordinator(2), span }),
            at(35480.007, bridge(NodeId::Coordinator(0), worker(1), 8_674)),
        ],
    );
}

#[test]
fn i10_a_follower_whose_disk_stands_still_when_the_leader_is_removed() {
    let (stalled, other) = (NodeId::Coordinator(0), NodeId::Coordinator(1));
    let (restart, span) = (Duration::from_millis(3_495), Duration::from_millis(9_495));
    endure(
        5054,
        vec![
            at(24362.305, bridge(other, worker(3), 6_115)),
            at(24601.896, Fault::Stall { node: stalled, span }),
            at(25220.311, Fault::Remove { node: COORDINATOR, restart: Some(restart) }),
            at(25798.824, clog(worker(4), stalled, 7_330)),
            at(26253.733, together(&[0, 3, 4, 5], 0)),
        ],
    );
}

/// The leader stands still for so long that another coordinator asks for votes. That one ends,
/// since its disk has no room to write down the term. Only the operators have heard of its term.
#[test]
fn i11_a_candidate_tells_operators_of_its_term_and_dies() {
    let restart = Duration::from_millis(1_500);
    sweep_of(&twelve_seconds().coordinated(3), 20, |seed| {
        let candidate = NodeId::Coordinator(1 + seed as usize % 2);
        vec![
            at(1_000.0, pause(COORDINATOR, 170 + 4 * seed)),
            at(1_020.0, Fault::FullDisk { node: candidate, restart }),
        ]
    });
}

/// The network between all coordinators and all workers is down. The run loses nothing but time.
#[test]
fn i21_coordinators_that_are_cut_off_from_all_workers_cost_no_worker() {
    for (coordinators, seed, seconds) in [(1, 3, 15), (3, 4, 15), (1, 5, 60), (3, 8, 60)] {
        let span = Duration::from_secs(seconds);
        let simulation = full(span + Duration::from_secs(20)).coordinated(coordinators);
        let faults = vec![at(1_000.0, Fault::Isolation { span })];
        let Endured { changes, completed, .. } = bear(&simulation, seed, faults);
        assert_eq!((changes.lost, changes.rollbacks), (0, 0), "seed {seed}: {changes:?}");
        assert!(completed > 0, "seed {seed}");
    }
}

/// All machines of a host stand still, or half of them.
#[test]
fn i21_workers_that_stand_still_together_are_waited_for() {
    for (coordinators, count) in [(1, 2), (1, 4), (3, 2), (3, 4)] {
        let span = Duration::from_secs(15);
        let side = (0..count).map(worker).collect();
        let faults = vec![at(1_000.0, Fault::PauseTogether { side, span })];
        let changes = bear(&full(MINUTE).coordinated(coordinators), 3, faults).changes;
        assert_eq!((changes.lost, changes.rollbacks), (0, 0), "{count} workers: {changes:?}");
    }
}

/// Members wait for their shards of a checkpoint longer than a data shard may take: their devices
/// do not hang.
#[test]
fn i8_members_that_wait_for_the_store_are_not_taken_for_hanging() {
    let away = Fault::StoreAway { span: Duration::from_millis(9_624) };
    let faults = vec![at(33_386.302, together(&[0, 2, 3], 3_948)), at(37_405.498, away)];
    bear(&four(MINUTE), 7_648, faults);
}

/// A worker stands still while it reads a checkpoint. The others go on without it, and delete the
/// checkpoint after newer ones: that is no damage.
#[test]
fn i12_a_worker_that_stood_still_may_read_a_checkpoint_that_is_deleted_since() {
    let faults = vec![at(19_442.657, Fault::LoseCluster), at(20_401.104, pause(worker(1), 6_801))];
    bear(&four(MINUTE), 16_324, faults);
}

/// The operator makes a refused removal anew, with a pause of the run still to be ended: the later
/// number of the removal must not supersede the end of the pause.
#[test]
fn i26_a_pause_ends_beside_a_removal_that_is_asked_for_again() {
    endure(3_001_020, {
        vec![
            at(13_664.449, Fault::Rest { span: Duration::from_millis(8_764) }),
            at(15_055.464, pause(NodeId::Coordinator(1), 8_023)),
            at(19_730.630, Fault::Remove { node: COORDINATOR, restart: None }),
        ]
    });
}

/// A step leader finds that two owners differ while no coordinator lives. If the step leader ended
/// then, the other workers would go on with the only copy left, which may be the wrong one.
#[test]
fn i19_a_member_that_finds_a_broken_run_while_nobody_leads_tells_the_next_leader() {
    let rates = Rates::none();
    let cluster = Simulation::new(4, Duration::from_secs(6), rates).expect("without a fault");
    let cluster = cluster.precise(Precision::F32).coordinated(1);
    let mut failed = 0;
    for worker in 0..4 {
        let crash = Fault::Crash {
            node: NodeId::Coordinator(0),
            restart: Some(Duration::from_millis(1_500)),
        };
        let mistake = Fault::Mistake { node: NodeId::Worker(worker) };
        let schedule = Schedule(vec![at(1_500.0, crash), at(1_501.0, mistake)]);
        let endured = cluster.endure(1, &schedule).result;
        failed += endured.unwrap_or_else(|failure| panic!("{worker}: {failure}")).failed;
    }
    assert_eq!(failed, 4, "each mistake fails a run");
}

//! Planted bugs of the cores and the devices themselves. A simulation finds each by an invariant
//! that does not hold, never by an assertion at the place of the bug.

use std::time::Duration;

use everstep_chaos::check::Invariant::{
    self, I1, I2, I3, I4, I5, I6, I7, I8, I9, I10, I11, I13, I15, I16, I17, I18, I19, I21, I22,
    I25, I26,
};
use everstep_chaos::fault::{Fault, Rates, Schedule};
use everstep_chaos::simulate::Simulation;
use everstep_chaos::world::{Failure, NodeId, Prepare};
use everstep_coordinator::node;
use everstep_coordinator::plant::CorePlant;
use everstep_coordinator::raft::plant::RaftPlant;
use everstep_transport::protocol::run::Precision;
use everstep_transport::time::Time;
use everstep_worker::plant::Plant;

use crate::support::OF_ONE_COPY;

/// Each bug is found within this many seeds.
const SEEDS: u64 = 1_000;

/// Prepares the core with a bug, or the device.
macro_rules! plant {
    (core $plant:ident) => {
        Prepare { worker: |core| core.plant(Plant::$plant), ..Prepare::default() }
    };
    (device $plant:ident) => {
        Prepare { device: |device| device.plant(Plant::$plant), ..Prepare::default() }
    };
    (coordinator $plant:ident) => {
        Prepare {
            coordinator: |now, options, kept, history| {
                node::Node::planted(now, options, kept, history, CorePlant::$plant)
            },
            ..Prepare::default()
        }
    };
    (replica $plant:ident) => {
        Prepare {
            coordinator: |now, mut options, kept, history| {
                options.replica.plant = Some(RaftPlant::$plant);
                node::Node::new(now, options, kept, history)
            },
            ..Prepare::default()
        }
    };
}

/// Runs in f32, in which most of the bugs were found first.
fn simulation(rates: Rates, prepare: Prepare) -> Simulation {
    let cluster = Simulation::new(4, Duration::from_secs(20), rates).expect("without a fault");
    cluster.prepared(prepare).precise(Precision::F32)
}

/// Looks for the bug. Returns after how many seeds it was found.
#[track_caller]
fn find(prepare: Prepare, rates: Rates, promised: &[Invariant]) -> u64 {
    find_with(&simulation(rates, prepare), promised)
}

#[track_caller]
fn find_with(simulation: &Simulation, promised: &[Invariant]) -> u64 {
    for seed in 0..SEEDS {
        if let Err(failure) = simulation.simulate(seed).result {
            let invariant = failure.invariant();
            assert!(invariant.is_some_and(|it| promised.contains(&it)), "seed {seed}: {failure}");
            println!("found with {} seeds: {failure}", seed + 1);
            return seed + 1;
        }
    }
    panic!("not found with {SEEDS} seeds")
}

#[test]
fn memory_that_is_written_over_before_it_is_read_is_found() {
    let prepare = Prepare { frees_early: true, ..Prepare::default() };
    find(prepare, Rates::default(), &[I25]);
}

#[test]
fn a_commit_without_one_vote_is_found() {
    find(plant!(core CommitEarly), Rates::default(), &[I2, I4, I18]);
}

#[test]
fn a_sum_in_order_of_arrival_is_found() {
    find(plant!(core ReduceAsTheyCome), Rates::default(), &[I2, I3]);
}

#[test]
fn taking_what_is_over_is_found() {
    find(plant!(core AcceptOld), Rates::default(), &[I7]);
}

/// The samples recorded during the computation show it, whatever came of them.
#[test]
fn i4_samples_by_rank_are_found() {
    find(plant!(device SampleByRank), Rates::default(), &[I4]);
}

#[test]
fn an_update_before_its_commit_is_found() {
    find(plant!(core UpdateEarly), Rates::default(), &[I3]);
}

#[test]
fn a_pass_that_does_not_wait_for_parameters_is_found() {
    find(plant!(device LoadUnderWay), Rates::default(), &[I2, I3]);
}

#[test]
fn digests_that_nobody_compares_are_found() {
    find(plant!(core TrustDigests), mistaken(), &[I2, I19]);
}

#[test]
fn gradients_that_nobody_looks_at_are_found() {
    find(plant!(device BelieveGradients), Rates::default(), &[I2, I3, I19]);
}

/// Devices fail, and no fault explains it.
#[test]
fn a_digest_that_is_not_the_gradients_is_found() {
    find(plant!(core MisstateDigest), Rates::default(), &[I8]);
}

/// Now and then an owner errs. No worker is lost meanwhile: if the other owner were lost before the
/// next vote, there would be nothing to compare with.
fn mistaken() -> Rates {
    Rates { mistakes: 3.0, ..Rates::tolerated() }
}

#[test]
fn a_line_that_counts_twice_is_found() {
    find(plant!(coordinator CountLinesTwice), Rates::default(), &[I13]);
}

/// The file has lines of steps that are not settled any more.
#[test]
fn i13_undone_lines_that_stay_in_the_file_are_found() {
    find(plant!(coordinator KeepUndoneLines), Rates::default(), &[I11, I13]);
}

#[test]
fn i13_lines_that_are_called_written_and_are_on_no_disk_are_found() {
    find(plant!(coordinator AcknowledgeEarly), Rates::default(), &[I13]);
}

// Changes of generation: the worker.

#[test]
fn a_commit_after_a_promise_is_found() {
    find(plant!(core BreakPromise), Rates::default(), &[I7]);
}

/// No worker has recorded these samples for the step that commits.
#[test]
fn i4_samples_of_another_step_in_a_redo_are_found() {
    find(plant!(core RedoOtherSamples), Rates::default(), &[I4]);
}

/// A worker that still owns the shard refuses the new one. A worker that owns it no more has one
/// too many, and never votes.
#[test]
fn reduced_shards_of_an_aborted_try_are_found() {
    find(plant!(core StaleReduced), Rates::default(), &[I2, I3, I4, I11, I17, I18]);
}

#[test]
fn a_recorded_commit_that_is_not_applied_is_found() {
    find(plant!(core SkipRollForward), Rates::default(), &[I3, I16]);
}

#[test]
fn a_learner_that_leaves_a_step_out_is_found() {
    find(plant!(core FeedGap), Rates::default(), &[I3, I16, I19]);
}

#[test]
fn a_commit_that_is_shown_as_a_younger_generations_is_found() {
    find(plant!(core OldRecordCommit), Rates::default(), &[I17]);
}

#[test]
fn lines_that_nobody_carries_on_are_found() {
    find(plant!(core ForgetLine), Rates::default(), &[I11, I13]);
}

#[test]
fn i22_a_run_that_ends_before_its_model_is_durable_is_found() {
    find(plant!(coordinator FinishUnwritten), Rates::default(), &[I22]);
}

#[test]
fn i22_a_run_that_ends_before_its_store_has_the_model_is_found() {
    find(plant!(coordinator FinishUnstored), Rates::default(), &[I22]);
}

/// The run is paused often, and for long.
#[test]
fn i26_a_pause_that_its_leader_forgets_is_found() {
    let rates = Rates { rests: 6.0, ..Rates::default() };
    find(plant!(coordinator ForgetPause), rates, &[I26]);
}

#[test]
fn a_kept_partial_that_is_added_into_itself_is_found() {
    find(plant!(core AddIntoKept), Rates::default(), &[I2, I3]);
}

/// The computation on a device shows it: members agree on a scale that all of them have forgotten.
#[test]
fn i2_a_loss_scale_that_is_forgotten_at_a_change_is_found() {
    let forgets = simulation(Rates::default(), plant!(core ForgetScale)).precise(Precision::F16);
    find_with(&forgets, &[I2]);
}

// Changes of generation: the coordinator.

#[test]
fn a_plan_from_what_was_said_at_an_earlier_pause_is_found() {
    find(plant!(coordinator AnyStatus), Rates::default(), &[I5, I15, I16, I17]);
}

/// A worker takes the only copy of some shards with it, so the run goes back. The way of another
/// worker is slow, and its link is lost before it hears of that. At the Pause for its sake it shows
/// a commit that the rollback has undone.
#[test]
fn a_plan_that_goes_on_from_an_undone_commit_is_found() {
    let undone = |ms| {
        let at = |ms| Time(0) + Duration::from_millis(ms);
        let ends = (NodeId::Leader, NodeId::Worker(1));
        let (extra, span) = (Duration::from_millis(200), Duration::from_secs(2));
        Schedule(vec![
            (at(1_000), Fault::Crash { node: NodeId::Worker(3), restart: None }),
            (at(1_000), Fault::Slow { ends, extra, span }),
            (at(ms), Fault::Disconnect { ends }),
        ])
    };
    let sound = simulation(Rates::none(), Prepare::default());
    let misled = simulation(Rates::none(), plant!(coordinator ResumeFromOld));
    let mut found = Vec::new();
    for ms in (1_000..1_500).step_by(5) {
        sound.endure(OF_ONE_COPY, &undone(ms)).result.expect("without the bug it is borne");
        found.extend(misled.endure(OF_ONE_COPY, &undone(ms)).result.err());
    }
    let promised = |failure: &Failure| matches!(failure.invariant(), Some(I6 | I17 | I21));
    assert!(!found.is_empty() && found.iter().all(promised), "{found:?}");
}

#[test]
fn a_member_that_has_not_promised_is_found() {
    // Many members stand still while others crash. They do not answer.
    let rates = Rates { pauses: 20.0, worker_crashes: 12.0, long: 0.6, ..Rates::default() };
    find(plant!(coordinator ListUnpromised), rates, &[I15]);
}

#[test]
fn an_owner_that_does_not_hold_its_shard_is_found() {
    find(plant!(coordinator ListNonHolder), Rates::default(), &[I16]);
}

#[test]
fn a_rollback_before_all_owners_are_dead_is_found() {
    find(plant!(coordinator HastyRollback), Rates::default(), &[I21]);
}

#[test]
fn a_rollback_for_silence_alone_is_found() {
    let simulation = simulation(Rates::none(), plant!(coordinator ImpatientRollback));
    let fault = Fault::Pause { node: NodeId::Worker(1), span: Duration::from_millis(14_000) };
    let schedule = Schedule(vec![(Time(0) + Duration::from_secs(1), fault)]);
    let found = simulation.endure(OF_ONE_COPY, &schedule).result.expect_err("it is found");
    assert_eq!(found.invariant(), Some(I21), "{found}");
}

/// Some or all workers stand still, and nothing else goes wrong.
#[test]
fn i8_giving_up_workers_that_stand_still_together_is_found() {
    let rates = Rates { standstills: 2.0, ..Rates::none() };
    find(plant!(coordinator IgnoreOutages), rates, &[I8]);
}

#[test]
fn a_promotion_that_drops_the_other_copies_is_found() {
    find(plant!(coordinator LoseTheBackup), Rates::default(), &[I6, I16]);
}

#[test]
fn what_was_found_is_shrunk_to_the_faults_that_it_takes() {
    let simulation = simulation(mistaken(), plant!(core TrustDigests));
    let found = (0..SEEDS).find_map(|seed| Some((seed, simulation.simulate(seed).result.err()?)));
    let (seed, failure) = found.expect("it is found");
    let (all, few) = (simulation.schedule(seed), simulation.shrink(seed, &failure));
    assert!(few.0.len() < all.0.len() && few.0.len() <= 3, "{few}");
    assert!(few.0.iter().any(|(_, fault)| matches!(fault, Fault::Mistake { .. })), "{few}");
}

// Several coordinators.

/// Coordinators crash all the time.
fn storm() -> Rates {
    Rates {
        coordinator_crashes: 20.0,
        cluster_crashes: 4.0,
        proposing_crashes: 6.0,
        disk_stalls: 6.0,
        restart_within: Duration::from_secs(1),
        ..Rates::default()
    }
}

#[test]
fn an_id_that_is_given_again_is_found() {
    find(plant!(coordinator ReuseId), storm(), &[I1, I7, I8, I11, I15]);
}

#[test]
fn i9_a_request_that_is_carried_out_twice_is_found() {
    find(plant!(coordinator ApplyTwice), storm(), &[I9]);
}

/// No majority has agreed on an entry that a leader had not brought to one when it fell.
#[test]
fn i9_an_entry_that_is_applied_before_it_is_agreed_on_is_found() {
    find(plant!(replica ApplyEarly), storm(), &[I1, I9, I15]);
}

fn at(ms: f64) -> Time {
    Time((ms * 1e6) as u64)
}

fn crash(place: usize, restart_ms: u64) -> Fault {
    let restart = Some(Duration::from_millis(restart_ms));
    Fault::Crash { node: NodeId::Coordinator(place), restart }
}

/// Endures each of these schedules with and without a bug, in a cluster of this many coordinators.
/// Without the bug the cluster bears all of them. With it at least one breaks a promise, and not
/// only I11.
#[track_caller]
fn find_in(
    coordinators: u32,
    prepare: Prepare,
    schedules: impl Iterator<Item = (u64, Schedule)>,
    promised: &[Invariant],
) {
    let found = find_some_in((coordinators, 6), prepare, schedules, promised);
    assert!(found.iter().any(|failure| failure.invariant() != Some(I11)), "only stuck: {found:?}");
}

#[track_caller]
fn find_some_in(
    (coordinators, seconds): (u32, u64),
    prepare: Prepare,
    schedules: impl Iterator<Item = (u64, Schedule)>,
    promised: &[Invariant],
) -> Vec<Failure> {
    let cluster = |prepare| {
        let span = Duration::from_secs(seconds);
        let cluster = Simulation::new(4, span, Rates::none()).expect("without a fault");
        cluster.coordinated(coordinators).prepared(prepare).precise(Precision::F32)
    };
    let (sound, misled) = (cluster(Prepare::default()), cluster(prepare));
    let mut found = Vec::new();
    for (seed, schedule) in schedules {
        let borne = sound.endure(seed, &schedule).result;
        borne.unwrap_or_else(|failure| panic!("seed {seed}: {failure}\n{schedule}"));
        found.extend(misled.endure(seed, &schedule).result.err());
    }
    let is_promised =
        |failure: &Failure| failure.invariant().is_some_and(|it| promised.contains(&it));
    println!("found {} times: {:?}", found.len(), found.first());
    assert!(!found.is_empty() && found.iter().all(is_promised), "{found:?}");
    found
}

/// The leader stands still during the election of another one, and hears of that late: for a moment
/// it believes that it leads. Meanwhile a worker has registered that it does not know.
fn a_leader_that_was_replaced() -> impl Iterator<Item = (u64, Schedule)> {
    let schedule = |ms: u64| {
        let span = Duration::from_secs(3);
        let bridge = |place| {
            let ends = (NodeId::Leader, NodeId::Coordinator(place));
            (at(1_000.0), Fault::Bridge { ends, span })
        };
        let pause = Fault::Pause { node: NodeId::Leader, span: Duration::from_millis(ms) };
        let restart = Some(Duration::from_millis(1));
        let mut faults: Vec<_> = (0..3).map(bridge).collect();
        faults.push((at(1_000.0), pause));
        faults.push((at(1_400.0), Fault::Crash { node: NodeId::Worker(3), restart }));
        (ms, Schedule(faults))
    };
    (600..1_000).step_by(10).map(schedule)
}

#[test]
fn i8_a_leader_that_evicts_without_asking_whether_it_leads_is_found() {
    find_in(3, plant!(coordinator EvictUnconfirmed), a_leader_that_was_replaced(), &[I8]);
}

#[test]
fn i8_a_leader_that_answers_itself_whether_it_leads_is_found() {
    find_in(3, plant!(replica ReadAtOnce), a_leader_that_was_replaced(), &[I8, I9]);
}

/// One coordinator hears nothing, another one's disk stands still, and both others crash. The
/// leader agreed on entries with the second that the first and the second do not know.
fn a_majority_without_its_disk() -> impl Iterator<Item = (u64, Schedule)> {
    let roles = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    let schedule = |(seed, [leader, stalled, deaf]): (u64, [usize; 3])| {
        let ms = Duration::from_millis;
        let side = vec![NodeId::Coordinator(deaf)];
        let faults = vec![
            (at(1_000.0), Fault::Partition { side, span: ms(1_000) }),
            (at(1_000.0), Fault::Stall { node: NodeId::Coordinator(stalled), span: ms(1_500) }),
            (at(1_900.0), crash(leader, 2_500)),
            (at(1_900.0), crash(stalled, 150)),
        ];
        (seed, Schedule(faults))
    };
    (0..6).flat_map(move |seed| roles.map(|roles| (seed, roles))).map(schedule)
}

#[test]
fn i9_answers_before_the_disk_has_them_are_found() {
    find_in(3, plant!(replica SayEarly), a_majority_without_its_disk(), &[I1, I9, I11]);
}

#[test]
fn i9_a_file_that_nobody_syncs_is_found() {
    let prepare = Prepare { skips_fsync: true, ..Prepare::default() };
    find_in(3, prepare, a_majority_without_its_disk(), &[I1, I9, I11]);
}

/// The log begins behind entries that the history does not tell.
#[test]
fn i13_a_history_that_nobody_syncs_is_found() {
    let prepare = Prepare { forgets_history: true, ..Prepare::default() };
    find(prepare, storm(), &[I13]);
}

/// A coordinator begins a term and leads in it, crashes before the term is on its disk, and begins
/// it again.
#[test]
fn i1_a_term_that_begins_twice_is_found() {
    let schedule = |seed| {
        let span = Duration::from_millis(1_500);
        let stall = Fault::Stall { node: NodeId::Coordinator(0), span };
        let faults =
            vec![(at(1_000.0), crash(0, 200)), (at(1_100.0), stall), (at(1_400.0), crash(0, 200))];
        (seed, Schedule(faults))
    };
    find_in(1, plant!(replica LeadEarly), (0..20).map(schedule), &[I1]);
}

/// The spare machine's coordinator is removed, told so, and never seen again. Another coordinator
/// crashes at that moment, and comes back after `restart`.
fn a_removal(spare: usize, restart: Duration) -> impl Iterator<Item = (u64, Schedule)> {
    let spare = NodeId::Coordinator(spare);
    let schedule = move |seed| {
        let faults = vec![
            (at(700.0), Fault::Join { node: spare }),
            (at(2_400.0), Fault::CrashExpelling { restart }),
            (at(2_500.0), Fault::Remove { node: spare, restart: None }),
        ];
        (seed, Schedule(faults))
    };
    (0..20).map(schedule)
}

/// The other coordinator finds on its disk that it needs the vote of the removed one.
#[test]
fn i11_a_removal_that_the_other_of_two_forgets_is_found() {
    let schedules = a_removal(1, Duration::from_millis(200));
    find_some_in((1, 6), plant!(coordinator ShutOutEarly), schedules, &[I11]);
}

/// The two remaining coordinators of three do not know that they need no other vote.
#[test]
fn i11_a_removal_of_which_only_the_leader_knows_is_found() {
    let schedules = a_removal(3, Duration::from_secs(200));
    find_some_in((3, 60), plant!(coordinator ShutOutEarly), schedules, &[I11]);
}

/// A coordinator that came late to the log leads. It lets the only one go that could tell it the
/// history.
#[test]
fn i13_a_teller_that_is_shut_out_is_found() {
    // Machines come and go. Their messages take long, or are lost with the link.
    let rates = Rates {
        coordinator_joins: 30.0,
        coordinator_removals: 30.0,
        restarts: 1.0,
        restart_within: Duration::from_millis(500),
        disconnects: 30.0,
        slow_links: 60.0,
        ..Rates::none()
    };
    find(plant!(coordinator ShutOutTellers), rates, &[I13]);
}

/// The follower answers at once all that its leader said in ten seconds and more.
#[test]
fn i10_a_disk_that_stands_still_and_holds_everything_is_found() {
    // No run ends meanwhile. An end would end the cluster too: its workers would be gone.
    let rates = Rates {
        disk_stalls: 6.0,
        long: 1.0,
        longest: Duration::from_secs(15),
        joint_crashes: 15.0,
        restarts: 0.0,
        ..Rates::none()
    };
    find(plant!(replica HoldEverything), rates, &[I10]);
}

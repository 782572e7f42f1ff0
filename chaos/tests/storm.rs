//! The coordinator's core under thousands of workers that compute nothing: I1, I8, I10 and I13
//! hold.

use std::time::Duration;

use everstep_chaos::storm::{BrokenPromise, StormFailure, StormReport, StormScenario, StormSim};
use everstep_coordinator::core::{Core, CoreInput, ShellInput};
use everstep_transport::protocol::Message;
use everstep_transport::time::Time;
use proptest::prelude::*;

/// More virtual time than any storm needs: the coordinator waits 20 s for workers that fall silent
/// together.
const VIRTUAL_TIME_LIMIT: Duration = Duration::from_secs(60);

fn complete(scenario: StormScenario) -> StormReport {
    let complete = StormSim::new(scenario).run(VIRTUAL_TIME_LIMIT, Core::handle);
    complete.unwrap_or_else(|failure| panic!("{scenario:?}: {failure}"))
}

#[test]
fn ten_thousand_workers_join_at_once_and_train() {
    let report = complete(StormScenario::storm(1, 10_000));
    println!("{report:?}");
    assert_eq!(report.lost, 0);
    assert!(report.announced_at < Time(0) + Duration::from_secs(2), "the design's figure");
    assert!(report.heartbeats > 80_000, "two seconds of them: {}", report.heartbeats);
    let others = report.entries_of_joins - 10_000;
    assert!(others < 10, "one for each worker, the run, its first generation: {others} more");
}

#[test]
fn ten_thousand_workers_start_although_some_fall_silent_and_some_lose_their_link() {
    let report =
        complete(StormScenario { silent: 300, cut: 700, ..StormScenario::storm(2, 10_000) });
    println!("{report:?}");
    assert!((300..=1_000).contains(&report.lost), "{}", report.lost);
}

#[test]
fn ten_thousand_workers_go_on_in_another_generation_when_one_is_killed() {
    let report = complete(StormScenario { killed: 1, ..StormScenario::storm(8, 10_000) });
    println!("{report:?}");
    assert_eq!(report.lost, 1);
    assert!(report.generations >= 2, "{report:?}");
    let took = report.mended_at.since(report.killed_at);
    assert!(took < Duration::from_secs(1), "a Pause to all, and their answers: {took:?}");
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let scenario = StormScenario { silent: 20, cut: 50, ..StormScenario::storm(3, 500) };
    let report = complete(scenario);
    assert_eq!(complete(scenario), report);
    assert_ne!(complete(StormScenario { seed: 4, ..scenario }).digest, report.digest);
}

#[test]
fn a_worker_that_is_not_heard_is_lost_against_i8() {
    let deaf = |core: &mut Core, now, input| match &input {
        CoreInput::Shell(ShellInput::Message {
            from,
            message: Message::Heartbeat(_) | Message::Status(_),
        }) if from.0 == 7 && core.state().record().is_some() => {}
        _ => core.handle(now, input),
    };
    let scenario =
        StormScenario { training: Duration::from_secs(5), ..StormScenario::storm(5, 20) };
    let failure = StormSim::new(scenario).run(VIRTUAL_TIME_LIMIT, deaf);
    assert!(
        matches!(failure, Err(StormFailure::Broken(BrokenPromise::LostAlive { .. }))),
        "{failure:?}"
    );
}

#[test]
fn a_coordinator_that_is_too_slow_has_queues_against_i10() {
    let service = Duration::from_millis(1);
    let scenario =
        StormScenario { service, training: VIRTUAL_TIME_LIMIT, ..StormScenario::storm(6, 1_000) };
    let failure = StormSim::new(scenario).run(VIRTUAL_TIME_LIMIT, Core::handle);
    assert!(
        matches!(failure, Err(StormFailure::Broken(BrokenPromise::LongQueue(_)))),
        "{failure:?}"
    );
}

#[test]
fn a_coordinator_that_forgets_an_entry_of_the_log_is_stuck() {
    let mut forgotten = false;
    let forgets = |core: &mut Core, now, input| match &input {
        CoreInput::Applied { index: 6, .. } if !std::mem::replace(&mut forgotten, true) => {}
        _ => core.handle(now, input),
    };
    let failure = StormSim::new(StormScenario::storm(7, 20)).run(VIRTUAL_TIME_LIMIT, forgets);
    assert!(matches!(failure, Err(StormFailure::Stuck { present: 19, .. })), "{failure:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_small_crowd_starts_and_finishes(
        seed in any::<u64>(),
        (silent, cut, killed, sound) in (0..15u32, 0..15u32, 0..3u32, 2..15u32),
        storm_ms in 0..2_000u64,
    ) {
        let storm = Duration::from_millis(storm_ms);
        let everybody = StormScenario::storm(seed, silent + cut + killed + sound);
        complete(StormScenario { silent, cut, killed, storm, ..everybody });
    }
}

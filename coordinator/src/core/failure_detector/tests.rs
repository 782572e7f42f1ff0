//! Silence, outages and workers that come meanwhile, at the detector alone.

use super::*;

fn at(ms: u64) -> Time {
    Time(0) + Duration::from_millis(ms)
}

#[test]
fn i8_the_first_that_a_cut_silences_is_not_suspected_before_the_others_fall_silent() {
    let [first, second, third] = [WorkerId(1), WorkerId(2), WorkerId(3)];
    let mut detector = FailureDetector::begin(at(0), [first, second, third].into_iter());
    detector.heard(at(200), second);
    detector.heard(at(200), third);
    assert_eq!(detector.silent(at(2_300)), [], "nobody is heard any more");
    detector.tick(at(2_400));
    assert_eq!(detector.silent(at(2_400)), [], "all have fallen silent: an outage");
}

/// Seed 255062: the worker with the earliest deadline was lost, since a new one was heard.
#[test]
fn i8_a_worker_that_has_just_come_does_not_prove_that_the_network_works() {
    let [first, second, third, new] = [1, 2, 3, 4].map(WorkerId);
    let mut detector = FailureDetector::begin(at(0), [first, second, third].into_iter());
    detector.heard(at(200), second);
    detector.heard(at(200), third);
    for ms in (2_200..20_000).step_by(100) {
        detector.heard(at(ms), new);
        detector.tick(at(ms));
        assert_eq!(detector.silent(at(ms)), [], "after {ms} ms");
    }
}

/// Seed 403197: the others were gone, and only a worker that came in the outage was heard.
#[test]
fn i8_a_silent_worker_is_not_lost_because_one_that_came_later_is_heard() {
    let [old, new] = [1, 2].map(WorkerId);
    let mut detector = FailureDetector::begin(at(0), [old].into_iter());
    let suspected = (1_000..40_000).step_by(100).find(|ms| {
        detector.heard(at(*ms), new);
        detector.tick(at(*ms));
        !detector.silent(at(*ms)).is_empty()
    });
    assert_eq!(suspected, Some(21_000), "as long as an outage is waited out");
}

#[test]
fn a_worker_that_is_silent_while_one_of_many_misses_a_heartbeat_is_suspected() {
    let workers = (1..=20).map(WorkerId);
    let mut detector = FailureDetector::begin(at(0), workers.clone());
    for ms in [500, 1_000, 1_500, 2_000] {
        workers.clone().skip(2).for_each(|worker| _ = detector.heard(at(ms), worker));
    }
    detector.heard(at(1_000), WorkerId(2));
    assert_eq!(detector.silent(at(2_200)), [WorkerId(1)]);
}

#[test]
fn i8_the_last_worker_that_may_live_is_waited_for_while_nobody_is_heard() {
    let workers = [WorkerId(1), WorkerId(2), WorkerId(3)];
    let mut detector = FailureDetector::begin(at(0), workers.into_iter());
    detector.tick(at(2_300));
    for worker in [WorkerId(1), WorkerId(2)] {
        let suspicion = Suspicion { reason: LossReason::FoundDead, certainty: Certainty::Dead };
        detector.suspect(at(2_400), worker, suspicion);
    }
    for ms in (2_400..60_000).step_by(100) {
        detector.tick(at(ms));
        assert_eq!(detector.silent(at(ms)), [], "after {ms} ms");
    }
    // Another worker comes, and is heard: the last one has as long as in any outage.
    let waited = (60_000..90_000).step_by(100).find(|ms| {
        detector.heard(at(*ms), WorkerId(4));
        detector.tick(at(*ms));
        !detector.silent(at(*ms)).is_empty()
    });
    assert!(waited.is_some_and(|ms| (80_000..81_000).contains(&ms)), "{waited:?}");
}

#[test]
fn a_worker_that_is_silent_while_others_are_heard_is_suspected_at_its_deadline() {
    let mut detector = FailureDetector::begin(at(0), [WorkerId(1), WorkerId(2)].into_iter());
    for ms in [500, 1_000, 1_500, 2_000] {
        detector.heard(at(ms), WorkerId(2));
    }
    assert_eq!(detector.silent(at(2_200)), [WorkerId(1)]);
    let alone = FailureDetector::begin(at(0), [WorkerId(1)].into_iter());
    assert_eq!(alone.silent(at(2_200)), [WorkerId(1)]);
}

#[test]
fn i8_a_worker_has_settled_some_seconds_after_it_may_have_been_silent() {
    let [one, other, new] = [1, 2, 3].map(WorkerId);
    let mut detector = FailureDetector::begin(at(0), [one, other].into_iter());
    let listen =
        |detector: &mut FailureDetector, ms: std::ops::Range<u64>, workers: &[WorkerId]| {
            for ms in ms.step_by(100) {
                detector.tick(at(ms));
                workers.iter().for_each(|worker| _ = detector.heard(at(ms), *worker));
            }
        };
    let settled = |detector: &FailureDetector, ms| {
        [one, other, new].map(|worker| detector.is_settled(at(ms), worker))
    };
    listen(&mut detector, 100..4_000, &[one, other, new]);
    assert_eq!(settled(&detector, 3_900), [false, false, true], "it has just begun to listen");
    assert_eq!(settled(&detector, 4_000), [true; 3]);
    listen(&mut detector, 4_000..6_200, &[one, new]);
    assert_eq!(settled(&detector, 6_200), [true, false, true], "it is silent");
    listen(&mut detector, 6_200..10_200, &[one, other, new]);
    assert_eq!(settled(&detector, 10_100), [true, false, true], "it is back");
    assert_eq!(settled(&detector, 10_200), [true; 3]);
    assert!(detector.wake(at(11_000)));
    assert_eq!(settled(&detector, 11_000), [true; 3], "too short for a link to be lost");
    assert!(detector.wake(at(13_200)));
    assert_eq!(settled(&detector, 13_200), [false; 3], "nobody was listening");
}

/// Seed 26700: a worker lost its link in an isolation that was too short for an outage.
#[test]
fn i8_a_worker_that_a_short_isolation_has_cost_its_link_has_time_to_dial_again() {
    let [first, second, cut] = [1, 2, 3].map(WorkerId);
    let mut detector = FailureDetector::begin(at(0), [first, second, cut].into_iter());
    for worker in [first, second] {
        detector.heard(at(100), worker);
    }
    for ms in (2_050..4_000).step_by(50) {
        for worker in [first, second] {
            detector.heard(at(ms), worker);
        }
        detector.tick(at(ms));
        assert_eq!(detector.silent(at(ms)), [], "after {ms} ms");
    }
    detector.heard(at(4_200), first);
    assert_eq!(detector.silent(at(4_200)), [cut], "the time without signs is over");
}

/// The only other worker is heard now and then.
#[test]
fn a_worker_that_stutters_keeps_a_silent_one_for_one_more_deadline_at_most() {
    let [dead, stutters] = [1, 2].map(WorkerId);
    let mut detector = FailureDetector::begin(at(0), [dead, stutters].into_iter());
    let suspected = (0..20_000).step_by(50).find(|ms| {
        if ms % 700 == 0 {
            detector.heard(at(*ms), stutters);
        }
        detector.tick(at(*ms));
        detector.silent(at(*ms)) == [dead]
    });
    assert!(suspected.is_some_and(|ms| ms <= 4_500), "{suspected:?}");
}

//! When steps are held back, for how long, and when the leader gives that up.

use super::*;

const JOINER: WorkerId = WorkerId(9);
const STEP_TIME: Duration = Duration::from_secs(1);
const TICK_TIME: Duration = Duration::from_millis(100);

/// A leader that looks ten times a second at one joiner.
struct Scene {
    catch_up: CatchUp,
    now: Time,
    /// The step leader holds until this time.
    held_until: Time,
    held: Duration,
    hopeless: Option<Time>,
}

impl Scene {
    fn new() -> Self {
        let now = Time(1);
        let catch_up = CatchUp::default();
        Self { catch_up, now, held_until: now, held: Duration::ZERO, hopeless: None }
    }

    fn steps_pause(&self) -> bool {
        self.now < self.held_until
    }

    /// A moment passes in which the worker says to be this far behind.
    fn pass(&mut self, behind: u64) {
        self.now = self.now + TICK_TIME;
        self.catch_up.set_behind(self.now, JOINER, behind);
        let order = self.catch_up.check(self.now, &BTreeSet::from([JOINER]), STEP_TIME);
        if order.hold {
            self.held_until = self.now + Duration::from_secs(1);
        }
        if self.steps_pause() {
            self.held += TICK_TIME;
        }
        if order.hopeless == [JOINER] {
            self.hopeless.get_or_insert(self.now);
        }
    }

    /// A worker lacks `lacking` bytes. Its link carries `carries` bytes a second, while the steps
    /// add `add` bytes a second. Returns when the worker has everything, if it ever has within an
    /// hour.
    fn sync_all(&mut self, mut lacking: f64, carries: f64, add: f64) -> Option<Duration> {
        let began = self.now;
        let seconds = TICK_TIME.as_secs_f64();
        while self.now.since(began) < Duration::from_secs(3600) && self.hopeless.is_none() {
            let added = if self.steps_pause() { 0.0 } else { add };
            lacking += (added - carries) * seconds;
            if lacking <= 0.0 {
                return Some(self.now.since(began));
            }
            self.pass(lacking as u64);
        }
        None
    }
}

#[test]
fn steps_go_on_while_a_worker_comes_nearer_by_itself() {
    let mut scene = Scene::new();
    let took = scene.sync_all(250e6, 100e6, 60e6).expect("it is done");
    assert!(took < Duration::from_secs(8), "{took:?}");
    assert_eq!(scene.held, Duration::ZERO);
}

/// What 30 M parameters add where steps are short: more than 1 Gbit/s carries.
#[test]
fn steps_are_held_back_for_a_worker_that_they_outrun() {
    let mut scene = Scene::new();
    let took = scene.sync_all(250e6, 100e6, 120e6).expect("it is done");
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert!(scene.held <= STEP_HOLD_MAX + STEP_TIME, "{:?}", scene.held);
}

#[test]
fn a_hold_is_bounded_and_the_run_goes_on_for_as_long_before_the_next() {
    let mut scene = Scene::new();
    assert_eq!(scene.sync_all(100e9, 10e6, 20e6), None);
    let over = scene.hopeless.expect("it is given up");
    assert!(scene.held <= MAX_HOLDS * (STEP_HOLD_MAX + 2 * STEP_TIME), "{:?}", scene.held);
    assert!(over.since(Time(1)) >= 2 * scene.held - STEP_HOLD_MAX, "{over:?}");
}

#[test]
fn a_link_that_carries_nothing_holds_nobody_up_for_long() {
    let mut scene = Scene::new();
    assert_eq!(scene.sync_all(1e6, 0.0, 0.0), None);
    assert!(
        scene.held <= MAX_HOLDS * (STEP_HOLD_ENDS_AFTER_IDLE + 2 * STEP_TIME),
        "{:?}",
        scene.held
    );
}

#[test]
fn a_join_that_was_given_up_says_why_and_is_tried_again_ever_later() {
    let mut scene = Scene::new();
    let mut pauses = Vec::new();
    for _ in 0..2 {
        scene.hopeless = None;
        scene.sync_all(2e9, 0.0, 0.0);
        let began = scene.now;
        scene.catch_up.give_up(began, JOINER);
        let reason = scene.catch_up.reason(JOINER).expect("a reason");
        assert!(reason.contains("2000.0 MB"), "{reason}");
        while scene.catch_up.is_given_up(scene.now, JOINER) {
            scene.now = scene.now + TICK_TIME;
        }
        pauses.push(scene.now.since(began));
    }
    assert_eq!(pauses, [WORKER_JOIN_BACKOFF, 2 * WORKER_JOIN_BACKOFF]);
}

/// The ninth worker of a run of 1 B parameters with two copies: states of 2.7 GB by 10 Gbit/s, and
/// 0.9 GB with each step.
#[test]
fn a_billion_parameters_are_learned_beside_steps_of_two_seconds() {
    let mut scene = Scene::new();
    let took = scene.sync_all(2.7e9, 1.1e9, 0.45e9).expect("it is done");
    assert!(took < Duration::from_secs(10), "{took:?}");
    let mut scene = Scene::new();
    let took = scene.sync_all(2.7e9, 0.5e9, 0.9e9).expect("it is done");
    assert!(took < Duration::from_secs(30), "{took:?}, of which {:?} held", scene.held);
}

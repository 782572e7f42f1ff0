//! A coordinator killed at every point of its life, and started again: no step is lost for it, the
//! bits are the same, and each point was met (I3, I4, I13).
//!
//! [`LIVES`] says for each point what happens in the run whose coordinators are killed there.

use std::collections::BTreeSet;
use std::fs;

use everstep_coordinator::daemon::failpoint::POINTS;
use everstep_transport::protocol::WorkerId;
use futures_util::{StreamExt, stream};
use rustix::process::{Signal, kill_process};

use super::{Scene, block_on, world};
use crate::world::World;

/// What happens in a run while its coordinators die.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum While {
    /// Workers come, and train.
    Beginning,
    /// A worker joins.
    Joining,
    /// A worker joins that cannot take part.
    Failing,
    /// A worker that joins is killed while it learns.
    LosingLearner,
    /// A member is killed.
    Losing,
    /// A member stops in good order, at a broken invariant.
    Breaking,
    /// A member stands still until it is evicted.
    Evicting,
    /// A member is told to leave.
    Leaving,
    /// An operator asks for leaves.
    Operating,
    /// The only owner of many shards is killed.
    GoingBack,
    /// The last step is over.
    Ending,
}

/// Every point, with what happens. A row is a run; its coordinators die in this order. They are
/// four at most: of so many that die in ten seconds, a fifth is not replaced.
const LIVES: &[(While, &[&str])] = &[
    (While::Beginning, &["submit.receive", "propose.submit", "appended.submit", "connected"]),
    (While::Beginning, &["watch.receive", "update.send", "hello.receive", "welcome.send"]),
    (
        While::Beginning,
        &["applied.submit", "register.receive", "propose.register", "appended.register"],
    ),
    (While::Beginning, &["registered.send", "applied.register", "propose.lead", "appended.lead"]),
    (While::Beginning, &["pause.send", "status.receive", "propose.generation", "applied.lead"]),
    (
        While::Beginning,
        &["heartbeat.receive", "appended.generation", "fetch_record.receive", "record"],
    ),
    (While::Beginning, &["applied.generation", "heartbeat_answer.send", "recorded"]),
    (While::Joining, &["feed.send", "ready.receive", "hold.send", "held.receive"]),
    (While::Joining, &["hold.send", SOME_PAUSED, "propose.generation", SOME_TOLD]),
    (While::Failing, &["failed.receive"]),
    (While::LosingLearner, &["propose.lose", "appended.lose"]),
    (While::LosingLearner, &["applied.lose"]),
    (While::Losing, &["disconnected"]),
    (While::Losing, &["exited.receive"]),
    (While::Losing, &[SOME_PAUSED_LATER, "propose.generation", SOME_TOLD]),
    (While::Losing, &[STATUS_LATER, "appended.generation", "fetch_record.receive"]),
    (While::Breaking, &["unreachable.receive", "applied.generation"]),
    (While::Evicting, &["evicted.send"]),
    (While::Leaving, &["leave.receive", "propose.drain", "appended.drain", "applied.drain"]),
    (While::Leaving, &["drain.send", "dismiss.send"]),
    (While::Operating, &["drain.receive", "refused.send", "accepted.send"]),
    (While::GoingBack, &["forget", "forgotten"]),
    (While::Ending, &["finished.receive", "propose.end", "appended.end"]),
    (While::Ending, &["propose.end", "dismiss.send"]),
    (While::Ending, &["applied.end"]),
];

/// Two of three members hear it.
const SOME_PAUSED: &str = "pause.send=1*off->1*sleep(30)->1*return(kill)";
/// Two of three members hear it.
const SOME_TOLD: &str = "announce.send=1*off->1*sleep(30)->1*return(kill)";
/// Two of three members hear it, after all four when the run began.
const SOME_PAUSED_LATER: &str = "pause.send=5*off->1*sleep(30)->1*return(kill)";
/// The first that comes after those of four members when the run began.
const STATUS_LATER: &str = "status.receive=4*off->1*return(kill)";
/// What makes a worker's steps so slow that several coordinators die in a short run.
const SLOW: &str = "load=300*sleep(10)";
/// What makes a worker stop in the midst of a run.
const BROKEN: &str = "load=50*off->1*panic(on purpose)";
/// How many runs there are at once: their processes mostly wait.
const ABREAST: usize = 4;

#[test]
fn there_is_a_way_to_every_failpoint() {
    let reached = LIVES.iter().flat_map(|(_, points)| points.iter().map(name));
    assert_eq!(reached.collect::<BTreeSet<_>>(), POINTS.iter().copied().collect());
}

/// The point alone.
fn name<'a>(point: &&'a str) -> &'a str {
    point.split('=').next().unwrap_or(point)
}

/// The runs in which this happens, of these workers, some side by side. `happen` begins when three
/// steps are done.
fn play(
    world: &World,
    happening: While,
    workers: &[&str],
    happen: impl AsyncFn(&mut Scene<'_>, &[&str]),
) {
    world.undisturbed(); // it blocks: later, the runs would wait for it
    let rows = LIVES.iter().filter(|(way, _)| *way == happening);
    let run = async |(_, points): &(While, &[&str])| {
        let mut scene = Scene::begin_under(world, points, workers).await;
        scene.until(|scene| scene.cluster.progress().step().0 >= 3).await;
        let points: Vec<_> = points.iter().map(name).collect();
        happen(&mut scene, &points).await;
        let log = scene.log.clone();
        let report = scene.complete().await;
        let met = fs::read_to_string(log).unwrap_or_default();
        let missed: Vec<_> =
            points.iter().filter(|point| !met.lines().any(|l| l == **point)).collect();
        assert!(missed.is_empty(), "{happening:?}: not met: {missed:?}");
        assert_eq!(report.coordinator_restarts as usize, points.len(), "{happening:?}: {points:?}");
    };
    block_on(stream::iter(rows).for_each_concurrent(ABREAST, run));
}

/// Nothing but the run.
async fn nothing(_: &mut Scene<'_>, _: &[&str]) {}

/// Signals the newest member.
async fn signal(scene: &mut Scene<'_>, signal: Signal) {
    kill_process(scene.newest().1, signal).expect("it lives");
}

#[test]
fn a_coordinator_may_die_at_any_point_while_a_run_begins() {
    play(&world(60, &[]), While::Beginning, &["", "", ""], nothing);
}

#[test]
fn a_coordinator_may_die_at_any_point_after_the_last_step() {
    play(&world(60, &[]), While::Ending, &["", "", ""], nothing);
}

#[test]
fn a_coordinator_may_die_at_any_point_of_a_join() {
    play(&world(400, &[]), While::Joining, &[SLOW, "", ""], async |scene, _| scene.add(""));
}

#[test]
fn a_coordinator_may_die_when_a_worker_that_joins_fails() {
    let world = world(400, &[]);
    let [text, away] = ["text.txt", "away.txt"].map(|name| world.path(name));
    play(&world, While::Failing, &[SLOW, "", ""], async |scene, points| {
        fs::rename(&text, &away).expect("it is there");
        scene.add("");
        scene.until(|scene| scene.has_met(points[0])).await;
        fs::rename(&away, &text).expect("it is there");
    });
}

#[test]
fn a_coordinator_may_die_at_any_point_of_a_learners_loss() {
    play(&world(400, &[]), While::LosingLearner, &[SLOW, "", ""], async |scene, _| {
        scene.add("feed.receive");
    });
}

#[test]
fn a_coordinator_may_die_at_any_point_of_a_loss() {
    play(&world(400, &[]), While::Losing, &[SLOW, "", "", ""], async |scene, _| {
        signal(scene, Signal::KILL).await;
    });
}

#[test]
fn a_coordinator_may_die_when_members_say_whom_they_cannot_reach() {
    play(&world(400, &[]), While::Breaking, &[SLOW, "", BROKEN], nothing);
}

#[test]
fn a_coordinator_may_die_when_it_evicts_a_worker() {
    play(&world(400, &[]), While::Evicting, &[SLOW, "", ""], async |scene, points| {
        let evicted = scene.newest().1;
        kill_process(evicted, Signal::STOP).expect("it lives");
        scene.until(|scene| scene.has_met(points[0])).await;
        kill_process(evicted, Signal::CONT).expect("it lives");
    });
}

#[test]
fn a_coordinator_may_die_at_any_point_of_a_leave() {
    play(&world(400, &[]), While::Leaving, &[SLOW, "", ""], async |scene, _| {
        signal(scene, Signal::TERM).await;
    });
}

#[test]
fn a_coordinator_may_die_when_an_operator_asks_for_a_leave() {
    play(&world(400, &[]), While::Operating, &[SLOW, "", ""], async |scene, points| {
        let newest = scene.newest().0;
        while !points.iter().all(|point| scene.has_met(point)) {
            for worker in [newest, WorkerId(1_000)] {
                let _ = scene.cluster.drain(worker).await; // who asks may be left without an answer
                assert!(!scene.cluster.advance().await.expect("it survives"));
            }
        }
    });
}

#[test]
fn a_coordinator_may_die_at_any_point_of_a_rollback() {
    let world = world(400, &[("redundancy.copies", 1)]);
    play(&world, While::GoingBack, &[SLOW, ""], async |scene, _| {
        signal(scene, Signal::KILL).await;
    });
}

//! A coordinator killed at every point of its life, and started again. The run loses no step, the
//! bits are the same, and each point was met (I3, I4, I13).
//!
//! [`LIVES`] names for each point the event in the run whose coordinators are killed there.

use std::collections::BTreeSet;
use std::fs;

use everstep_coordinator::daemon::failpoint::POINTS;
use everstep_transport::protocol::{Step, WorkerId};
use rustix::process::{Signal, kill_process};

use super::{ALL, SLOW, Scene, abreast, assert_stored, world};
use crate::world::{World, flip_a_bit};

/// The event in a run while its coordinators die.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum While {
    /// Workers start, and train.
    Beginning,
    /// A worker joins.
    Joining,
    /// A worker joins that cannot take part.
    Failing,
    /// A worker joins that has another text.
    Refusing,
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
    /// The run trains its last step.
    Ending,
    /// The run writes checkpoints.
    Saving,
    /// The only owner of many shards is killed, and the newest checkpoint is damaged.
    Damaging,
}

/// Every point, with its event. A row is a run, and its coordinators die in this order. They are
/// four at most: of so many that die in ten seconds, a fifth is not replaced.
const LIVES: &[(While, &[&str])] = &[
    (While::Beginning, &["request.receive", "propose.request", "appended.request", "connected"]),
    (While::Beginning, &["watch.receive", "update.send", "hello.receive", "welcome.send"]),
    (
        While::Beginning,
        &["applied.request", "register.receive", "propose.register", "appended.register"],
    ),
    (While::Beginning, &["registered.send", "applied.register", "propose.lead", "appended.lead"]),
    (While::Beginning, &["pause.send", "status.receive", "propose.generation", "applied.lead"]),
    (
        While::Beginning,
        &["heartbeat.receive", "appended.generation", "fetch_record.receive", "record"],
    ),
    (While::Beginning, &["applied.generation", "heartbeat_answer.send", "recorded"]),
    (While::Beginning, &["durable", "record", "durable"]),
    (While::Joining, &["feed.send", "ready.receive", "hold.send", "held.receive"]),
    (While::Joining, &["hold.send", SOME_PAUSED, "propose.generation", SOME_TOLD]),
    (While::Failing, &["unable.receive"]),
    (While::LosingLearner, &["propose.lose", "appended.lose"]),
    (While::LosingLearner, &["applied.lose"]),
    (While::Losing, &["disconnected"]),
    (While::Losing, &["exited.receive"]),
    (While::Losing, &[SOME_PAUSED_LATER, "propose.generation", SOME_TOLD]),
    (While::Losing, &[STATUS_LATER, "appended.generation"]),
    (While::Breaking, &["unreachable.receive", "applied.generation"]),
    (While::Evicting, &["evicted.send"]),
    (While::Leaving, &["leave.receive", "propose.drain", "appended.drain", "applied.drain"]),
    (While::Leaving, &["drain.send", "dismiss.send"]),
    (While::Operating, &["request.receive", "answer.send"]),
    (While::Refusing, &["refused.send"]),
    (While::GoingBack, &["forget"]),
    (While::GoingBack, &["forgotten"]),
    (While::Ending, &["finished.receive", "propose.end", "appended.end"]),
    (While::Ending, &["write.send", "written.receive"]),
    (While::Ending, &["propose.end", "dismiss.send"]),
    (While::Ending, &["applied.end"]),
    (While::Saving, &["stored.receive"]),
    (While::Saving, &["saved.receive", "write_manifest.send", "written_manifest.receive"]),
    (
        While::Saving,
        &["propose.list_checkpoint", "appended.list_checkpoint", "applied.list_checkpoint"],
    ),
    (While::Damaging, &["propose.damage_checkpoint", "appended.damage_checkpoint"]),
    (While::Damaging, &["applied.damage_checkpoint"]),
];

/// Two of three members hear the Pause.
const SOME_PAUSED: &str = "pause.send=1*off->1*sleep(30)->1*return(kill)";
/// Two of three members hear the record.
const SOME_TOLD: &str = "announce.send=1*off->1*sleep(30)->1*return(kill)";
/// Two of three members hear the Pause, after all four heard one when the run began.
const SOME_PAUSED_LATER: &str = "pause.send=5*off->1*sleep(30)->1*return(kill)";
/// The first Status after those of four members when the run began.
const STATUS_LATER: &str = "status.receive=4*off->1*return(kill)";
/// The failpoint that stops a worker in the midst of a run.
const BROKEN: &str = "load=20*off->1*panic(on purpose)";

#[test]
fn there_is_a_way_to_every_failpoint() {
    let reached = LIVES.iter().flat_map(|(_, points)| points.iter().map(name));
    assert_eq!(reached.collect::<BTreeSet<_>>(), POINTS.iter().copied().collect());
}

/// The name of the point.
fn name<'a>(point: &&'a str) -> &'a str {
    point.split('=').next().unwrap_or(point)
}

/// Plays the runs with one of these events. The event begins when three steps are done.
fn play(world: &World, happenings: &[While]) {
    world.undisturbed(); // it blocks: later, the runs would wait for it
    let rows = LIVES.iter().filter(|(happening, _)| happenings.contains(happening));
    abreast(rows, async |(happening, points)| {
        let mut scene = Scene::begin_under(world, points, happening.workers()).await;
        scene.until(|scene| scene.cluster.progress().step().0 >= 3).await;
        let points: Vec<_> = points.iter().map(name).collect();
        happening.happen(&mut scene, &points).await;
        // At full speed the run might end, or have its last checkpoint listed, while a coordinator
        // starts again.
        if happening.has_slow_steps() {
            scene.until(|scene| points.iter().all(|point| scene.has_met(point))).await;
        }
        let log = scene.log.clone();
        let report = scene.end().await;
        if *happening == While::Saving {
            let dir = log.parent().expect("a directory");
            assert_stored(world, dir, (ALL, &format!("{points:?}")));
        }
        let met = fs::read_to_string(log).unwrap_or_default();
        let missed: Vec<_> =
            points.iter().filter(|point| !met.lines().any(|l| l == **point)).collect();
        assert!(missed.is_empty(), "{happening:?}: not met: {missed:?}");
        assert_eq!(report.coordinator_restarts as usize, points.len(), "{happening:?}: {points:?}");
        let rollbacks = match happening {
            While::GoingBack => 1,
            While::Damaging => 2,
            _ => 0,
        };
        assert_eq!(report.rollbacks.len(), rollbacks, "{happening:?}: {points:?}");
    });
}

impl While {
    /// The workers at first.
    fn workers(self) -> &'static [&'static str] {
        match self {
            Self::Beginning | Self::Ending => &["", "", ""],
            Self::GoingBack => &[SLOW, ""],
            Self::Damaging => &["load=sleep(60)", ""],
            Self::Losing => &[SLOW, "", "", ""],
            Self::Breaking => &[SLOW, "", BROKEN],
            _ => &[SLOW, "", ""],
        }
    }

    /// Whether its steps are slow until the coordinators have died.
    fn has_slow_steps(self) -> bool {
        !self.workers()[0].is_empty()
    }

    /// Brings the event about, while coordinators die at these points.
    async fn happen(self, scene: &mut Scene<'_>, points: &[&str]) {
        let signal = |scene: &Scene<'_>, signal| {
            kill_process(scene.newest().1, signal).expect("it lives");
        };
        match self {
            Self::Beginning | Self::Ending | Self::Breaking | Self::Saving => {}
            Self::Joining => scene.add(""),
            Self::LosingLearner => scene.add("feed.receive"),
            Self::Losing | Self::GoingBack => signal(scene, Signal::KILL),
            Self::Leaving => signal(scene, Signal::TERM),
            Self::Failing => fail_to_join(scene, points).await,
            Self::Evicting => evict(scene).await,
            Self::Operating => operate(scene, points).await,
            Self::Refusing => refuse_to_join(scene, points).await,
            Self::Damaging => damage(scene).await,
        }
    }
}

/// A worker joins that does not find its text.
async fn fail_to_join(scene: &mut Scene<'_>, points: &[&str]) {
    let [text, away] = ["text.txt", "away.txt"].map(|name| scene.world.path(name));
    fs::rename(&text, &away).expect("it is there");
    scene.add("");
    scene.until(|scene| scene.has_met(points[0])).await;
    fs::rename(&away, &text).expect("it is there");
}

/// A worker joins that finds another text than the others.
async fn refuse_to_join(scene: &mut Scene<'_>, points: &[&str]) {
    let path = scene.world.path("text.txt");
    let text = fs::read_to_string(&path).expect("it is there");
    fs::write(&path, text.replacen("worker", "Worker", 1)).expect("written");
    scene.add("");
    scene.until(|scene| scene.has_met(points[0])).await;
    fs::write(&path, text).expect("written");
}

/// The newest checkpoint is damaged when the run has to go back. The next one is far.
async fn damage(scene: &mut Scene<'_>) {
    let newest = |scene: &Scene<'_>| scene.cluster.progress().checkpoint();
    assert!(scene.until(|scene| newest(scene) >= Some(Step(60))).await);
    let Step(step) = newest(scene).expect("there is one");
    flip_a_bit(&scene.log.with_file_name("checkpoints").join(format!("step-{step:06}")));
    kill_process(scene.newest().1, Signal::KILL).expect("it lives");
}

/// A member stands still until it is no member any more. When it goes on, it hears that at the
/// latest.
async fn evict(scene: &mut Scene<'_>) {
    let (evicted, process) = scene.newest();
    kill_process(process, Signal::STOP).expect("it lives");
    scene.until(|scene| !scene.cluster.progress().members().contains(&evicted)).await;
    kill_process(process, Signal::CONT).expect("it lives");
}

/// An operator asks a worker to leave, and a worker that does not exist.
async fn operate(scene: &mut Scene<'_>, points: &[&str]) {
    let newest = scene.newest().0;
    while !points.iter().all(|point| scene.has_met(point)) {
        for worker in [newest, WorkerId(1_000)] {
            let _ = scene.cluster.drain(worker).await; // the answer may not come
            assert!(!scene.cluster.advance().await.expect("it survives"));
        }
    }
}

#[test]
fn a_coordinator_may_die_at_any_point_while_a_run_begins_and_after_the_last_step() {
    play(&world(60, &[]), &[While::Beginning, While::Ending]);
}

#[test]
fn a_coordinator_may_die_at_any_point_of_a_join_a_loss_or_a_leave() {
    use While::*;
    let happenings = [Joining, LosingLearner, Losing, Breaking, Evicting, Leaving, Operating];
    play(&world(200, &[]), &happenings);
}

/// No other process may look for the text then.
#[test]
fn a_coordinator_may_die_when_a_worker_that_joins_fails() {
    play(&world(130, &[]), &[While::Failing]);
}

/// No other process may look for the text then.
#[test]
fn a_coordinator_may_die_when_a_worker_that_joins_is_refused() {
    play(&world(130, &[]), &[While::Refusing]);
}

#[test]
fn i12_a_coordinator_may_die_at_any_point_of_a_checkpoint() {
    let settings = [("checkpoint.every", 10), ("checkpoint.keep", ALL)];
    play(&world(130, &settings), &[While::Saving]);
}

#[test]
fn i12_a_coordinator_may_die_when_a_checkpoint_turns_out_to_be_damaged() {
    let settings = [("checkpoint.every", 30), ("redundancy.copies", 1)];
    play(&world(130, &settings), &[While::Damaging]);
}

/// The leader of three dies, and another one leads on with the parts that workers tell it again.
/// Each of the three dies at the point, if it comes there.
#[test]
fn i12_the_leader_of_three_coordinators_may_die_at_any_point_of_a_checkpoint() {
    let world = world(100, &[("checkpoint.every", 10), ("checkpoint.keep", ALL)]);
    world.undisturbed();
    let points = LIVES.iter().filter(|(happening, _)| *happening == While::Saving);
    abreast(points.flat_map(|(_, points)| *points), async |point| {
        let mut scene = Scene::begin_among(&world, &[*point; 3], &[SLOW, "", ""]).await;
        assert!(scene.until(|scene| scene.has_met(point)).await, "{point} was not met");
        let dir = scene.log.parent().expect("a directory").to_path_buf();
        let report = scene.complete().await;
        assert!(report.coordinator_restarts > 0, "{point}");
        assert_stored(&world, &dir, (ALL, point));
    });
}

/// With the leader dies the step leader, which has written the manifest.
#[test]
fn i12_the_leader_may_die_together_with_a_worker_while_it_lists_a_checkpoint() {
    let world = world(100, &[("checkpoint.every", 20), ("checkpoint.keep", ALL)]);
    world.undisturbed();
    let points = LIVES.iter().flat_map(|(_, points)| *points);
    abreast(points.filter(|point| point.ends_with(".list_checkpoint")), async |point| {
        let mut scene = Scene::begin_under(&world, &[point], &[SLOW, "", ""]).await;
        assert!(scene.until(|scene| scene.members() > 0).await);
        let killing = scene.kill_once_met(point, scene.cluster.progress().members()[0]);
        assert!(scene.until(|scene| scene.has_met(point)).await, "{point} was not met");
        killing.join().expect("the worker lived until then");
        let dir = scene.log.parent().expect("a directory").to_path_buf();
        let report = scene.complete().await;
        assert_eq!(report.coordinator_restarts, 1, "{point}");
        assert_stored(&world, &dir, (ALL, point));
    });
}

#[test]
fn a_coordinator_may_die_at_any_point_of_a_rollback() {
    play(&world(130, &[("redundancy.copies", 1)]), &[While::GoingBack]);
}

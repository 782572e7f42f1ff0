//! A worker killed at every point of its life: the same bits, and each point was met (I3, I4, I6).
//!
//! [`BY`] says for each point how a victim gets there.

use std::collections::BTreeSet;
use std::fs;
use std::thread;

use everstep_worker::failpoint::{POINTS, STORE_POINTS};
use rustix::process::{Pid, Signal, kill_process};

use super::{ABREAST, ALL, SLOW, Scene, abreast, assert_stored, block_on, stands_at, world};
use crate::world::{World, show, until};

/// The way of a victim to its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// It joins a run under way, and trains.
    Joining,
    /// It is a member when other workers join.
    Hosting,
    /// It leads the steps, from the first on.
    Leading,
    /// It leads the steps when another worker joins.
    LeadingJoin,
    /// It trains to the last step.
    Finishing,
    /// It has trained the last step, and another worker asks for its master weights.
    Asked,
    /// It joins a run that waits for workers.
    JoiningWaiting,
    /// It is a member of a run that waits, when another worker joins.
    HostingWaiting,
    /// It is a member when another member is lost.
    Losing,
    /// It is told to leave.
    Leaving,
    /// It stands still until it is evicted.
    ComingBack,
    /// It is the first of three members of a run that writes checkpoints.
    Saving,
    /// It reads its shards of a checkpoint, since the only owner of others is lost.
    Restoring,
    /// All members hold, and no message of the coordinator comes through.
    Holding,
}

/// Every point, with the way to it.
const BY: &[(By, &[&str])] = &[
    (
        By::Joining,
        &[
            "hello.send",
            "welcome.receive",
            "register.send",
            "registered.receive",
            "announce.receive",
            "feed.receive",
            "fetch_state.send",
            "state.receive",
            "restore",
            "pause.receive",
            "status.send",
            "enter",
            "load",
            "forward",
            "backward",
            "reduce_scatter.send",
            "reduce_scatter.receive",
            "reduced.send",
            "reduced.receive",
            "vote.send",
            "commit.receive",
            "update",
            "all_gather.send",
            "all_gather.receive",
        ],
    ),
    (By::Hosting, &["meet", "fetch_state.receive", "state.send", "held", "fetch_record.send"]),
    (
        By::Leading,
        &[
            "vote.receive",
            "commit.send",
            "write.receive",
            "fetch_masters.send",
            "masters.receive",
            "written.send",
        ],
    ),
    (By::LeadingJoin, &["hold.receive"]),
    (By::Finishing, &["masters.send", "finished.send", "dismiss.receive"]),
    (By::Asked, &["fetch_masters.receive"]),
    (By::JoiningWaiting, &["fetch_parameters.send", "parameters.receive"]),
    (By::HostingWaiting, &["fetch_parameters.receive", "parameters.send"]),
    (By::Losing, &["pause.receive", "status.send", "announce.receive", "enter"]),
    (By::Leaving, &["leave.send"]),
    (By::ComingBack, &["evicted.receive"]),
    (
        By::Saving,
        &[
            "save",
            "saved.send",
            "write_manifest.receive",
            "written_manifest.send",
            "stored.send",
            "part.written",
            "part.placed",
            "manifest.due",
            "manifest.placed",
            "manifest.deleted",
            "part.swept",
            "model.due",
            "model.placed",
        ],
    ),
    (By::Restoring, &["shard.read"]),
    (By::Holding, &["go.send", "go.receive"]),
];

fn points(by: By) -> &'static [&'static str] {
    BY.iter().find(|(way, _)| *way == by).map_or(&[], |(_, points)| points)
}

#[test]
fn there_is_a_way_to_every_failpoint() {
    let reached: BTreeSet<_> = BY.iter().flat_map(|(_, points)| *points).collect();
    assert_eq!(reached, POINTS.iter().chain(STORE_POINTS).collect());
}

/// Some points need luck. After this many whole runs without it, the test fails.
const RUNS: usize = 4;

/// Starts victims one after the other. `meet` lets each meet its point, in as many runs as that
/// takes. Several runs side by side share the points.
fn one_by_one(world: &World, points: &[&str], meet: impl AsyncFn(&mut Scene<'_>, &str) -> bool) {
    world.undisturbed();
    abreast(points.chunks(points.len().div_ceil(ABREAST)), async |points| {
        let mut left = points.iter();
        let (mut next, mut in_vain) = (left.next(), 0);
        while next.is_some() {
            let mut scene = Scene::begin(world, &[SLOW, "", ""]).await;
            let first = next;
            assert!(scene.until(|scene| scene.cluster.progress().step().0 >= 3).await);
            while let Some(point) = next
                && meet(&mut scene, point).await
            {
                next = left.next();
            }
            in_vain = if first == next { in_vain + 1 } else { 0 };
            assert!(in_vain < RUNS, "{RUNS} whole runs are over, and nobody has met {first:?}");
            scene.complete().await;
        }
    });
}

#[test]
fn a_worker_that_joins_may_die_at_any_point() {
    let world = world(130, &[]);
    one_by_one(&world, points(By::Joining), async |scene, point| {
        scene.add(point);
        scene.until(|scene| scene.has_met(point)).await
    });
}

#[test]
fn a_member_may_die_at_any_point_of_anothers_join() {
    let world = world(130, &[]);
    one_by_one(&world, points(By::Hosting), async |scene, point| {
        let members = scene.members();
        scene.add(point);
        if !scene.until(|scene| scene.members() > members || scene.has_met(point)).await {
            return false;
        }
        // Some points need two workers that start at once, and a little luck.
        while !scene.has_met(point) {
            let members = scene.members();
            scene.add("");
            scene.add("");
            let came = |scene: &Scene<'_>| scene.members() >= members + 2;
            if !scene.until(|scene| scene.has_met(point) || came(scene)).await {
                return false;
            }
        }
        true
    });
}

#[test]
fn a_step_leader_may_die_at_any_point() {
    for copies in [2, 3] {
        let world = world(60, &[("redundancy.copies", copies)]);
        world.undisturbed();
        abreast(points(By::Leading), async |point| {
            let mut scene = Scene::begin(&world, &[point, "", ""]).await;
            assert!(scene.until(|scene| scene.has_met(point)).await, "{point} was not met");
            scene.complete().await;
        });
    }
}

/// Runs with many checkpoints, and how many of them each keeps.
fn saving() -> [(i64, World); 2] {
    [1, ALL].map(|keep| {
        let world = world(150, &[("checkpoint.every", 4), ("checkpoint.keep", keep)]);
        world.undisturbed();
        (keep, world)
    })
}

/// The run in which a worker comes to this point. At two of the points a checkpoint is being
/// deleted.
fn with_point<'a>([deleting, keeping]: &'a [(i64, World); 2], point: &str) -> &'a (i64, World) {
    if ["manifest.deleted", "part.swept"].contains(&point) { deleting } else { keeping }
}

/// No listed checkpoint is ever unusable, none is lost that was listed, and another worker puts the
/// model into the store.
#[test]
fn i12_i22_a_worker_may_die_at_any_point_of_a_checkpoint() {
    let worlds = saving();
    abreast(points(By::Saving), async |point| {
        let (keep, world) = with_point(&worlds, point);
        let mut scene = Scene::begin(world, &[point, SLOW, ""]).await;
        assert!(scene.until(|scene| scene.has_met(point)).await, "{point} was not met");
        let dir = scene.log.parent().expect("a directory").to_path_buf();
        scene.complete().await;
        let events = assert_stored(world, &dir, (*keep, point));
        let model = dir.join("checkpoints/model.safetensors");
        assert!(model.is_file(), "{point}: the model is in the store");
        let named = events.iter().find(|event| event["event"] == "complete");
        let named = named.expect("it is complete");
        assert_eq!(named["model"]["path"], model.to_str().expect("UTF-8"), "{point}");
    });
}

/// A worker stands at a stage of a checkpoint until it is killed together with the leader. The next
/// leader gets the parts again from the others, and adopts a manifest that is there.
#[test]
fn i12_a_worker_and_the_leader_may_die_together_at_any_stage_of_a_checkpoint() {
    let worlds = saving();
    let is_stage = |point: &&&str| ["part.", "manifest."].iter().any(|of| point.starts_with(of));
    abreast(points(By::Saving).iter().filter(is_stage), async |point| {
        let (keep, world) = with_point(&worlds, point);
        let mut scene = Scene::begin(world, &[&stands_at(point), SLOW, ""]).await;
        assert!(scene.until(|scene| scene.has_met(point)).await, "{point} was not met");
        scene.kill_with_leader(0);
        let dir = scene.log.parent().expect("a directory").to_path_buf();
        let report = scene.complete().await;
        assert_eq!(report.coordinator_restarts, 1, "{point}");
        assert_stored(world, &dir, (*keep, point));
    });
}

/// All processes are killed when the manifest of the last step is in its place, and before the log
/// lists it. A later generation saves the step again, and the older manifest is not in its way.
#[test]
fn i12_a_checkpoint_that_was_complete_and_never_listed_is_saved_again() {
    const STANDS: &str = "manifest.placed=1*off->sleep(60000);load=sleep(50)";
    let world = world(100, &[("checkpoint.every", 50)]);
    let wanted = world.undisturbed();
    let dir = block_on(async {
        let mut scene = Scene::begin(&world, &[STANDS, STANDS]).await;
        let dir = scene.log.parent().expect("a directory").to_path_buf();
        let manifest = dir.join("checkpoints/step-000100/manifest.json");
        assert!(scene.until(|_| manifest.is_file()).await, "it is complete without a listing");
        dir
    });
    let manifest = dir.join("checkpoints/step-000100/manifest.json");
    let first = fs::read_to_string(&manifest).expect("a manifest");
    let resumed = world.start(&["resume", show(&dir), "--workers", "3"]).end();
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    assert!(resumed.stdout.contains(&wanted), "{resumed:?}");
    let events = assert_stored(&world, &dir, (2, "resumed"));
    let of = |kind: &str| events.iter().rfind(|event| event["event"] == kind);
    assert_eq!(of("checkpoint").expect("one")["step"], 100);
    assert_eq!(of("checkpoint_failed"), None);
    assert_ne!(fs::read_to_string(&manifest).expect("a manifest"), first, "a later generation's");
}

/// One of the two that are left after a loss dies when it has read a part of its shards.
#[test]
fn i12_a_worker_may_die_while_it_restores_a_checkpoint() {
    let world = world(400, &[("checkpoint.every", 10), ("redundancy.copies", 1)]);
    world.undisturbed();
    abreast(points(By::Restoring), async |point| {
        let late = format!("{point}=3*off->1*return(kill)");
        let mut scene = Scene::begin(&world, &["load=sleep(20)", &late, ""]).await;
        let is_listed = |scene: &Scene<'_>| scene.cluster.progress().checkpoint().is_some();
        assert!(scene.until(is_listed).await);
        kill_process(scene.newest().1, Signal::KILL).expect("it lives");
        assert!(scene.until(|scene| scene.has_met(point)).await, "{point} was not met");
        let dir = scene.log.parent().expect("a directory").to_path_buf();
        let report = scene.end().await;
        assert!(report.rollbacks.iter().all(|back| back.to.0 >= 10), "{:?}", report.rollbacks);
        assert_stored(&world, &dir, (2, point));
    });
}

#[test]
fn a_step_leader_may_die_when_it_is_asked_to_hold() {
    let world = world(130, &[]);
    for point in points(By::LeadingJoin) {
        block_on(async {
            let mut scene = Scene::begin(&world, &[point, SLOW, ""]).await;
            assert!(scene.until(|scene| scene.cluster.progress().step().0 >= 3).await);
            scene.add("");
            assert!(scene.until(|scene| scene.has_met(point)).await, "{point} was not met");
            scene.complete().await;
        });
    }
}

/// Of four members with two copies two die that are no neighbours on the ring. The second dies in
/// the change after the loss of the first. It passes the points once before, when the run begins.
#[test]
fn a_member_may_die_at_any_point_of_the_change_after_anothers_loss() {
    let world = world(100, &[("redundancy.copies", 2)]);
    world.undisturbed();
    let points = points(By::Losing).iter();
    let rows = points.flat_map(|point| [(point, 0, 2), (point, 1, 3)]);
    abreast(rows, async |(point, victim, killed)| {
        let mut workers = [""; 4];
        let again = format!("{point}=1*off->1*return(kill)");
        (workers[victim], workers[(victim + 3) % 4]) = (&again, SLOW);
        let mut scene = Scene::begin(&world, &workers).await;
        assert!(scene.until(|scene| scene.cluster.progress().step().0 >= 3).await);
        assert!(!scene.has_met(point), "{point} was met before");
        let killed = scene.process(scene.cluster.progress().members()[killed]);
        kill_process(killed, Signal::KILL).expect("it lives");
        assert!(scene.until(|scene| scene.has_met(point)).await, "{point} was not met");
        scene.complete().await;
    });
}

#[test]
fn a_member_may_die_at_any_point_after_the_last_step() {
    let world = world(60, &[]);
    // Two members that die at one moment may be all owners of a shard.
    for points in [points(By::Finishing), points(By::Asked)] {
        block_on(async {
            let scene = Scene::begin(&world, &[&["", ""], points].concat()).await;
            let log = scene.log.clone();
            scene.complete().await;
            let met = fs::read_to_string(log).expect("its log");
            let met: BTreeSet<&str> = met.lines().collect();
            assert_eq!(met, points.iter().copied().collect());
        });
    }
}

#[test]
fn a_worker_that_joins_a_waiting_run_may_die_at_any_point() {
    // A new member lacks the shards that it does not own.
    let world = world(60, &[("run.min_workers", 3), ("run.start_workers", 3)]);
    let world = world.with("redundancy.copies", 2);
    block_on(async {
        let mut scene = Scene::begin(&world, &["", "", "commit.receive"]).await;
        assert!(scene.until(|scene| scene.cluster.progress().waiting.is_some()).await);
        for point in points(By::JoiningWaiting) {
            scene.add(point);
            assert!(scene.until(|scene| scene.has_met(point)).await, "{point} was not met");
        }
        scene.add("");
        scene.complete().await;
    });
}

#[test]
fn a_member_of_a_waiting_run_may_die_at_any_point_of_anothers_join() {
    let world = world(60, &[("run.min_workers", 4), ("run.start_workers", 4)]);
    let world = world.with("redundancy.copies", 2);
    world.undisturbed();
    abreast(points(By::HostingWaiting), async |point| {
        let mut scene = Scene::begin(&world, &["", point, "", "commit.receive"]).await;
        assert!(scene.until(|scene| scene.cluster.progress().waiting.is_some()).await);
        scene.add("");
        assert!(scene.until(|scene| scene.has_met(point)).await, "{point} was not met");
        scene.add("");
        scene.complete().await;
    });
}

#[test]
fn a_worker_may_die_while_it_asks_to_leave() {
    let world = world(130, &[]);
    one_by_one(&world, points(By::Leaving), async |scene, point| {
        scene.add(point);
        if !scene.until_member_count(4).await {
            return false;
        }
        kill_process(scene.newest().1, Signal::TERM).expect("it lives");
        scene.until(|scene| scene.has_met(point)).await
    });
}

#[test]
fn a_worker_may_die_when_it_hears_that_it_was_evicted() {
    let world = world(130, &[]);
    one_by_one(&world, points(By::ComingBack), async |scene, point| {
        scene.add(point);
        if !scene.until_member_count(4).await {
            return false;
        }
        let (victim, process) = scene.newest();
        kill_process(process, Signal::STOP).expect("it lives");
        if !scene.until(|scene| !scene.cluster.progress().members().contains(&victim)).await {
            return false;
        }
        kill_process(process, Signal::CONT).expect("it lives");
        scene.until(|scene| scene.has_met(point)).await
    });
}

#[test]
fn members_may_die_where_a_hold_ends_without_a_change() {
    let world = world(130, &[]);
    let leader = "hold.receive=1*sleep(900)";
    let killed = |point: &str| format!("{point}=1*return(kill)");
    world.undisturbed();
    let rows = [
        ("go.send", [format!("{leader};{}", killed("go.send")), SLOW.into(), String::new()]),
        ("go.receive", [leader.to_string(), SLOW.into(), killed("go.receive")]),
    ];
    abreast(rows, async |(point, workers)| {
        assert!(points(By::Holding).contains(&point));
        let mut scene = Scene::begin(&world, &workers.each_ref().map(|w| &**w)).await;
        assert!(scene.until(|scene| scene.cluster.progress().step().0 >= 3).await);
        let coordinator = scene.cluster.leader_pid().expect("a coordinator leads");
        let coordinator = Pid::from_raw(coordinator as i32).expect("a pid");
        let log = scene.log.clone();
        // The worker is deaf from the moment of the request to the step leader to hold.
        let deafener = thread::spawn(move || {
            let met = |point: &str| {
                until(point, || {
                    let met = fs::read_to_string(&log).unwrap_or_default();
                    met.lines().any(|line| line == point).then_some(())
                });
            };
            met("hold.receive");
            kill_process(coordinator, Signal::STOP).expect("it lives");
            met(point);
            kill_process(coordinator, Signal::CONT).expect("it lives");
        });
        scene.add("");
        assert!(scene.until(|scene| scene.has_met(point)).await, "{point} was not met");
        deafener.join().expect("no panic");
        scene.complete().await;
    });
}

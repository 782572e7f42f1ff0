//! Real processes whose run is paused, saved at a word, or left by all of its workers.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::preempted::{MetadataService, notice};
use crate::world::{
    CoordinatorGroup, Ended, Launched, PACED, Program, Run, Signal, World, show, until,
};

/// The small run with so many steps, and a checkpoint after the last one alone.
fn saved_at_the_end(steps: i64) -> World {
    World::lasting(steps).with("checkpoint.every", 1_000_000)
}

/// Runs a verb for a run under way.
fn ask(world: &World, run: &Launched, verb: &[&str]) -> Ended {
    world.start(&[verb, &["--dir", show(&run.dir), "--json"]].concat()).end()
}

/// The answer of a verb, which must succeed.
fn told(world: &World, run: &Launched, verb: &[&str]) -> Value {
    let ended = ask(world, run, verb);
    assert_eq!(ended.code, Some(0), "{verb:?}: {ended:?}");
    serde_json::from_str(&ended.stdout).expect("JSON")
}

/// The steps of each rollback: the last one before, and the one that the run went back to.
fn rollbacks(events: &[Value]) -> Vec<(u64, u64)> {
    let rollbacks = events.iter().filter(|event| event["event"] == "rollback");
    let step = |event: &Value, key: &str| event[key].as_u64().expect("a step");
    rollbacks.map(|event| (step(event, "from"), step(event, "to"))).collect()
}

/// Invariant I26.
#[test]
fn i26_a_run_rests_as_long_as_an_operator_says_and_keeps_its_bits() {
    const STEPS: i64 = 300;
    let world = saved_at_the_end(STEPS);
    let wanted = world.undisturbed();
    let run = world.launch(&["--workers", "3"]);
    run.until_step(5);
    let paused = told(&world, &run, &["run", "pause"]);
    assert_eq!(paused["state"], "paused", "{paused}");
    let words = paused["status"].as_str().expect("words");
    assert!(words.starts_with("paused by an operator: step"), "{words}");
    let again = ask(&world, &run, &["run", "pause"]);
    assert!(again.block().contains("paused by an operator already"), "{again:?}");

    // A worker dies meanwhile, and the others repair the copies.
    run.cluster().expect("a cluster").member(2).signal(Signal::KILL);
    run.until_protected(1);
    let step = run.lines("metrics.jsonl").len();
    let saved = told(&world, &run, &["checkpoint", "now"]);
    assert_eq!((&saved["step"], &saved["complete"]), (&step.into(), &true.into()));
    let still = told(&world, &run, &["run", "status"]);
    assert_eq!((&still["state"], &still["step"]), (&"paused".into(), &step.into()));

    let resumed = told(&world, &run, &["run", "resume"]);
    assert_ne!(resumed["state"], "paused");
    let again = ask(&world, &run, &["run", "resume"]);
    assert!(again.block().contains("the run is not paused"), "{again:?}");
    run.until_step(step + 1);
    let saved = told(&world, &run, &["checkpoint", "now"]);
    assert!(saved["step"].as_u64() > Some(step as u64), "{saved}");
    let run = run.complete();
    assert_eq!(run.hash(), wanted);
    run.assert_survived(STEPS as u64);
    let events = run.lines("events.jsonl");
    for event in ["paused", "resumed"] {
        assert_eq!(events.iter().filter(|it| it["event"] == event).count(), 1, "{event}");
    }
    assert_eq!(run.generations("resume")[0]["stall_ms"], Value::Null, "a pause is no stall");
}

#[test]
fn a_run_without_checkpoints_saves_none_and_says_so() {
    let world = World::lasting(100_000);
    let run = world.launch(&["--workers", "1"]);
    run.until_step(1);
    let ended = ask(&world, &run, &["checkpoint", "now"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.block().contains("no section [checkpoint]"), "{ended:?}");
}

#[test]
fn the_last_workers_of_a_local_cluster_leave_nothing_behind() {
    const STEPS: i64 = 300;
    let world = saved_at_the_end(STEPS);
    let wanted = world.undisturbed();
    let run = world.launch(&["--workers", "2"]);
    let cluster = run.until_step(7);
    cluster.members().iter().for_each(|worker| worker.signal(Signal::TERM));
    run.until("all have left", || (run.count("left") >= 2).then_some(()));
    assert_eq!(run.count("checkpoint"), 1);
    run.program.signal(Signal::KILL);
    run.program.end();
    let report = world.path("resumed.json");
    let resume = ["resume", show(&run.dir), "--workers", "3", "--report", show(&report)];
    let ended = world.start(&resume).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let run = Run::read(run.dir, &report, ended.stdout);
    assert_eq!(run.hash(), wanted);
    run.assert_one_history(STEPS as u64);
    let back = rollbacks(&run.lines("events.jsonl"));
    assert!(back.len() == 1 && back[0].0 == back[0].1 && back[0].1 >= 7, "{back:?}");
}

/// Why a worker leaves in good order, in the words at its end.
const NOTHING_DEPENDS: &str = "nothing depends on it any more";

/// A coordinator, and the run that two workers train. All of them leave, and the next two go on.
struct Daemons<'a> {
    world: &'a World,
    group: CoordinatorGroup,
    dir: PathBuf,
}

impl<'a> Daemons<'a> {
    /// A coordinator, and two workers in step 5 or later, with these flags and these failpoints.
    fn begin(world: &'a World, flags: &[&str], points: &str) -> (Self, Vec<Program>) {
        let group = CoordinatorGroup::found(&world.path("coordinators"), 1, &[]);
        let dir = group.members[0].dir.clone();
        let daemons = Self { world, group, dir };
        let workers = daemons.workers(flags, &format!("{PACED};{points}"));
        let submitted = daemons.start(&["run", "submit", show(&world.config())]).end();
        assert_eq!(submitted.code, Some(0), "{submitted:?}");
        let is_far = || daemons.status()["step"].as_u64() >= Some(5);
        until("some steps", || is_far().then_some(()));
        (daemons, workers)
    }

    fn workers(&self, flags: &[&str], points: &str) -> Vec<Program> {
        let addresses = self.group.addresses();
        let token = format!("@{}", show(&self.dir.join("join.token")));
        let join = ["worker", "--coordinators", &addresses, "--join", &token, "--dir", "models"];
        let start = |_| {
            let mut command = self.world.command(&[&join[..], flags].concat());
            if !points.is_empty() {
                command.env("FAILPOINTS", points);
            }
            Program::start(command)
        };
        (0..2).map(start).collect()
    }

    /// Starts a verb for the cluster.
    fn start(&self, verb: &[&str]) -> Program {
        self.world.start(&[verb, &["--dir", show(&self.dir)]].concat())
    }

    fn status(&self) -> Value {
        let ended = self.start(&["run", "status", "--json"]).end();
        serde_json::from_str(&ended.stdout).unwrap_or_default()
    }

    fn events(&self) -> Vec<Value> {
        let [events, _] = self.group.members[0].history().expect("a history");
        events
    }

    /// The workers have left, the last of them for this reason. Nothing depended on a worker that
    /// left before. The next workers train to the end, and leave when they have no run any more.
    /// Returns all events.
    fn go_on(&self, workers: Vec<Program>, reason: &str, wanted: &str) -> Vec<Value> {
        let left = |worker: Program| {
            let ended = worker.end();
            assert_eq!(ended.code, Some(143), "{ended:?}");
            ended.farewell().to_string()
        };
        let words =
            |reason| format!("the worker has left\n    why: it was told to leave, and {reason}\n");
        let told: Vec<String> = workers.into_iter().map(left).collect();
        let known = [words(reason), words(NOTHING_DEPENDS)];
        assert!(told.contains(&known[0]) && told.iter().all(|it| known.contains(it)), "{told:?}");
        let workers = self.workers(&[], "");
        let over =
            until("the end", || Some(self.status()).filter(|run| run["state"] == "complete"));
        assert_eq!(over["hash"], wanted);
        workers.iter().for_each(|worker| worker.signal(Signal::TERM));
        assert!(workers.into_iter().map(left).all(|told| told == words(NOTHING_DEPENDS)));
        self.events()
    }
}

/// A run of daemons that saves its last step alone, and its hash.
fn saved_by_daemons() -> (World, String) {
    let world = saved_at_the_end(400);
    let wanted = world.undisturbed();
    let store = world.path("store");
    (world.with("checkpoint.path", show(&store)).with("run.start_workers", 2), wanted)
}

/// The workers of daemons, which have these flags, leave, all of them, and the next ones go on from
/// where they were. Returns all events.
fn leave_a_checkpoint(flags: &[&str], leave: impl FnOnce(&Daemons<'_>, &[Program])) -> Vec<Value> {
    let (world, wanted) = saved_by_daemons();
    let (daemons, workers) = Daemons::begin(&world, flags, "");
    leave(&daemons, &workers);
    let events = daemons.go_on(workers, NOTHING_DEPENDS, &wanted);
    let saved = events.iter().find(|event| event["event"] == "checkpoint").expect("a checkpoint");
    let step = saved["step"].as_u64().expect("a step");
    assert_eq!(rollbacks(&events), [(step, step)], "nothing is lost");
    assert!(!events.iter().any(|event| event["event"] == "lost"), "{events:?}");
    events
}

#[test]
fn the_last_daemons_leave_a_checkpoint_from_which_the_next_ones_go_on() {
    leave_a_checkpoint(&[], |_, workers| {
        workers.iter().for_each(|worker| worker.signal(Signal::TERM));
    });
}

#[test]
fn daemons_that_an_operator_drains_leave_a_checkpoint_from_which_the_next_ones_go_on() {
    leave_a_checkpoint(&[], |daemons, _| {
        let listed = daemons.start(&["worker", "ls", "--json"]).end();
        let listed: Value = serde_json::from_str(&listed.stdout).expect("JSON");
        let workers = listed["workers"].as_array().expect("a list").iter();
        let ids: Vec<_> = workers.map(|worker| format!("id:{}", worker["id"])).collect();
        let drains: Vec<_> = ids.iter().map(|id| daemons.start(&["worker", "drain", id])).collect();
        for drain in drains {
            let drained = drain.end();
            assert_eq!(drained.code, Some(0), "{drained:?}");
        }
    });
}

#[test]
fn daemons_whose_machines_are_all_taken_back_leave_a_checkpoint_from_which_the_next_ones_go_on() {
    let service = MetadataService::start("aws");
    let flags = ["--preemption", "aws", "--metadata-url", &service.url];
    let events = leave_a_checkpoint(&flags, |_, _| service.say(notice("aws")));
    let told = events.iter().filter(|event| event["event"] == "preempted").count();
    assert_eq!(told, 2, "{events:?}");
}

/// The workers' store takes longer than they wait. The steps are trained again.
#[test]
fn daemons_whose_grace_is_too_short_for_the_save_say_so() {
    let (world, wanted) = saved_by_daemons();
    let (daemons, workers) =
        Daemons::begin(&world, &["--grace", "10"], "part.written=sleep(60000)");
    workers.iter().for_each(|worker| worker.signal(Signal::TERM));
    let reason = "its time ran out before it could do so in good order";
    let events = daemons.go_on(workers, reason, &wanted);
    let failed = events.iter().find(|event| event["event"] == "checkpoint_failed");
    let reason = failed.expect("an event")["reason"].as_str().expect("words");
    assert!(reason.contains("the run went back before that step"), "{reason}");
    assert!(rollbacks(&events).iter().all(|(_, to)| *to == 0), "{events:?}");
}

#[test]
fn a_launcher_that_is_told_to_end_keeps_the_step_under_way() {
    const STEPS: i64 = 300;
    let world = saved_at_the_end(STEPS);
    let wanted = world.undisturbed();
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let run = world.launch(&["--workers", "2"]);
        run.until_step(7);
        run.program.signal(signal);
        let (dir, ended) = (run.dir.clone(), run.program.end());
        assert_eq!(ended.code, Some(code), "{ended:?}");
        let text = std::fs::read_to_string(dir.join("report.json")).expect("a report");
        let told: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((&told["state"], &told["checkpoint"]), (&"interrupted".into(), &told["step"]));
        let step = told["step"].as_u64().expect("a step");
        let kept = format!("goes on from the checkpoint of step {step}");
        assert!(step >= 7 && ended.farewell().contains(&kept), "{ended:?}");
        let report = dir.with_extension("resumed");
        let resume = ["resume", show(&dir), "--workers", "3", "--report", show(&report)];
        let ended = world.start(&resume).end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let run = Run::read(dir, &report, ended.stdout);
        assert_eq!(run.hash(), wanted);
        assert_eq!(rollbacks(&run.lines("events.jsonl")), [(step, step)], "nothing is lost");
    }
}

/// The only worker is stopped, so nothing can be saved.
#[test]
fn a_launcher_that_is_told_twice_to_end_does_so_at_once() {
    let world = saved_at_the_end(100_000);
    let run = world.launch(&["--workers", "1"]);
    run.until_step(3).members()[0].signal(Signal::STOP);
    let began = Instant::now();
    run.program.signal(Signal::TERM);
    until("it says so", || run.program.said().contains("A second Ctrl-C").then_some(()));
    run.program.signal(Signal::TERM);
    let ended = run.program.end();
    assert_eq!(ended.code, Some(143), "{ended:?}");
    assert!(began.elapsed() < Duration::from_secs(20), "it has waited for the worker");
    assert!(ended.farewell().contains("no checkpoint was complete yet"), "{ended:?}");
}

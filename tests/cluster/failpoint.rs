//! A process killed at every point of its life: the same bits, and each point was met.
//!
//! The tests start the clusters from code, so that each process can have failpoints of its own.
//! Processes with failpoints are the victims.

mod coordinator;
mod replica;
mod worker;

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use everstep::cli::Overrides;
use everstep::cluster::{Cluster, ClusterOptions, Directory, Program, Report};
use everstep::{RunSpec, builtin, config};
use everstep_transport::protocol::WorkerId;
use everstep_transport::protocol::outcome::WorkerState;
use futures_util::{StreamExt, stream};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::world::{UNTIL, World, until};

/// The failpoint that makes a worker's steps slow until the scene waits for the end of the run.
const SLOW: &str = "load=sleep(100)";
/// How many runs there are at once. Their processes mostly wait.
const ABREAST: usize = 4;

/// A cluster under way. Some of its workers are victims.
struct Scene<'a> {
    world: &'a World,
    cluster: Cluster,
    run: RunSpec,
    log: PathBuf,
}

/// `checkpoint.keep` of a run that deletes none of its checkpoints. The test looks at them at the
/// end, and a damaged checkpoint would be gone by then.
const ALL: i64 = 1_000;

/// The small run, with `steps` steps, and with `settings` on top.
fn world(steps: i64, settings: &[(&'static str, i64)]) -> World {
    let world = World::new().with("run.steps", steps).with("redundancy.copies", 3);
    settings.iter().fold(world, |world, (key, value)| world.with(key, *value))
}

impl<'a> Scene<'a> {
    /// Begins with a worker for each of these points, in the order of their ranks. An empty point
    /// stands for a worker that is no victim.
    async fn begin(world: &'a World, workers: &[&str]) -> Self {
        Self::begin_under(world, &[], workers).await
    }

    /// As [`Scene::begin`], under a coordinator for each of these points, one after the other, and
    /// one that is no victim.
    async fn begin_under(world: &'a World, coordinators: &[&str], workers: &[&str]) -> Self {
        Self::begin_with(world, (coordinators, 1), workers).await
    }

    /// As [`Scene::begin`], under a coordinator for each of these points, all at once. Those that
    /// take their places are no victims.
    async fn begin_among(world: &'a World, coordinators: &[&str], workers: &[&str]) -> Self {
        Self::begin_with(world, (coordinators, coordinators.len() as u32), workers).await
    }

    async fn begin_with(
        world: &'a World,
        (points, coordinators): (&[&str], u32),
        workers: &[&str],
    ) -> Self {
        let count = Some(workers.len() as u32);
        let flags = Overrides { workers: count, ..Overrides::default() };
        let registry = builtin::registry();
        let run = config::read(Some(&world.config()), &flags, &registry).expect("a run").run;
        let directory = Directory::claim_new(&world.path("scenes"), &run).expect("a directory");
        let log = directory.path().join("failpoints");
        let program = Some(program(directory.path(), points, &log));
        let options = ClusterOptions { program, coordinators, ..ClusterOptions::new(0) };
        let mut cluster = Cluster::start(directory, &options).await.expect("a cluster");
        cluster.submit(&run).await.expect("submitted");
        let mut scene = Self { world, cluster, run, log };
        for (before, point) in workers.iter().enumerate() {
            scene.add(point);
            // The order of registration sets the ranks.
            let there = |scene: &Self| scene.cluster.progress().registered() != Some(before);
            assert!(scene.until(there).await, "it waits for all");
        }
        scene
    }

    /// Starts one more worker.
    fn add(&mut self, point: &str) {
        let log = self.log.to_str().expect("UTF-8").to_string();
        let points = failpoints(point);
        let until = self.full_speed();
        let until = until.to_str().expect("UTF-8");
        let environment =
            [("FAILPOINTS", &*points), ("EVERSTEP_FAILPOINT_LOG", &log), (UNTIL, until)];
        let environment = if point.is_empty() { &[][..] } else { &environment };
        self.cluster.add_worker(environment).expect("a worker");
    }

    /// Lets the cluster go on until `there` is true. Returns false if the run is complete before.
    async fn until(&mut self, there: impl Fn(&Self) -> bool) -> bool {
        while !there(self) {
            if self.cluster.advance().await.expect("it survives") {
                return there(self);
            }
        }
        true
    }

    /// The path of the file with which the slow workers go at full speed.
    fn full_speed(&self) -> PathBuf {
        self.log.with_extension("full-speed")
    }

    fn has_met(&self, point: &str) -> bool {
        let met = fs::read_to_string(&self.log).unwrap_or_default();
        met.lines().any(|line| line == point)
    }

    fn members(&self) -> usize {
        self.cluster.progress().members().len()
    }

    async fn until_member_count(&mut self, count: usize) -> bool {
        let settled = |scene: &Self| {
            let views = scene.cluster.progress().workers.iter();
            let training = views.filter(|view| view.state == WorkerState::Training);
            scene.members() == count && training.count() == count
        };
        self.until(settled).await
    }

    /// The newest member and its process, for a signal.
    fn newest(&self) -> (WorkerId, Pid) {
        let newest = *self.cluster.progress().members().iter().max().expect("a member");
        (newest, self.process(newest))
    }

    /// The process of a living worker.
    fn process(&self, worker: WorkerId) -> Pid {
        let pid = self.cluster.worker_pid(worker).expect("its process");
        Pid::from_raw(pid as i32).expect("a process id")
    }

    /// Kills the member with this rank and the leading coordinator, one right after the other.
    fn kill_with_leader(&self, rank: usize) {
        let member = self.process(self.cluster.progress().members()[rank]);
        let leader = self.cluster.leader_pid().expect("it lives");
        let leader = Pid::from_raw(leader as i32).expect("a process id");
        for process in [member, leader] {
            kill_process(process, Signal::KILL).expect("it lives");
        }
    }

    /// Kills a worker at the moment when another process dies at this point.
    fn kill_once_met(&self, point: &str, worker: WorkerId) -> JoinHandle<()> {
        let (process, log, line) = (self.process(worker), self.log.clone(), format!("{point}\n"));
        thread::spawn(move || {
            until("the point", || fs::read_to_string(&log).ok()?.contains(&line).then_some(()));
            let _ = kill_process(process, Signal::KILL); // the run may have ended with the worker
        })
    }

    /// Lets the run become complete. It must be as if nothing had happened, and never have gone
    /// back (I6).
    async fn complete(self) -> Report {
        let report = self.end().await;
        assert_eq!(report.rollbacks, []);
        report
    }

    /// Lets the run become complete, with the same bits and no loss.
    async fn end(mut self) -> Report {
        fs::write(self.full_speed(), "").expect("written");
        assert!(!self.until(|_| false).await, "nothing else ends it");
        let report = self.cluster.report(&self.run);
        self.cluster.finish().await;
        let lost = (report.steps_lost, report.samples_lost, report.samples_repeated);
        assert_eq!(lost, (0, 0, 0));
        assert_eq!(report.state_hash, self.world.undisturbed());
        report
    }
}

/// Plays a scene for each of these rows, several side by side.
fn abreast<T, S: Future<Output = ()>>(
    rows: impl IntoIterator<Item = T>,
    scene: impl FnMut(T) -> S,
) {
    block_on(stream::iter(rows).for_each_concurrent(ABREAST, scene));
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(work)
}

/// The value of a victim's variable for this point. A full term stays as it is, and may name
/// several points.
fn failpoints(point: &str) -> String {
    if point.contains('=') { point.into() } else { format!("{point}=1*return(kill)") }
}

/// A term by which a victim stands still at this point, until the test kills it.
fn stands_at(point: &str) -> String {
    format!("{point}=1*sleep(60000)")
}

/// The program. Each time that it becomes a coordinator, the next of these is a victim.
fn program(folder: &Path, coordinators: &[&str], log: &Path) -> Program {
    let [lives, program] = ["lives", "program"].map(|name| folder.join(name));
    let points: Vec<_> = coordinators.iter().map(|point| failpoints(point) + "\n").collect();
    fs::write(&lives, points.concat()).expect("it can be written");
    let script = format!(
        r#"
        if [ "$1" = coordinator ]; then
            FAILPOINTS=$(head -n 1 '{lives}')
            tail -n +2 '{lives}' > '{lives}.rest' && mv '{lives}.rest' '{lives}'
            export FAILPOINTS EVERSTEP_FAILPOINT_LOG='{log}'
        fi
        exec '{everstep}' "$@"
        "#,
        lives = lives.display(),
        log = log.display(),
        everstep = env!("CARGO_BIN_EXE_everstep"),
    );
    fs::write(&program, script).expect("it can be written");
    // A shell reads the file. A child that another test starts at this moment may have it open for
    // writing, and then no process may execute it.
    Program { executable: "/bin/sh".into(), arguments: vec![program.into()] }
}

/// The newest checkpoints that a complete run has listed, as many as it keeps, are in its store,
/// and all of what is there is whole. Returns the run's events.
fn assert_stored(world: &World, dir: &Path, (keep, what): (i64, &str)) -> Vec<Value> {
    let checkpoint = |verb: &str, more: &[&str]| {
        let dir = dir.to_str().expect("UTF-8");
        world.start(&[&["checkpoint", verb, "--dir", dir], more].concat()).end()
    };
    assert_eq!(checkpoint("verify", &[]).code, Some(0), "{what}: a checkpoint is damaged");
    let told = checkpoint("ls", &["--json"]).stdout;
    let told: Value = serde_json::from_str(&told).expect("JSON");
    // Beside those that are listed, there may be parts of one that was skipped.
    let whole = told.as_array().expect("a list").iter().filter(|it| it["complete"] == true);
    let there: Vec<_> = whole.map(|it| &it["step"]).collect();
    let events = fs::read_to_string(dir.join("events.jsonl")).expect("events");
    let events = events.lines().map(|line| serde_json::from_str(line).expect("JSON"));
    let events: Vec<Value> = events.collect();
    let of_listed = events.iter().filter(|event| event["event"] == "checkpoint");
    let listed: Vec<_> = of_listed.map(|event| &event["step"]).collect();
    assert!(!listed.is_empty(), "{what}: there are checkpoints");
    let newest = &listed[listed.len().saturating_sub(keep as usize)..];
    let all = newest.iter().all(|step| there.contains(step));
    assert!(all, "{what}: {there:?} lacks some of {listed:?}");
    events
}

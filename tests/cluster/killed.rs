//! Runs of which every process is killed at once, launcher, coordinators and workers, at a random
//! step. They go on in their directories, with another number of workers, to the same bits.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, kill_process};
use serde_json::Value;

use crate::world::{CoordinatorGroup, Program, Run, Signal, World, chance, show, until};

const STEPS: usize = 60;
/// The last step after which a run is killed. It trains on until it is dead.
const LATEST_DEATH: usize = STEPS - 10;
/// How many runs are killed. Every other one is a local cluster, and the others are daemons.
const RUNS: usize = 10;
/// The variable with the seed of an earlier test, to do the same again.
const SEED: &str = "EVERSTEP_TEST_SEED";

/// Draws numbers below a bound.
type Draw<'a> = &'a mut dyn FnMut(usize) -> usize;

fn seed() -> u32 {
    let given = std::env::var(SEED).ok().and_then(|text| text.parse().ok());
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    given.unwrap_or_else(|| now.expect("it is after 1970").subsec_nanos())
}

/// Kills all of these processes, one after the other in a random order.
fn kill(mut processes: Vec<u32>, draw: Draw<'_>) {
    while !processes.is_empty() {
        let process = processes.swap_remove(draw(processes.len()));
        let process = Pid::from_raw(process as i32).expect("a process id is positive");
        let _ = kill_process(process, Signal::KILL); // it may have ended with its launcher
    }
}

/// The death of a run, and how many workers it goes on with.
struct Death {
    step: usize,
    workers: usize,
}

/// The run was killed before its end, and goes back: each time to the newest checkpoint that was
/// listed before, and without one to the first step.
fn assert_goes_back_to_the_newest(events: &[Value]) {
    let (mut newest, mut rollbacks) = (0, 0);
    for event in events {
        match event["event"].as_str() {
            Some("checkpoint") => newest = event["step"].as_u64().expect("a step"),
            Some("rollback") => {
                assert_eq!(event["to"], newest, "{events:?}");
                rollbacks += 1;
            }
            _ => {}
        }
    }
    assert!(rollbacks > 0, "{events:?}");
}

/// A local cluster dies, and goes on by `everstep resume DIR`. Returns the hash.
fn in_a_run_s_directory(world: &World, death: &Death, draw: Draw<'_>) -> String {
    let coordinators = if draw(2) == 0 { "1" } else { "3" };
    let run = world.launch(&["--workers", "2", "--coordinators", coordinators]);
    let cluster = run.until_step(death.step);
    let nodes = cluster.coordinators.iter().chain(&cluster.workers);
    let processes = nodes.filter_map(|node| node.pid).chain([run.program.id()]);
    kill(processes.collect(), draw);
    run.program.end();
    let workers = death.workers.to_string();
    let ended = world.start(&["resume", show(&run.dir), "--workers", &workers]).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report = run.dir.join("report.json");
    let run = Run::read(run.dir, &report, ended.stdout);
    run.assert_one_history(STEPS as u64);
    assert_goes_back_to_the_newest(&run.lines("events.jsonl"));
    run.hash().to_string()
}

/// Daemons die, and start again in their directories. A worker there proves the ends of the former
/// ones, so the run waits for none of them. Returns the hash.
fn on_daemons(world: &World, folder: &Path, death: &Death, draw: Draw<'_>) -> String {
    let coordinators = if draw(2) == 0 { 1 } else { 3 };
    on_machines(world, (folder, &folder.join("workers")), death, (coordinators, &[&[], &[]]), draw)
}

/// The variables with which workers start before and after their death.
type Environments<'a> = [&'a [(&'a str, &'a str)]; 2];

/// The same, with so many coordinators, and workers in a directory of their own.
fn on_machines(
    world: &World,
    (folder, home): (&Path, &Path),
    death: &Death,
    (coordinators, environments): (usize, &Environments<'_>),
    draw: Draw<'_>,
) -> String {
    let mut group = CoordinatorGroup::found(folder, coordinators, &[]);
    let dir = group.members[0].dir.clone();
    let token = format!("@{}", show(&dir.join("join.token")));
    let start = |addresses: &str, count: usize, environment: &[(&str, &str)]| -> Vec<Program> {
        let join = ["worker", "--coordinators", addresses, "--join", &token, "--dir", show(home)];
        let command = || {
            let mut command = world.pace(world.command(&join));
            command.envs(environment.iter().copied());
            Program::start(command)
        };
        (0..count).map(|_| command()).collect()
    };
    let config = fs::read_to_string(world.config()).expect("a configuration");
    let store = folder.join("store");
    let config = format!("{config}checkpoint.path = \"{}\"\n", show(&store));
    let config = world.write("daemons.toml", &config);
    let submitted = world.start(&["run", "submit", show(&config), "--dir", show(&dir)]).end();
    assert_eq!(submitted.code, Some(0), "{submitted:?}");
    let workers = start(&group.addresses(), 2, environments[0]);
    let after = format!("/api/v1/metrics?stale=true&after={}", death.step - 1);
    until("the step", || {
        let (_, page) = group.members[0].look("GET", &after, "")?;
        let page: Value = serde_json::from_str(&page).ok()?;
        page["metrics"].as_array().filter(|lines| !lines.is_empty()).map(|_| ())
    });
    let programs = group.members.iter().map(|member| &member.program).chain(&workers);
    kill(programs.map(Program::id).collect(), draw);
    drop(workers);
    (0..coordinators).for_each(|at| group.restart(at, &[]));
    let workers = start(&group.addresses(), death.workers, environments[1]);
    let over = until("the end", || {
        let ended = world.start(&["run", "status", "--dir", show(&dir), "--json"]).end();
        let status: Value = serde_json::from_str(&ended.stdout).ok()?;
        (status["state"] == "complete").then_some(status)
    });
    drop(workers);
    let [events, lines] = until("the lines of all steps", || {
        group.members[0].history().filter(|[_, lines]| lines.len() >= STEPS)
    });
    assert_goes_back_to_the_newest(&events);
    let order: Vec<_> = lines.iter().map(|line| line["step"].clone()).collect();
    assert_eq!(order, (1..=STEPS as u64).collect::<Vec<_>>(), "each step once, in order");
    over["hash"].as_str().expect("a hash").to_string()
}

#[test]
fn i12_a_run_goes_on_to_the_same_bits_whenever_all_of_its_processes_are_killed() {
    let seed = seed();
    println!("{SEED}={seed} kills at the same steps");
    let mut draw = chance(seed);
    let world = World::lasting(STEPS as i64).with("checkpoint.every", 5);
    let wanted = world.undisturbed();
    for number in 0..RUNS {
        let death = Death { step: 1 + draw(LATEST_DEATH), workers: 1 + number % 5 };
        let hash = match number % 2 {
            0 => in_a_run_s_directory(&world, &death, &mut draw),
            _ => {
                let folder = world.path(&format!("daemons-{number}"));
                on_daemons(&world, &folder, &death, &mut draw)
            }
        };
        let Death { step, workers } = death;
        assert_eq!(hash, wanted, "killed at step {step}, went on with {workers} workers");
    }
}

/// All processes of an earlier boot have ended, so the run waits for none of them.
#[test]
fn i21_a_run_goes_on_by_itself_when_its_machines_have_booted_again() {
    let world = World::lasting(STEPS as i64).with("checkpoint.every", 5);
    // The file that proves it must lie on a disk.
    let home = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let boots = ["1", "2"].map(|boot| [("FAILPOINT_BOOT", boot), ("FAILPOINT_MACHINE", "ada")]);
    let environments = [&boots[0][..], &boots[1][..]];
    let folder = world.path("daemons");
    let (death, mut draw) = (Death { step: 20, workers: 2 }, chance(1));
    let hash = on_machines(&world, (&folder, home.path()), &death, (1, &environments), &mut draw);
    assert_eq!(hash, world.undisturbed());
}

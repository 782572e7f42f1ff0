//! Several coordinators, while real workers train. Each coordinator is a process that may die, be
//! replaced, or have no room on its disk.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use everstep::cli::Overrides;
use everstep::{RunSpec, builtin, config};
use everstep_transport::protocol::OperatorCommand;
use everstep_transport::protocol::outcome::{Outcome, state_hash};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::Value;

use crate::world::{
    CoordinatorGroup, Ended, Member, Program, SLOW, Signal, World, longest_gap, show, until,
};

/// A command that can be repeated for ever: the coordinators agree to refuse it.
const NOTHING: OperatorCommand = OperatorCommand::RevokeToken([0; 9]);
/// How long a disk stands still.
const DISK_STALL: Duration = Duration::from_secs(20);
/// The thread that writes the log stands still before it reports that a request is written.
const STALL: &str = "appended.request=1*sleep(20000)";

/// A run with three workers. One of them is slow.
pub struct Training<'w> {
    world: &'w World,
    run: RunSpec,
    slow: Program,
    others: Vec<Program>,
    /// A line for each step of the slow worker.
    log: PathBuf,
}

impl<'w> Training<'w> {
    pub fn begin(world: &'w World, group: &mut CoordinatorGroup) -> Self {
        let flags = Overrides { workers: Some(3), ..Overrides::default() };
        let run = config::read(Some(&world.config()), &flags, &builtin::registry()).expect("a run");
        let run = run.run;
        assert_eq!(group.command(OperatorCommand::Submit(run.clone().into())), Ok(()));
        let (log, models) = (world.path("loads"), world.path("models"));
        fs::create_dir(&models).expect("a folder");
        let worker = |environment: &[(&str, &str)]| {
            let token = format!("@{}", show(&group.members[0].dir.join("join.token")));
            let addresses = group.addresses();
            let arguments = ["worker", "--coordinators", &addresses, "--join", &token];
            let mut command = world.command(&[&arguments[..], &["--dir", show(&models)]].concat());
            command.envs(environment.iter().copied());
            Program::start(command)
        };
        let slow = worker(&[("FAILPOINTS", SLOW), ("EVERSTEP_FAILPOINT_LOG", show(&log))]);
        let others = vec![worker(&[]), worker(&[])];
        let training = Self { world, run, slow, others, log };
        training.until_it_goes_on();
        training
    }

    fn loads(&self) -> usize {
        fs::read_to_string(&self.log).unwrap_or_default().lines().count()
    }

    /// Waits until the workers have trained more steps, even if no coordinator knows of them.
    pub fn until_it_goes_on(&self) {
        let wanted = self.loads() + 30;
        until("workers train", || (self.loads() >= wanted).then_some(()));
    }

    /// A worker is lost, and the others go on without it.
    pub fn lose_one(&mut self) {
        let lost = self.others.pop().expect("there are two");
        lost.signal(Signal::KILL);
        self.until_it_goes_on();
    }

    /// The slow worker is lost, and the run becomes complete, with the bits of any other. Returns
    /// the lines.
    fn complete(self, group: &CoordinatorGroup) -> Vec<Value> {
        let steps = self.run.steps;
        let [events, lines] = self.finish(group);
        let known: Vec<_> = lines.iter().map(|line| line["step"].as_u64()).collect();
        assert_eq!(known, (1..=steps).map(Some).collect::<Vec<_>>());
        let lost = events.iter().filter(|event| event["event"] == "lost").count();
        assert_eq!(lost, 1, "nobody but the one that was killed: {events:?}");
        lines
    }

    /// As [`Training::complete`]. Returns the events and lines.
    pub fn finish(self, group: &CoordinatorGroup) -> [Vec<Value>; 2] {
        self.slow.signal(Signal::KILL);
        let Outcome::Complete(results) = group.outcome() else { panic!("it is not complete") };
        let hash = state_hash(self.run.steps, &results).expect("every shard was reported");
        let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        for worker in self.others {
            let ended = worker.end();
            assert_eq!(ended.code, Some(0), "{ended:?}");
        }
        assert_eq!(hash, self.world.undisturbed());
        let leader = &group.members[group.leader(group.members.len())];
        leader.history().expect("it answers")
    }
}

fn world() -> World {
    World::new().with("run.steps", 1_200)
}

#[test]
fn every_coordinator_is_replaced_while_workers_train() {
    let world = world();
    let mut group = CoordinatorGroup::found(&world.path("coordinators"), 3, &["--ephemeral"]);
    let training = Training::begin(&world, &mut group);
    for _ in 0..3 {
        group.join();
        // The founder goes first. At some time the leader goes, too.
        let old = group.members.remove(0);
        let id = old.id();
        assert_eq!(group.command_with(OperatorCommand::Remove(id), Some(&old)), Ok(()));
        let (dir, address) = (old.dir.clone(), old.address);
        let ended = old.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(
            ended.stderr.contains("the coordinator was removed: the others go on"),
            "{ended:?}"
        );
        // Started again, the coordinator hears that again, even if it logs little.
        let mut again = group.again(&dir, address);
        again.env("EVERSTEP_LOG", "error");
        let again = Program::start(again).end();
        assert_eq!(again.code, Some(0), "{again:?}");
        let words = "the coordinator was removed: the others go on without it, and need nothing";
        assert!(again.stderr.starts_with(words), "{again:?}");
        group.leader(3);
        training.until_it_goes_on();
    }
    training.complete(&group);
}

/// Prints how soon another one leads.
#[test]
fn a_leader_whose_disk_stands_still_is_replaced_and_nobody_notices() {
    let world = world();
    let mut group = CoordinatorGroup::found(&world.path("coordinators"), 3, &["--ephemeral"]);
    let training = Training::begin(&world, &mut group);
    let (stalled, met) = ((group.leader(3) + 1) % 3, world.path("met"));
    let environment = [("FAILPOINTS", STALL), ("EVERSTEP_FAILPOINT_LOG", show(&met))];
    group.restart(stalled, &environment);
    group.transfer(stalled, 3);
    assert!(!met.exists(), "it leads before it stands still");

    let began = Instant::now();
    assert!(group.command(NOTHING).is_err(), "it is agreed that there is none");
    let agreed = began.elapsed();
    group.leader_beside(stalled, 3);
    let led = began.elapsed();
    assert!(met.exists(), "its disk stands still");
    println!("agreed after {agreed:?}, another one led after {led:?}");
    assert!(agreed.max(led) < DISK_STALL, "nobody waits for the disk");
    until("the disk goes on", || {
        training.until_it_goes_on();
        (began.elapsed() > DISK_STALL).then_some(())
    });
    group.until_caught_up(stalled, 3);
    training.until_it_goes_on();
    let leader = group.leader(3);
    let [events, _] = group.members[leader].history().expect("it answers");
    let generations = events.iter().filter(|event| event["event"] == "generation").count();
    assert_eq!(generations, 1, "nothing was done again: {events:?}");
    let gap = longest_gap(&training.complete(&group));
    assert!(gap < DISK_STALL, "{gap:?} between two steps; another one led after {led:?}");
    group.until_agreed(3);
    assert!(!group.members[stalled].program.is_over(), "it stood still, and lives");
}

/// A coordinator that reaches too few others does not state agreed facts. It states what it knows
/// if asked for that.
fn assert_tells_what_it_knows(member: &Member) {
    until("it refuses to tell", || {
        let (status, words) = member.look("GET", "/api/v1/status", "")?;
        assert_eq!(status, 503, "{words}");
        let words: Value = serde_json::from_str(&words).expect("JSON");
        let told = "2 of 5 coordinators can be reached: three must agree. Training goes on";
        (words["error"] == told).then_some(())
    });
    let (status, known) =
        until("it answers", || member.look("GET", "/api/v1/status?stale=true", ""));
    let known: Value = serde_json::from_str(&known).expect("JSON");
    assert_eq!((status, &known["stale"]), (200, &true.into()), "{known}");
}

/// The most lines that any of them knows.
fn known_lines(members: &[Member]) -> usize {
    let known = members.iter().map(|member| until("its lines", || member.history())[1].len());
    known.max().expect("somebody")
}

/// The status that an operator gets from these coordinators.
fn status(world: &World, group: &CoordinatorGroup) -> Ended {
    let member = &group.members[0];
    let addresses = group.addresses();
    let flags = ["--dir", show(&member.dir), "--coordinators", &addresses];
    world.start(&[&["coordinator", "status"], &flags[..]].concat()).end()
}

#[test]
fn five_coordinators_bear_two_deaths_and_training_bears_three() {
    let world = world();
    let mut group = CoordinatorGroup::found(&world.path("coordinators"), 5, &["--ephemeral"]);
    let training = Training::begin(&world, &mut group);
    // The leader dies, and another coordinator.
    let mut dead = Vec::new();
    for _ in 0..2 {
        dead.push(group.members.remove(group.leader(5)));
        dead.last().expect("one").program.signal(Signal::KILL);
        assert!(group.command(NOTHING).is_err(), "it is agreed that there is none");
    }
    training.until_it_goes_on();

    dead.push(group.members.remove(group.leader(5)));
    dead.last().expect("one").program.signal(Signal::KILL);
    for member in &group.members {
        let run = RunSpec { name: "another".into(), ..training.run.clone() };
        let run = serde_json::to_string(&run).expect("plain data");
        until("it knows that no coordinator leads", || {
            let (status, words) = member.look("POST", "/api/v1/run", &run)?;
            assert_ne!(status, 201, "{words}");
            words.contains("no coordinator leads at the moment").then_some(())
        });
        assert_tells_what_it_knows(member);
    }
    let settled = known_lines(&group.members);
    let told = status(&world, &group);
    assert_eq!(told.code, Some(3), "{told:?}");
    let words = "2 of 5 coordinators answer, none leads: 3 must be there to agree";
    assert!(told.block().contains(words), "{told:?}");
    assert!(told.block().contains("Training goes on without them"), "{told:?}");
    for member in &dead {
        let named = format!(" at {} (", member.address);
        assert!(told.block().contains(&named), "{named} is not in {told:?}");
    }
    let logged = |member: &Member, words| member.program.said().matches(words).count();
    let silent = "another coordinator has fallen silent";
    until("the survivors say who is silent", || {
        group.members.iter().all(|member| logged(member, silent) >= 3).then_some(())
    });
    training.until_it_goes_on();
    assert_eq!(known_lines(&group.members), settled, "nothing can be agreed on");

    let Member { dir, address, program, .. } = dead.pop().expect("the third");
    drop(program);
    let third = Member::listening(group.again(&dir, address), dir).expect("it listens");
    group.members.push(third);
    assert!(group.command(NOTHING).is_err(), "it is agreed again");
    // The workers tell the next leader of the steps in between.
    until("steps of the time without a leader", || {
        (known_lines(&group.members) > settled).then_some(())
    });
    training.until_it_goes_on();
    for Member { dir, address, program, .. } in dead {
        drop(program);
        let again = Member::listening(group.again(&dir, address), dir).expect("it listens");
        group.members.push(again);
    }
    let back = "the other coordinator is back";
    until("the survivors say who is back", || {
        group.members[..2].iter().all(|member| logged(member, back) >= 3).then_some(())
    });
    training.complete(&group);
    group.until_agreed(5);
}

/// The same command through a shell that ignores SIGXFSZ. So the program gets an error for a file
/// that must not grow, and no signal kills it.
fn bounded(command: &Command) -> Command {
    let mut bounded = Command::new("sh");
    bounded.args(["-c", r#"trap '' XFSZ; exec "$0" "$@""#]).arg(command.get_program());
    bounded.args(command.get_args()).envs(command.get_envs().filter_map(|(k, v)| Some((k, v?))));
    bounded
}

/// No file of this process may grow any more, as if its disk were full.
fn fill_the_disk_of(process: u32) {
    let process = Pid::from_raw(process as i32);
    let none = Rlimit { current: Some(0), maximum: None };
    prlimit(process, Resource::Fsize, none).expect("it is ours");
}

#[test]
fn a_coordinator_whose_disk_is_full_ends_with_the_reason_and_the_others_go_on() {
    let world = world();
    let mut group = CoordinatorGroup::found(&world.path("coordinators"), 3, &["--ephemeral"]);
    let leader = group.leader(3);
    // The others have to know that they are three before one of them dies.
    assert!(group.command(NOTHING).is_err(), "it is agreed that there is none");
    let before = group.members.remove(leader);
    before.program.signal(Signal::KILL);
    until("its end", || before.program.is_over().then_some(()));
    let mut full = bounded(&group.again(&before.dir, before.address));
    let mut full = full.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut ready = String::new();
    BufReader::new(full.stdout.take().expect("a pipe")).read_line(&mut ready).expect("text");
    assert!(ready.contains("address"), "{ready}");
    fill_the_disk_of(full.id());
    let ended = until("its end", || {
        // It is asked, too: it may lead again, and then the others know nothing to write.
        assert!(group.command_with(NOTHING, Some(&before)).is_err(), "the others agree");
        full.try_wait().expect("a child")
    });
    let mut words = String::new();
    full.stderr.take().expect("a pipe").read_to_string(&mut words).expect("text");
    assert_eq!(ended.code(), Some(1), "{words}");
    let Member { dir, address, .. } = before;
    assert!(words.contains(show(&dir)) && words.contains("make room on its disk"), "{words}");
    assert!(!words.contains("panicked"), "{words}");
    // When there is room again, the coordinator goes on where it was.
    let again = Member::listening(group.again(&dir, address), dir).expect("it listens");
    group.members.push(again);
    group.until_agreed(3);
}

#[test]
fn a_directory_on_a_full_disk_is_no_cluster_and_may_be_one_when_there_is_room() {
    let world = World::new();
    let dir = world.path("full");
    let found = || world.command(&["coordinator", "--dir", show(&dir), "--bootstrap"]);
    let mut full = Command::new("sh");
    full.args([
        "-c",
        r#"trap '' XFSZ; ulimit -f 0; exec "$0" "$@""#,
        env!("CARGO_BIN_EXE_everstep"),
    ]);
    let ended = full.args(found().get_args()).output().expect("it runs");
    let words = String::from_utf8_lossy(&ended.stderr);
    assert!(matches!(ended.status.code(), Some(1 | 2)), "{words}");
    assert!(words.contains(show(&dir)) && words.contains("make room on its disk"), "{words}");
    let member = Member::listening(found(), dir).expect("there is room again");
    assert_eq!(member.look("GET", "/livez", "").map(|answer| answer.0), Some(200));
}

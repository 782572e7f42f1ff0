//! Daemons under a service manager: with a file, a log for machines, and signals.

use std::net::UdpSocket;

use serde_json::Value;

use crate::world::{CoordinatorGroup, Member, Program, Signal, World, show, until};

/// The line that a daemon prints when it listens.
fn ready(program: &mut Program) -> Value {
    let line = program.line().unwrap_or_else(|| panic!("it ended: {}", program.said()));
    serde_json::from_str(&line).expect("JSON")
}

/// Starts a daemon with this in its environment. Returns it, and the address at which it listens.
fn listening(world: &World, flags: &[&str], environment: &[(&str, &str)]) -> (Program, String) {
    let mut command = world.command(flags);
    command.envs(environment.iter().copied());
    let mut program = Program::start(command);
    let address = ready(&mut program)["address"].as_str().expect("an address").to_string();
    (program, address)
}

/// A file sets an address, a variable wins over it, and a flag over both. Each states another
/// address.
#[test]
fn a_file_says_what_neither_a_flag_nor_a_variable_does() {
    let world = World::new();
    let coordinator = world.write("coordinator.toml", "coordinator.listen = \"127.0.0.2:0\"\n");
    let (_founder, founder) =
        listening(&world, &["coordinator", "--dir", "founder", "--bootstrap"], &[]);
    let worker = format!(
        "[worker]\ncoordinators = [\"{founder}\"]\njoin = \"@founder/join.token\"\n\
         listen = \"127.0.0.2:0\"\n"
    );
    let worker = world.write("worker.toml", &worker);
    let variable = ("EVERSTEP_LISTEN", "127.0.0.3:0");
    let flag = ["--listen", "127.0.0.4:0"];
    for (at, flags, environment, ip) in [
        ("file", &[][..], &[][..], "127.0.0.2:"),
        ("variable", &[], &[variable], "127.0.0.3:"),
        ("flag", &flag, &[variable], "127.0.0.4:"),
    ] {
        let config = ["--config", show(&coordinator)];
        let found = ["coordinator", "--dir", at, "--bootstrap"];
        let (_, address) = listening(&world, &[&found[..], &config, flags].concat(), environment);
        assert!(address.starts_with(ip), "{at}: {address}");
        let config = ["worker", "--config", show(&worker)];
        let (_, address) = listening(&world, &[&config[..], flags].concat(), environment);
        assert!(address.starts_with(ip), "{at}: {address}");
    }
    let (_, address) = listening(&world, &["worker"], &[("EVERSTEP_CONFIG", show(&worker))]);
    assert!(address.starts_with("127.0.0.2:"), "the file may be named by a variable: {address}");
}

/// The reason of its end is an object, too.
#[test]
fn a_log_for_machines_has_an_object_a_line() {
    let world = World::new();
    let file = "coordinator.log_format = \"json\"\nworker.log_format = \"json\"\n";
    let file = world.write("daemons.toml", file);
    let found = ["coordinator", "--dir", "one", "--bootstrap", "--log-format", "json"];
    let (coordinator, address) = listening(&world, &found, &[]);
    let join = ["worker", "--coordinators", &address, "--join", "no token"];
    let worker = world.start(&[&join[..], &["--config", show(&file)]].concat());
    coordinator.signal(Signal::TERM);
    for (daemon, code, level, last) in [
        (worker, 2, "ERROR", "error: the worker has not joined the cluster"),
        (coordinator, 143, "INFO", "the coordinator has stopped"),
    ] {
        let ended = daemon.end();
        assert_eq!(ended.code, Some(code), "{ended:?}");
        let line = |line| serde_json::from_str::<Value>(line).unwrap_or_else(|_| panic!("{line}"));
        let lines: Vec<Value> = ended.stderr.lines().map(line).collect();
        for line in &lines {
            let says = |key| line[key].as_str().is_some_and(|text: &str| !text.is_empty());
            let whole = ["level", "timestamp", "target"].into_iter().all(says);
            assert!(whole && line["fields"].is_object(), "{line}");
        }
        let line = lines.last().expect("a line");
        let message = line["fields"]["message"].as_str();
        assert!(message.is_some_and(|message| message.starts_with(last)), "{ended:?}");
        assert_eq!((&line["level"], &line["fields"]["exit_code"]), (&level.into(), &code.into()));
    }
}

/// The line that a log for machines has of this kind of event, once it is there.
fn logged(program: &Program, event: &str) -> Value {
    until(&format!("the event {event} in the log"), || {
        let said = program.said();
        let whole = said.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let mut lines = whole.map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        lines.find(|line| line["fields"]["event"] == event)
    })
}

/// The worker waits for another one, with which the run begins.
#[test]
fn the_loss_of_a_worker_is_a_warning_with_the_worker_and_the_reason_as_fields() {
    let world = World::new().with("run.start_workers", 2);
    let found = ["coordinator", "--dir", "one", "--bootstrap", "--log-format", "json"];
    let (coordinator, address) = listening(&world, &found, &[]);
    let config = world.config();
    let submitted = world.start(&["run", "submit", show(&config), "--dir", "one"]).end();
    assert_eq!(submitted.code, Some(0), "{submitted:?}");
    let join = ["worker", "--coordinators", &address, "--join", "@one/join.token"];
    let (worker, _) = listening(&world, &join, &[]);
    let registered = logged(&coordinator, "registered");
    worker.signal(Signal::KILL);
    let lost = logged(&coordinator, "lost");
    assert_eq!((&registered["level"], &lost["level"]), (&"INFO".into(), &"WARN".into()));
    let fields = &lost["fields"];
    assert_eq!(fields["worker"], registered["fields"]["worker"], "{lost}");
    assert!(fields["worker"].is_u64() && fields["detect_ms"].is_u64(), "{lost}");
    let [reason, sentence] = ["reason", "message"].map(|key| fields[key].as_str().expect(key));
    assert!(!reason.is_empty() && sentence.ends_with(reason), "{lost}");
}

/// A coordinator that joins is told to stop while no other one answers: first before it has a
/// directory, then when it has one and asks to be a member.
#[test]
fn a_coordinator_that_joins_where_nobody_answers_ends_when_it_is_told_to() {
    let world = World::new();
    let mut group = CoordinatorGroup::found(&world.path("coordinators"), 1, &[]);
    let [early, late] = [group.next_dir(), group.next_dir()];
    let joining = |dir| group.joining(dir);
    let (early_start, again, late_start) = (joining(&early), joining(&early), joining(&late));
    let mut laid_out = joining(&late);
    laid_out.env("FAILPOINTS", "laid_out=1*return(kill)");
    assert_eq!(Program::start(laid_out).end().code, None, "it has a directory, and is killed");
    let Member { address, program, .. } = group.members.remove(0);
    drop(program);
    for (joining, signal, code) in [
        (early_start, Signal::TERM, 143),
        (again, Signal::TERM, 143),
        (late_start, Signal::INT, 130),
    ] {
        let silent = UdpSocket::bind(address).expect("no process listens there any more");
        silent.set_nonblocking(true).expect("a socket");
        let program = Program::start(joining);
        until("it asks", || silent.recv(&mut [0; 2_000]).ok());
        program.signal(signal);
        let ended = program.end();
        assert_eq!(ended.code, Some(code), "{ended:?}");
        let words = ["the coordinator has stopped", "it was no coordinator yet"];
        assert!(words.iter().all(|it| ended.farewell().contains(it)), "{ended:?}");
    }
}

#[test]
fn a_coordinator_that_is_told_to_stop_says_how_it_goes_on() {
    let world = World::new();
    let dir = world.path("one");
    for (flags, signal, code) in [
        (&["--bootstrap"][..], Signal::TERM, 143),
        (&[], Signal::INT, 130),
        (&[], Signal::TERM, 143),
    ] {
        let start = [&["coordinator", "--dir", show(&dir)], flags].concat();
        let member = Member::listening(world.command(&start), dir.clone()).expect("it listens");
        member.program.signal(signal);
        let ended = member.end();
        assert_eq!(ended.code, Some(code), "{ended:?}");
        let words = "start it again with the same --dir and --listen, and it goes on";
        assert!(ended.farewell().contains(words), "{ended:?}");
    }
}

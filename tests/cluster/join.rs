//! Joins fail early and clearly: a refusal comes before the token is used, and a node that waits
//! says for which process.

use std::ffi::OsStr;
use std::fs;
use std::net::UdpSocket;
use std::os::unix::ffi::OsStrExt;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::world::{CoordinatorGroup, Member, Program, World, show, until};

/// A token that admits one worker.
fn single_use(world: &World, member: &Member) -> String {
    let address = member.address.to_string();
    let asked = ["--dir", show(&member.dir), "--coordinators", &address];
    let create = ["token", "create", "--role", "worker", "--uses", "1"];
    let ended = world.start(&[&create[..], &asked].concat()).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended.stdout.trim().to_string()
}

#[test]
fn a_port_that_cannot_be_had_costs_no_use_of_a_token() {
    let world = World::new();
    let group = CoordinatorGroup::found(&world.path("coordinators"), 1, &[]);
    let token = single_use(&world, &group.members[0]);
    let other = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let taken = other.local_addr().expect("bound").to_string();
    let addresses = group.addresses();
    let join = ["worker", "--coordinators", &addresses, "--join", &token];
    for listen in [&taken, "192.0.2.1:0"] {
        let refused = world.start(&[&join[..], &["--listen", listen]].concat()).end();
        assert_eq!(refused.code, Some(1), "{refused:?}");
        for words in ["the worker has not joined the cluster", "cannot listen on"] {
            assert!(refused.block().contains(words), "{refused:?}");
        }
    }
    let mut admitted = world.start(&join);
    assert!(admitted.line().is_some(), "the token is used up");
}

#[test]
fn a_loopback_address_beside_coordinators_on_other_machines_is_refused() {
    let world = World::new();
    let group = CoordinatorGroup::found(&world.path("coordinators"), 1, &[]);
    let home = &group.members[0].dir;
    for (verb, flags, file) in
        [("worker", &[][..], "join.token"), ("coordinator", &["--dir", "new"], "coordinator.token")]
    {
        let token = format!("@{}", show(&home.join(file)));
        let join = [verb, "--coordinators", "192.0.2.1:7070", "--join", &token];
        let refused = world.start(&[&join[..], flags].concat()).end();
        assert_eq!(refused.code, Some(2), "{refused:?}");
        for words in ["127.0.0.1:0", "192.0.2.1:7070", "pass --listen"] {
            assert!(refused.block().contains(words), "{refused:?}");
        }
    }
    assert!(!world.path("new").exists());
}

#[test]
fn a_node_that_waits_for_a_coordinator_says_so() {
    let world = World::new();
    let group = CoordinatorGroup::found(&world.path("coordinators"), 1, &[]);
    let home = &group.members[0].dir;
    let silent = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("bound").to_string();
    for (verb, flags, file) in
        [("worker", &[][..], "join.token"), ("coordinator", &["--dir", "new"], "coordinator.token")]
    {
        let token = format!("@{}", show(&home.join(file)));
        let join = [verb, "--coordinators", &address, "--join", &token];
        let program = world.start(&[&join[..], flags].concat());
        let says = |said: String| said.contains("no coordinator answers yet").then_some(said);
        let said = until("it says that it waits", || says(program.said()));
        assert!(said.contains(&address), "{said}");
    }
}

#[test]
fn a_directory_may_have_any_name() {
    let world = World::new();
    let dir = world.path("runs").join(OsStr::from_bytes(b"bad\xffname"));
    let config = world.config();
    let mut command = world.command(&["train", "--config", show(&config), "--dir"]);
    command.arg(&dir);
    let ended = Program::start(command).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(dir.join("model.safetensors").is_file(), "{ended:?}");
}

/// Sets how many files a process may open. Returns the old limit.
fn limit_files(program: &Program, files: u64) -> u64 {
    let process = Pid::from_raw(program.id() as i32);
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit { current: Some(files), maximum };
    let before = prlimit(process, Resource::Nofile, limit).expect("a process of this user");
    assert_eq!(before.maximum, maximum);
    before.current.expect("a limit")
}

#[test]
fn a_coordinator_that_may_open_no_more_files_goes_on_and_writes_its_book_later() {
    let world = World::new();
    let mut group = CoordinatorGroup::found(&world.path("coordinators"), 1, &[]);
    let dir = group.next_dir();
    group.leader(1); // all of its threads have what they need
    let founder = &group.members[0];
    let book = founder.dir.join("coordinators");
    let allowed = limit_files(&founder.program, 3);
    assert_eq!(Some(allowed), getrlimit(Resource::Nofile).maximum, "the limit was raised");
    let before = fs::read(&book).expect("a book");
    let joining = Member::listening(group.joining(&dir), dir).expect("it joins");
    until("it cannot write", || {
        founder.program.said().contains("the list of coordinators is written later").then_some(())
    });
    assert_eq!(fs::read(&book).expect("a book"), before);
    limit_files(&founder.program, allowed);
    until("it is written", || (fs::read(&book).expect("a book") != before).then_some(()));
    group.members.push(joining);
    group.leader(2);
}

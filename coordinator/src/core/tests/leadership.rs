use everstep_transport::protocol::{CoordinatorId, CoordinatorView};

use super::*;
use crate::state::{CoordinatorInfo, LOG_FORMATS};

pub(super) fn coordinator(name: &str, port: u16) -> CoordinatorInfo {
    let name = NodeName::parse(name).expect("a valid name");
    let address = (Ipv4Addr::LOCALHOST, port).into();
    CoordinatorInfo {
        name,
        incarnation: u64::from(port),
        address,
        api: None,
        log_format: *LOG_FORMATS.end(),
    }
}

impl World {
    /// The cluster is founded, for one run or for many.
    pub(super) fn found(&mut self, ephemeral: bool) {
        let founder = coordinator("coordinator-1", 1);
        let tokens = Vec::new();
        let command = Command::Found { ephemeral, founder, tokens };
        self.log.push_back(CommandEntry { unix_ms: 1, command });
        self.drain();
        self.give(CoreInput::Leader { term: self.term, leader: Some(FOUNDER) });
    }

    /// The message that tells every peer the coordinators now.
    pub(super) fn told(&self, term: u64, leader: Option<u64>, members: &[(u64, u16)]) -> Message {
        let leader = leader.map(CoordinatorId);
        let members = members.iter().map(|&(id, port)| {
            let CoordinatorInfo { name, address, api, .. } =
                coordinator(&format!("coordinator-{port}"), port);
            CoordinatorView { id: CoordinatorId(id), name, address, api }
        });
        let (revision, term) = (self.core.state().revision(), Term(term));
        Message::Coordinators { revision, term, leader, members: members.collect() }
    }

    fn last_word(&mut self, link: LinkId) -> Option<Message> {
        self.hear(link).pop()
    }
}

#[test]
fn whoever_says_hello_or_asks_is_told_who_the_coordinators_are_and_again_when_that_changes() {
    let mut world = World::empty();
    world.found(true);
    let silent = world.connect(Role::Worker, "worker-1");
    let worker = world.greeted("worker-2");
    let all = world.told(1, Some(1), &[(1, 1)]);
    assert_eq!(world.hear(worker), [all]);
    world.watch(0, 0);
    let second = world.connect(Role::Coordinator, "coordinator-2");
    let CoordinatorInfo { incarnation, address, api, .. } = coordinator("coordinator-2", 2);
    world.say(
        second,
        Message::Join { id: None, incarnation, address, api, log_format: *LOG_FORMATS.end() },
    );
    let id = world.index;
    let all = world.told(1, Some(1), &[(1, 1), (id, 2)]);
    assert_eq!(world.last_word(worker), Some(all.clone()));
    assert_eq!(world.last_word(world.operator), Some(all.clone()));
    assert_eq!(world.hear(second)[1..], [all, Message::Joined { id: CoordinatorId(id) }]);
    assert_eq!(world.hear(silent), []);
    world.give(CoreInput::Leader { term: Term(1), leader: Some(FOUNDER) });
    assert_eq!(world.hear(worker), [], "nothing new");
}

/// A follower keeps the links of all workers, and says nothing else.
#[test]
fn a_follower_answers_no_hello_and_sends_whoever_asks_to_the_leader() {
    let mut world = World::with_run(run_of(2));
    world.found(true);
    world.give(CoreInput::SteppedDown);
    world.give(CoreInput::Leader { term: Term(2), leader: Some(CoordinatorId(7)) });
    let known_leader = world.told(2, Some(7), &[(1, 1)]);
    let (worker, again) = (world.greeted("worker-1"), world.connect(Role::Worker, "worker-2"));
    world.say(again, Message::Hello { worker: Some(WorkerId(99)) });
    for link in [worker, again] {
        assert_eq!(world.hear(link), std::slice::from_ref(&known_leader));
    }
    world.hear(world.operator);
    world.request(1, OperatorCommand::Drain(WorkerId(3)));
    world.request(2, OperatorCommand::Submit(run_of(3).into()));
    assert_eq!(world.hear(world.operator), [known_leader.clone(), known_leader]);
    world.pass(20_000, &[]);
    assert_eq!((world.words(worker), world.log.len(), world.tickets.len()), (vec![], 0, 0));
}

#[test]
fn a_deposed_leader_gives_everything_up_and_takes_it_up_again_when_it_leads() {
    let (mut world, links) = World::training(3);
    world.found(true);
    world.commit(1..=2);
    world.holds_back = true;
    world.request(1, OperatorCommand::Drain(world.id(links[2])));
    links.iter().for_each(|link| drop(world.hear(*link)));
    world.hear(world.operator);
    world.give(CoreInput::Leader { term: Term(2), leader: Some(CoordinatorId(7)) });
    world.log.clear();
    let known_leader = world.told(2, Some(7), &[(1, 1)]);
    let says_so = |world: &mut World, link| world.hear(link).contains(&known_leader);
    let operator = world.operator;
    assert!(says_so(&mut world, links[0]) && says_so(&mut world, operator));
    world.beat(links[0]);
    world.kill(links[1]);
    world.pass(20_000, &[]);
    assert_eq!((world.words(links[0]), world.log.len()), (vec![], 0), "it is another's to judge");
    world.hear(links[2]);
    world.holds_back = false;
    (world.term, world.now) = (Term(3), world.now + Duration::from_secs(1));
    world.give(CoreInput::Elected { term: Term(3), id: FOUNDER });
    assert_eq!(world.words(links[0])[0], "registered");
    assert_eq!(world.words(links[2])[0], "registered");
    assert_eq!(world.members(), [world.id(links[0]), world.id(links[2])]);
}

/// The leader that noticed the death may be gone as well.
#[test]
fn a_worker_that_dies_with_the_leader_is_not_waited_for_by_the_next() {
    for comes_back in [false, true] {
        let (mut world, links) = World::training(3);
        world.commit(1..=2);
        world.give(CoreInput::Leader { term: Term(2), leader: Some(CoordinatorId(7)) });
        world.kill(links[1]);
        if comes_back {
            world.connect(Role::Worker, "worker-2");
        }
        links.iter().for_each(|link| drop(world.hear(*link)));
        (world.term, world.now) = (Term(3), world.now + Duration::from_secs(1));
        world.give(CoreInput::Elected { term: Term(3), id: FOUNDER });
        // A change of leaders alone changes nothing.
        let members = if comes_back { 3 } else { 2 };
        assert_eq!((world.members().len(), world.words(links[0])[0]), (members, "registered"));
    }
}

/// A worker that builds its model when its leader falls begins anew at the next leader, with the
/// same id.
#[test]
fn who_was_registering_when_the_leader_fell_is_welcomed_again() {
    let mut world = World::with_run(run_of(2));
    world.holds_back = true;
    let link = world.worker("worker-1");
    let entry = world.log.pop_front().expect("the registration");
    world.give(CoreInput::SteppedDown);
    world.apply(entry);
    let id = WorkerId(world.index);
    world.holds_back = false;
    world.term = Term(2);
    world.give(CoreInput::Elected { term: Term(2), id: FOUNDER });
    assert_eq!(world.words(link), ["welcome", "welcome"]);
    world.say(link, Message::Register(registration(link.0)));
    assert_eq!(world.hear(link), [Message::Registered { worker: id, term: Term(2) }]);
}

/// A follower greeted the worker before it had an id.
#[test]
fn a_worker_that_is_welcomed_though_it_is_registered_says_hello_again() {
    let (mut world, links) = World::training(2);
    let id = world.id(links[0]);
    world.give(CoreInput::SteppedDown);
    let link = world.greeted("worker-1");
    world.term = Term(2);
    world.give(CoreInput::Elected { term: Term(2), id: FOUNDER });
    assert_eq!(world.words(link), ["welcome"]);
    world.say(link, Message::Hello { worker: Some(id) });
    assert_eq!(world.hear(link), [Message::Registered { worker: id, term: Term(2) }]);
}

#[test]
fn a_leader_of_an_older_term_deposes_nobody() {
    let (mut world, links) = World::training(2);
    world.found(true);
    world.restart();
    world.give(CoreInput::Leader { term: Term(2), leader: Some(FOUNDER) });
    world.give(CoreInput::Leader { term: Term(1), leader: Some(CoordinatorId(7)) });
    let back = world.relink(links[0]);
    assert_eq!(world.words(back), ["coordinators", "registered"]);
}

/// A replica that was away too long gets the state instead of the entries.
#[test]
fn an_installed_snapshot_is_what_the_coordinator_knows() {
    let (mut world, links) = World::training(2);
    world.commit(1..=2);
    world.report_lines(links[0], 1..=2);
    let bytes = world.core.state().encode();
    let state = State::decode(&bytes, *LOG_FORMATS.end()).expect("it was just made");
    let mut other = Core::new(world.now, EPOCH_UNIX_MS);
    other.handle(world.now, CoreInput::Installed(Box::new(state)));
    assert_eq!(other.state().encode(), bytes);
    assert_eq!(other.events_after(0), world.core.events_after(0));
    let opens = std::iter::from_fn(|| other.poll_effect()).any(|effect| {
        effect == CoreEffect::Shell(ShellEffect::OpenLines(world.core.state().lines().clone()))
    });
    assert!(opens, "its lines are in a file");
}

/// A watcher that was told the end of a run would not look for its lines any more.
#[test]
fn i13_events_and_the_end_of_a_run_wait_for_the_history_and_not_for_ever() {
    let (mut world, links) = World::training(2);
    world.commit(1..=2);
    world.report_lines(links[0], 1..=2);
    let state =
        State::decode(&world.core.state().encode(), *LOG_FORMATS.end()).expect("it was just made");
    world.give(CoreInput::Installed(Box::new(state)));
    world.term = Term(2);
    world.give(CoreInput::Elected { term: Term(2), id: FOUNDER });
    world.operator = world.connect(Role::Operator, "operator");
    world.cancel(1);
    world.hear(world.operator);
    let mut told = |millis| {
        world.pass(millis, &[]);
        let update = world.watch(0, 0);
        (update.lines.len(), update.outcome == Outcome::Running)
    };
    assert_eq!(told(0), (2, true));
    let telling = HISTORY_LOST_AFTER.as_millis() as u64;
    assert_eq!(told(telling - 1_000), (2, true), "somebody may yet tell");
    assert_eq!(told(1_000), (2, false), "nobody can tell");
}

/// The coordinator lost and won an election unnoticed: another may have led in between.
#[test]
fn between_two_reigns_everyone_is_let_go_and_let_in_again() {
    let (mut world, links) = World::training(2);
    world.holds_back = true;
    (world.term, world.now) = (Term(2), world.now + CORE_TICK);
    world.give(CoreInput::Elected { term: Term(2), id: FOUNDER });
    world.beat(links[0]);
    assert_eq!(world.words(links[0]), [""; 0]);
    world.catch_up();
    assert_eq!(world.words(links[0]), ["registered"]);
}

/// The log tells of a later term before the word comes that another coordinator leads.
#[test]
fn an_entry_of_a_later_term_ends_a_reign() {
    let (mut world, links) = World::training(2);
    world.term = Term(2);
    world.apply(CommandEntry { unix_ms: 1, command: Command::Lead { coordinator: FOUNDER } });
    world.drain();
    world.beat(links[0]);
    world.kill(links[1]);
    assert_eq!((world.words(links[0]), world.log.len()), (vec![], 0));
}

/// Invariant I8. The worker got its new id from another leader, while this one stood still.
#[test]
fn a_worker_that_says_to_be_another_by_now_is_believed() {
    let (mut world, links) = World::training(3);
    world.cut_off = true;
    let id = WorkerId(world.index + 1);
    world.say(links[0], Message::Hello { worker: Some(id) });
    world.give(CoreInput::SteppedDown);
    let (run, name) = (world.core.state().run_id(), NodeName::parse("worker-1").expect("valid"));
    let command = Command::Register { run, name, registration: registration(77) };
    world.apply(CommandEntry { unix_ms: 1, command });
    world.term = Term(2);
    world.give(CoreInput::Elected { term: Term(2), id: FOUNDER });
    assert_eq!(world.hear(links[0]), [Message::Registered { worker: id, term: Term(2) }]);
}

/// The last message to the worker was void, since the worker knew a later term. The worker says so,
/// and is not deaf.
#[test]
fn a_worker_that_was_told_to_go_and_did_not_is_let_in_again() {
    let (mut world, links) = World::training(3);
    let (id, drained) = (world.id(links[0]), world.id(links[2]));
    world.say(links[2], Message::Leave);
    world.hold_all();
    assert_eq!(world.hear(links[2]).pop(), Some(Message::Drain { worker: drained }));
    world.say(links[2], Message::Hello { worker: None });
    world.say(links[0], Message::Hello { worker: Some(id) });
    assert_eq!(world.words(links[2]), ["welcome"]);
    assert_eq!(world.words(links[0]).last(), Some(&"registered"));
}

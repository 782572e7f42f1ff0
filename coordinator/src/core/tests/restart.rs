use super::*;

#[test]
fn a_coordinator_that_is_not_elected_says_and_proposes_nothing() {
    let mut core = Core::new(Time(0), EPOCH_UNIX_MS);
    let (operator, worker) = (LinkId(1), LinkId(2));
    let name = |name| NodeName::parse(name).expect("a valid name");
    for (link, role) in [(operator, Role::Operator), (worker, Role::Worker)] {
        let identity = Identity { role, name: name("node") };
        core.handle(Time(0), ShellInput::Connected { link, identity, address: None });
    }
    let say = |core: &mut Core, from, message| {
        core.handle(Time(0), ShellInput::Message { from, message });
    };
    say(&mut core, operator, request(1, OperatorCommand::Submit(run_of(2).into())));
    say(&mut core, worker, Message::Hello { worker: None });
    let submits = |number| {
        let id = RequestId { client: CLIENT, number };
        Command::Request {
            id,
            command: OperatorCommand::Submit(run_of(2).into()),
            so_far: RunSoFar::default(),
        }
    };
    let entry = CommandEntry { unix_ms: 5, command: submits(1) };
    core.handle(Time(0), CoreInput::Applied { index: 1, term: Term(1), entry });
    core.handle(Time(0), CoreInput::Tick);
    assert!(matches!(core.poll_effect(), Some(CoreEffect::Shell(ShellEffect::History(_)))));
    assert!(matches!(core.poll_effect(), Some(CoreEffect::Shell(ShellEffect::OpenLines(_)))));
    assert_eq!(core.poll_effect(), None);
    core.handle(Time(0), CoreInput::Elected { term: Term(2), id: FOUNDER });
    let Some(CoreEffect::Propose(entry)) = core.poll_effect() else { panic!("not proposed") };
    assert_eq!(
        (&entry.command, core.poll_effect()),
        (&Command::Lead { coordinator: FOUNDER }, None)
    );
    say(&mut core, operator, request(2, OperatorCommand::Submit(run_of(2).into())));
    let Some(CoreEffect::Propose(next)) = core.poll_effect() else { panic!("not proposed") };
    assert_eq!((next.command, core.poll_effect()), (submits(2), None), "it will lead by then");
    core.handle(Time(0), CoreInput::Applied { index: 2, term: Term(2), entry });
    assert!(matches!(core.poll_effect(), Some(CoreEffect::Shell(ShellEffect::History(_)))));
    let welcome = CoreEffect::Shell(ShellEffect::Send {
        to: worker,
        message: Message::Welcome { run: run_of(2), term: Term(2) },
    });
    assert_eq!((core.poll_effect(), core.poll_effect()), (Some(welcome), None));
}

#[test]
fn after_a_restart_workers_go_on_under_their_ids() {
    let (mut world, links) = World::training(3);
    world.commit(1..=4);
    world.report_lines(links[0], 1..=4);
    let (before, members) = (world.record(), world.members());
    world.restart();
    let links: Vec<_> = links.iter().map(|link| world.relink(*link)).collect();
    for (link, worker) in links.iter().zip(&members) {
        assert_eq!(world.hear(*link), [Message::Registered { worker: *worker, term: Term(2) }]);
    }
    world.pass(10_000, &links);
    assert_eq!(world.record(), before, "a restart alone changes nothing (I8)");
    assert_eq!(world.watch(0, 0).lines.len(), 4);
    let leading = |event: &EventKind| matches!(event, EventKind::Leading { .. });
    assert_eq!(world.events().iter().filter(|event| leading(event)).count(), 2);
}

#[test]
fn a_member_that_does_not_come_back_is_missed_when_its_fresh_deadline_is_over() {
    let (mut world, links) = World::training(3);
    world.commit(1..=4);
    world.restart();
    let first = world.relink(links[0]);
    world.pass(1_000, &[first]);
    let second = world.relink(links[1]);
    world.pass(1_150, &[first, second]);
    assert_eq!(world.generation(), Generation(1));
    world.pass(100, &[first, second]);
    assert_eq!((world.generation(), world.members().len()), (Generation(2), 2));
}

/// The record that the workers promised was never agreed on: the next leader makes another.
#[test]
fn workers_that_have_promised_get_a_generation_of_the_new_term() {
    let (mut world, links) = World::training(4);
    world.commit(1..=4);
    world.holds_back = true;
    world.kill(links[3]);
    world.restart();
    world.catch_up();
    let first = world.relink(links[0]);
    world.beat(first);
    assert_eq!(world.words(first), ["registered", "pause", "heartbeat_answer"]);
    world.pass(1_000, &[first]);
    let rest = [world.relink(links[1]), world.relink(links[2])];
    assert_eq!(world.generation(), Generation(1), "worker 4 has time to come back");
    world.pass(1_300, &[first, rest[0], rest[1]]);
    let record = world.record();
    assert_eq!((record.number, record.term), (Generation(2), Term(2)));
    assert_eq!((record.resume, record.members.len()), (Step(4), 3));
}

/// A worker that comes late, but before its deadline, has as long to answer as any.
#[test]
fn who_comes_back_late_has_time_to_answer() {
    let (mut world, links) = World::training(3);
    world.commit(1..=4);
    world.restart();
    let first = world.relink(links[0]);
    world.actor(first).promised = Generation(2);
    world.beat(first);
    let second = world.relink(links[1]);
    world.pass(2_100, &[first, second]);
    world.actor(links[2]).mute = true;
    let third = world.relink(links[2]);
    world.pass(500, &[first, second, third]);
    assert_eq!(world.generation(), Generation(1));
    world.actor(third).mute = false;
    world.pass(500, &[first, second, third]);
    assert_eq!((world.generation(), world.members().len()), (Generation(2), 3));
}

/// A coordinator that stood still finds all its links timed out when it wakes up. It evicts no
/// worker for that, no matter which worker comes back first.
#[test]
fn a_coordinator_that_stood_still_evicts_nobody() {
    let (mut world, links) = World::training(4);
    world.commit(1..=2);
    world.now = world.now + Duration::from_secs(4);
    for link in &links {
        world.cut(*link);
    }
    let back: Vec<_> = links.iter().map(|link| world.relink(*link)).collect();
    world.pass(500, &back);
    assert_eq!((world.generation(), world.members().len()), (Generation(2), 4));
}

/// Invariant I8. When the coordinator wakes up, the time for answers is over, and one is still in a
/// queue.
#[test]
fn a_coordinator_that_stood_still_in_a_pause_waits_for_answers_anew() {
    let (mut world, links) = World::training(3);
    world.commit(1..=2);
    world.actor(links[1]).mute = true;
    world.kill(links[2]);
    world.now = world.now + Duration::from_millis(2_050);
    world.give(CoreInput::Tick);
    assert_eq!(world.generation(), Generation(1));
    world.actor(links[1]).mute = false;
    world.pass(600, &links[..2]);
    assert_eq!((world.generation(), world.members().len()), (Generation(2), 2));
}

#[test]
fn a_worker_that_was_lost_is_told_so_whenever_it_comes_back() {
    let (mut world, links) = World::training(3);
    world.commit(1..=2);
    let id = world.id(links[2]);
    world.cut(links[2]);
    world.pass(2_250, &links[..2]);
    assert_eq!(world.generation(), Generation(2));
    let back = world.relink(links[2]);
    assert_eq!(world.hear(back), [Message::Evicted { worker: id }]);
    world.restart();
    let back = world.relink(back);
    assert_eq!(world.hear(back), [Message::Evicted { worker: id }]);
    let impostor = world.connect(Role::Worker, "worker-9");
    let first = world.id(links[0]);
    world.say(impostor, Message::Hello { worker: Some(first) });
    assert_eq!(world.hear(impostor), [Message::Evicted { worker: first }], "of another node");
}

/// I13: the log tells of lines, and of a rollback.
#[test]
fn a_restart_brings_back_the_lines_that_are_part_of_history() {
    let (mut world, links) = World::training(2);
    world.commit(1..=3);
    world.report_lines(links[0], 1..=3);
    world.kill(links[0]);
    world.kill(links[1]);
    let new = world.worker("worker-9");
    assert_eq!((world.cause(), world.line_file.len()), (Cause::Rollback, 0));
    world.restart();
    assert_eq!((world.line_file.len(), world.watch(0, 0).lines.len()), (0, 0));
    world.commit(1..=2);
    let new = world.relink(new);
    world.report_lines(new, 1..=2);
    let written = world.line_file.clone();
    world.restart();
    assert_eq!(world.watch(0, 0).lines, lines(world.generation(), 1..=2));
    assert_eq!(world.line_file, written);
}

/// I14: entries that are applied again give the same state.
#[test]
fn the_log_gives_the_same_state_again() {
    let (mut world, links) = World::training(3);
    world.commit(1..=3);
    world.kill(links[1]);
    let before = world.core.state().clone();
    let entries = world.applied.clone();
    let mut state = State::default();
    for ((term, entry), index) in entries.iter().zip(1..) {
        state.apply(index, *term, entry);
    }
    assert_eq!(state, before);
}

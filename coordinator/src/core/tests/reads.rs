use everstep_transport::protocol::{CoordinatorId, Question, Reply};

use super::*;

const WATCH: Message = Message::Watch { run: None, step: Step(0), event: 0 };

/// A leader that was stopped would tell outdated news.
#[test]
fn who_reads_is_answered_only_by_one_that_is_confirmed_to_lead() {
    let (mut world, links) = World::training(2);
    world.cut_off = true;
    world.report_lines(links[0], 1..=2);
    let other = world.connect(Role::Operator, "another");
    world.say(world.operator, WATCH);
    world.say(other, WATCH);
    world.say(other, Message::Ask(Question::Runs));
    assert_eq!((world.words(world.operator), &world.tickets[..]), (vec![], &[1][..]));
    world.report_lines(links[0], 3..=3);
    world.give(CoreInput::Confirmed { ticket: 1 });
    match &world.hear(world.operator)[..] {
        [Message::Update(update)] => assert_eq!(update.lines.len(), 3, "all that is known then"),
        other => panic!("no update but {other:?}"),
    }
    assert_eq!((world.words(other), &world.tickets[..]), (vec![], &[1, 2][..]));
    world.give(CoreInput::Confirmed { ticket: 2 });
    assert_eq!(world.words(other), ["update", "reply_runs"], "one confirmation for both");
}

#[test]
fn who_reads_from_one_that_does_not_lead_is_told_who_does() {
    let mut world = World::with_run(run_of(2));
    world.found(true);
    world.cut_off = true;
    world.hear(world.operator);
    world.say(world.operator, WATCH);
    world.give(CoreInput::Leader { term: Term(2), leader: Some(CoordinatorId(7)) });
    world.give(CoreInput::Confirmed { ticket: 1 });
    let known_leader = world.told(2, Some(7), &[(1, 1)]);
    assert_eq!(world.hear(world.operator).last(), Some(&known_leader), "it leads no longer");
    for question in [WATCH, Message::Ask(Question::Coordinators)] {
        world.say(world.operator, question);
        assert_eq!(world.hear(world.operator), std::slice::from_ref(&known_leader));
    }
    let new = world.connect(Role::Operator, "another");
    world.say(new, WATCH);
    assert_eq!(world.hear(new), [known_leader], "once, though these are its first words");
    world.cut_off = false;
    world.term = Term(3);
    world.give(CoreInput::Elected { term: Term(3), id: FOUNDER });
    assert!(!world.words(world.operator).contains(&"update"), "it has asked elsewhere since");
}

/// The coordinator's own entry is on its way.
#[test]
fn who_reads_from_one_that_is_about_to_lead_waits_for_that() {
    let mut world = World::about_to_lead();
    world.say(world.operator, WATCH);
    world.give(ShellInput::Read(4));
    assert_eq!(
        (world.words(world.operator), world.ready_reads.len()),
        (vec!["coordinators"; 0], 0)
    );
    world.holds_back = false;
    world.drain();
    assert_eq!(world.words(world.operator), ["update"]);
    assert_eq!(world.ready_reads, [4]);
}

#[test]
fn looks_of_the_shell_wait_for_a_leader_and_are_confirmed_together() {
    let mut world = World::with_run(run_of(2));
    world.cut_off = true;
    world.give(ShellInput::Read(1));
    world.give(ShellInput::Read(2));
    world.give(ShellInput::Read(3));
    world.give(CoreInput::Confirmed { ticket: 1 });
    assert_eq!((&world.ready_reads[..], &world.tickets[..]), (&[1][..], &[1, 2][..]));
    world.give(CoreInput::SteppedDown);
    world.give(CoreInput::Confirmed { ticket: 2 });
    assert_eq!(world.ready_reads, [1], "it led no longer");
    world.term = Term(2);
    world.give(CoreInput::Elected { term: Term(2), id: FOUNDER });
    world.give(CoreInput::Confirmed { ticket: *world.tickets.last().expect("it has asked again") });
    assert_eq!(world.ready_reads, [1, 3]);
}

#[test]
fn a_read_whose_confirmation_failed_is_confirmed_at_the_next_tick_but_not_for_one_who_left() {
    let mut world = World::with_run(run_of(2));
    world.cut_off = true;
    let other = world.connect(Role::Operator, "another");
    world.say(world.operator, WATCH);
    world.say(other, WATCH);
    world.give(CoreInput::Unconfirmed { ticket: 1 });
    world.give(ShellInput::Disconnected { link: other, end: LinkEnd::SaidAll });
    world.give(CoreInput::Tick);
    world.give(CoreInput::Confirmed { ticket: 2 });
    assert_eq!((world.words(world.operator), world.words(other)), (vec!["update"], vec![]));
}

#[test]
fn the_runs_are_told_with_their_ends_and_the_one_under_way_last() {
    let mut world = World::empty();
    world.found(false);
    world.request(1, OperatorCommand::Submit(run_of(2).into()));
    world.cancel(2);
    let next = RunSpec { name: "next".into(), ..run_of(2) };
    world.request(3, OperatorCommand::Submit(next.into()));
    world.request(4, OperatorCommand::CreateToken(exemplars::token()));
    world.hear(world.operator);
    world.say(world.operator, Message::Ask(Question::Runs));
    world.say(world.operator, Message::Ask(Question::Tokens));
    let told = world.hear(world.operator);
    let [Message::Reply(Reply::Runs(runs)), Message::Reply(Reply::Tokens(tokens))] = &told[..]
    else {
        panic!("not told but {told:?}");
    };
    let stands: Vec<_> = runs.iter().map(|run| (&*run.name, &*run.status)).collect();
    let first = (&*run_of(2).name, "failed: it was cancelled");
    assert_eq!(stands, [first, ("next", "starting: 0 of 2 workers registered")]);
    assert_eq!(runs[1].id, world.core.state().run_id());
    assert_eq!((tokens.len(), tokens[0].role, tokens[0].uses_left), (1, Role::Worker, None));
}

use everstep_transport::identity::Refusal;

use super::*;

/// The leader died before it could answer, and the client asks the next leader the same.
#[test]
fn a_request_that_is_said_again_is_answered_as_before_and_done_once() {
    let (mut world, links) = World::training(3);
    let drain = request(1, OperatorCommand::Drain(world.id(links[2])));
    world.say(world.operator, drain.clone());
    assert_eq!(world.hear(world.operator), [answer(1, None)]);
    let events = world.events();
    world.restart();
    world.say(world.operator, drain);
    assert_eq!(world.hear(world.operator), [answer(1, None)]);
    assert_eq!(world.events().len(), events.len() + 1, "a coordinator leads, and that is all");
    world.request(2, OperatorCommand::Drain(WorkerId(99)));
    let refused = answer(2, Some(Rejection::NoWorker(WorkerId(99))));
    assert_eq!(world.hear(world.operator), [refused]);
}

#[test]
fn one_run_follows_the_other_where_the_cluster_lasts() {
    let mut world = World::empty();
    world.found(false);
    world.request(1, OperatorCommand::Submit(run_of(2).into()));
    let links = [world.worker("worker-1"), world.worker("worker-2")];
    world.report_lines(links[0], 1..=20);
    links.iter().for_each(|link| drop(world.hear(*link)));
    super::results::finish(&mut world, links[0], [1; 32]);
    super::results::finish(&mut world, links[1], [1; 32]);
    assert_eq!(world.words(links[0]), ["released"]);
    let ids = [world.id(links[0]), world.id(links[1])];
    let idle = world.connect(Role::Worker, "worker-3");
    for link in [links[0], links[1], idle] {
        world.say(link, Message::Hello { worker: None });
    }
    assert_eq!(world.words(links[1]), ["released"]);
    let next = RunSpec { name: "next".into(), ..run_of(2) };
    world.request(2, OperatorCommand::Submit(next.clone().into()));
    let run = Some(world.core.state().run_id());
    let granted =
        Message::Answer { id: RequestId { client: CLIENT, number: 2 }, refusal: None, run };
    assert_eq!(world.hear(world.operator).pop(), Some(granted.clone()));
    world.request(2, OperatorCommand::Submit(next.into()));
    assert_eq!(world.hear(world.operator), [granted], "the same run, however often it is said");
    assert_eq!(world.words(links[0]), ["welcome"]);
    let [over, new] = &world.core.runs(world.now)[..] else { panic!("two runs") };
    assert_eq!((over.state.as_str(), over.figures.generations), ("complete", 1));
    assert_eq!((over.figures.steps, over.figures.loss.is_some()), (20, true));
    assert!(over.figures.ended_unix_ms >= over.figures.submitted_unix_ms);
    assert_eq!(new.status, "starting: 0 of 2 workers registered", "nothing of the run before");
    assert_eq!((new.figures.generations, new.figures.loss), (0, None));
    for link in links {
        *world.actor(link) = Actor { node: "again".into(), ..Actor::default() };
        world.say(link, Message::Register(registration(link.0)));
    }
    let record = world.record();
    assert_eq!((record.number, record.predecessor), (Generation(2), Generation(1)));
    assert_eq!((record.resume, record.cause), (Step(0), Cause::Start));
    assert!(world.members().iter().all(|worker| *worker > ids[1]), "ids are never given again");
    assert_eq!((world.line_file.len(), world.watch(0, 0).lines.len()), (0, 0));
    let past: Vec<_> = world.core.state().past_runs().iter().map(|run| run.steps).collect();
    assert_eq!(past, [Step(20)]);
}

#[test]
fn a_run_is_cancelled_on_request() {
    let (mut world, links) = World::training(2);
    world.cancel(1);
    assert_eq!(world.hear(world.operator), [answer(1, None)]);
    assert_eq!(world.failure(), "it was cancelled");
    assert_eq!(world.hear(links[0]), [Message::Dismiss]);
}

#[test]
fn a_token_admits_as_many_nodes_as_it_may_and_none_when_it_is_revoked() {
    let mut world = World::empty();
    let token = exemplars::token();
    let id = [0; 9];
    world.request(1, OperatorCommand::CreateToken(token));
    let node = NodeName::parse("worker-1").expect("a valid name");
    world.give(ShellInput::Admit { token: id, node: node.clone() });
    world.request(2, OperatorCommand::RevokeToken(id));
    world.give(ShellInput::Admit { token: id, node: node.clone() });
    world.request(3, OperatorCommand::RevokeToken(id));
    world.give(CoreInput::SteppedDown);
    world.give(ShellInput::Admit { token: id, node: node.clone() });
    let refusals = [None, Some(Refusal::UnknownToken), Some(Refusal::Undecided)];
    assert_eq!(world.admitted, refusals.map(|refusal| (node.clone(), refusal)));
    let answers = [answer(1, None), answer(2, None), answer(3, Some(Rejection::NoToken))];
    assert_eq!(world.hear(world.operator), answers);
}

#[test]
fn a_node_whose_admission_was_under_way_when_the_leader_fell_asks_again() {
    let mut world = World::empty();
    world.request(1, OperatorCommand::CreateToken(exemplars::token()));
    world.holds_back = true;
    let node = NodeName::parse("worker-1").expect("a valid name");
    world.give(ShellInput::Admit { token: [0; 9], node: node.clone() });
    world.give(CoreInput::SteppedDown);
    assert_eq!(world.admitted, [(node.clone(), Some(Refusal::Undecided))]);
    world.catch_up();
    world.term = Term(2);
    world.give(CoreInput::Elected { term: Term(2), id: FOUNDER });
    world.give(ShellInput::Admit { token: [0; 9], node: node.clone() });
    assert_eq!(world.admitted[1..], [(node, None)], "it was counted once");
}

/// Each request is answered by its own entry.
#[test]
fn a_request_that_is_refused_answers_nobody_else() {
    let (mut world, links) = World::training(3);
    let drain = OperatorCommand::Drain(world.id(links[2]));
    world.request(2, OperatorCommand::RevokeToken([0; 9]));
    world.hear(world.operator);
    world.holds_back = true;
    let other = world.connect(Role::Operator, "another");
    world.request(1, drain.clone());
    let id = RequestId { client: 6, number: 1 };
    world.say(other, Message::Request { id, command: drain });
    world.catch_up();
    let refused = answer(1, Some(Rejection::Superseded));
    assert_eq!(world.hear(world.operator), [refused]);
    assert_eq!(world.hear(other), [Message::Answer { id, refusal: None, run: None }]);
}

/// The log may decide the first request of an id while the client asks for something else under
/// that id.
#[test]
fn who_asks_for_something_else_under_the_same_id_is_not_told_that_it_was_done() {
    let (mut world, links) = World::training(3);
    let drain = OperatorCommand::Drain(world.id(links[2]));
    world.holds_back = true;
    let other = world.connect(Role::Operator, "another");
    world.request(1, drain);
    let run = world.core.state().run_id();
    world.say(other, request(1, OperatorCommand::Cancel(run)));
    world.catch_up();
    assert_eq!(world.hear(world.operator), [answer(1, None)]);
    let refused = answer(1, Some(Rejection::OtherCommand));
    assert_eq!(world.hear(other), [refused]);
}

#[test]
fn a_cancelled_run_keeps_the_figures_that_it_had() {
    let (mut world, links) = World::training(2);
    world.commit(1..=4);
    world.report_lines(links[0], 1..=4);
    let before = world.core.figures();
    assert!(before.loss.is_some() && before.generations == 1, "{before:?}");
    let run = world.core.state().run_id();
    world.request(9, OperatorCommand::Cancel(run));
    let past = world.core.state().past_runs().back().expect("one run is over");
    assert_eq!((past.steps, past.figures.steps), (Step(4), before.steps));
    assert_eq!((past.figures.first_loss, past.figures.loss), (before.first_loss, before.loss));
    assert_eq!(past.figures.generations, 1);
    assert_eq!(past.figures.submitted_unix_ms, before.submitted_unix_ms);
    assert!(past.figures.ended_unix_ms.is_some());
}

/// Before the cluster is founded, no coordinator can say which one leads.
#[test]
fn whose_request_came_before_anybody_led_is_told_who_leads_and_asks_again() {
    let mut world = World::empty();
    world.give(CoreInput::SteppedDown);
    world.request(1, OperatorCommand::Submit(run_of(2).into()));
    assert_eq!((world.hear(world.operator), world.log.len()), (vec![], 0));
    world.term = Term(2);
    world.give(CoreInput::Elected { term: Term(2), id: FOUNDER });
    world.give(CoreInput::Leader { term: Term(2), leader: Some(FOUNDER) });
    assert_eq!((world.hear(world.operator), world.core.state().run()), (vec![], None), "not kept");
    world.found(true);
    assert_eq!(world.hear(world.operator), [world.told(2, Some(1), &[(1, 1)])]);
    world.request(1, OperatorCommand::Submit(run_of(2).into()));
    assert_eq!(world.words(world.operator), ["answer"]);
}

/// The request's entry comes into the log after the one with which the coordinator leads.
#[test]
fn a_request_to_one_that_is_about_to_lead_is_answered_when_it_does() {
    let mut world = World::about_to_lead();
    world.cancel(1);
    world.cancel(1);
    assert_eq!(world.hear(world.operator), []);
    world.catch_up();
    assert_eq!(world.hear(world.operator), [answer(1, None)], "once, though it was said twice");
    assert_eq!(world.failure(), "it was cancelled");
}

/// The shell closes the worker's links, and the worker can never come back: its answer is worth no
/// wait.
#[test]
fn the_next_generation_does_without_a_revoked_worker() {
    let (mut world, links) = World::training(3);
    let revoked = world.id(links[2]);
    let name = NodeName::parse("worker-3").expect("a valid name");
    world.request(1, OperatorCommand::Revoke(Identity { role: Role::Worker, name }));
    assert_eq!(world.hear(world.operator), [answer(1, None)]);
    world.pass(500, &links[..2]);
    assert_eq!(world.members(), [world.id(links[0]), world.id(links[1])]);
    let lost = |kind: &EventKind| match kind {
        EventKind::Lost { worker, reason, .. } if *worker == revoked => Some(reason.to_string()),
        _ => None,
    };
    assert_eq!(world.events().iter().find_map(lost).as_deref(), Some("an operator revoked it"));
}

use super::*;

#[test]
fn a_run_starts_when_enough_workers_have_promised_its_first_generation() {
    let mut world = World::with_run(run_of(2));
    let first = world.worker("worker-1");
    assert_eq!(world.words(first), ["welcome", "registered"]);
    let second = world.worker("worker-2");
    assert_eq!(world.words(first), ["pause", "announce", "write"]);
    assert_eq!(world.words(second), ["welcome", "registered", "pause", "announce"]);
    let record = world.record();
    assert_eq!(world.members(), [world.id(first), world.id(second)]);
    assert_eq!((record.number, record.predecessor), (Generation(1), Generation(0)));
    assert_eq!((record.resume, record.commit, record.term), (Step(0), None, Term(1)));
    assert_eq!((record.cause, record.waiting), (Cause::Start, false));
}

/// I15: a worker that did not promise is no member.
#[test]
fn a_worker_that_does_not_answer_the_first_pause_is_done_without() {
    let mut world = World::with_run(run_of(2));
    let mute = world.greeted("worker-1");
    world.workers.insert(mute, Actor { mute: true, ..Actor::default() });
    world.say(mute, Message::Register(registration(1)));
    let second = world.worker("worker-2");
    world.pass(1_900, &[mute, second]);
    assert_eq!(world.generation(), Generation(0));
    let third = world.worker("worker-3");
    world.pass(200, &[mute, second, third]);
    assert_eq!(world.members(), [world.id(second), world.id(third)]);
}

#[test]
fn workers_that_came_before_the_run_are_welcomed_when_it_is_submitted() {
    let mut world = World::empty();
    let early = world.greeted("worker-1");
    world.say(early, Message::Register(registration(1)));
    assert_eq!((world.hear(early), world.core.ignored()), (vec![], 1));
    world.request(1, OperatorCommand::Submit(run_of(2).into()));
    assert_eq!(world.hear(early), [Message::Welcome { run: run_of(2), term: Term(1) }]);
}

#[test]
fn a_second_run_is_refused_and_the_same_again_is_not() {
    let mut world = World::with_run(run_of(2));
    world.request(1, OperatorCommand::Submit(run_of(2).into()));
    let (id, run) = (RequestId { client: CLIENT, number: 1 }, Some(world.core.state().run_id()));
    assert_eq!(world.hear(world.operator), [Message::Answer { id, refusal: None, run }]);
    let other = RunSpec { name: "other".into(), ..run_of(2) };
    world.request(2, OperatorCommand::Submit(other.into()));
    let reason = Rejection::OtherRun("example".into());
    assert_eq!(world.hear(world.operator), [answer(2, Some(reason))]);
}

#[test]
fn an_operator_who_has_left_gets_no_answer() {
    let mut world = World::with_run(run_of(2));
    world.holds_back = true;
    let other = RunSpec { name: "other".into(), ..run_of(2) };
    world.request(1, OperatorCommand::Submit(other.into()));
    world.cut(world.operator);
    world.catch_up();
    assert_eq!(world.hear(world.operator), []);
}

#[test]
fn a_worker_with_another_model_is_refused_and_both_are_named() {
    let mut world = World::with_run(run_of(2));
    world.worker("worker-1");
    let link = world.greeted("worker-2");
    let mut other = registration(2);
    other.fingerprint.model = [9; 32];
    world.say(link, Message::Register(other));
    let Some(Message::Refused { reason }) = world.hear(link).pop() else { panic!("not refused") };
    assert_eq!(
        reason,
        "worker-2 differs from worker-1, which registered first: \
         model 090909090909, not 010101010101"
    );
    assert!(matches!(world.events().pop(), Some(EventKind::Refused { .. })));
}

/// A cluster of many runs. One worker has registered for a run of two, and another one, on this
/// link, builds it.
fn one_of_two_registered() -> (World, LinkId) {
    let mut world = World::with_run(run_of(2));
    world.found(false);
    world.worker("worker-1");
    let link = world.greeted("worker-2");
    (world, link)
}

/// A worker on this link with other data registers.
fn differs(world: &mut World, link: LinkId) {
    let mut other = registration(link.0);
    other.fingerprint.data = [9; 32];
    other.probe = 9;
    world.say(link, Message::Register(other));
}

#[test]
fn a_cluster_of_many_runs_keeps_a_worker_with_other_data_for_the_next_run() {
    let (mut world, link) = one_of_two_registered();
    world.hear(link);
    differs(&mut world, link);
    let words = "it differs from worker-1, which registered first: data 090909090909, not ";
    let Some(Message::Unable { inability: Inability::Place, reason }) = world.hear(link).pop()
    else {
        panic!("not told")
    };
    assert!(reason.starts_with(words), "{reason}");
    let status = world.core.runs(world.now).pop().expect("a run").status;
    assert!(status.contains(&format!("but worker-2 cannot compute yet: {words}")), "{status}");
    let told = world.events();
    let told = told.iter().filter(|kind| matches!(kind, EventKind::Refused { .. })).count();
    assert_eq!(told, 1);

    // The worker's files still differ, and then they are those of the others.
    differs(&mut world, link);
    assert!(matches!(world.hear(link).pop(), Some(Message::Unable { .. })));
    world.say(link, Message::Register(registration(link.0)));
    assert!(world.words(link).contains(&"registered"), "it takes part now");
    assert_eq!(world.watch(0, 0).unable, [], "nothing is left to say");
}

#[test]
fn a_worker_that_was_refused_trains_the_next_run() {
    let (mut world, link) = one_of_two_registered();
    differs(&mut world, link);
    world.hear(link);
    let run = world.core.state().run_id();
    world.request(7, OperatorCommand::Cancel(run));
    assert_eq!(world.words(link), ["released"]);
    world.say(link, Message::Hello { worker: None });
    world.request(8, OperatorCommand::Submit(RunSpec { seed: 9, ..run_of(2) }.into()));
    assert_eq!(world.words(link), ["welcome"]);
    world.say(link, Message::Register(registration(link.0)));
    assert_eq!(world.words(link), ["registered"]);
}

/// The first worker has the wrong data, and is started again with the right ones.
#[test]
fn the_first_worker_that_is_there_decides_until_the_run_begins() {
    for ends_first in [true, false] {
        let mut world = World::with_run(run_of(2));
        world.found(false);
        let wrong = world.greeted("worker-1");
        differs(&mut world, wrong);
        let link = world.greeted("worker-2");
        world.say(link, Message::Register(registration(link.0)));
        assert!(world.words(link).contains(&"unable"));
        if ends_first {
            world.kill(wrong);
            world.worker("worker-1");
        } else {
            world.say(wrong, Message::Register(registration(77)));
        }
        assert_eq!(world.words(link), ["released"], "it tries again at once");
        assert_eq!(world.watch(0, 0).unable, []);
        world.say(link, Message::Hello { worker: None });
        world.say(link, Message::Register(registration(link.0)));
        assert_eq!(world.words(link)[..2], ["welcome", "registered"]);
        assert_eq!(world.core.state().divergence(), None, "no bits come from the wrong data");
    }
}

/// What a generation has computed came from the data that all had.
#[test]
fn the_data_of_a_run_that_has_begun_stay() {
    let (mut world, links) = World::training(1);
    world.found(false);
    world.kill(links[0]);
    world.pass(20_000, &[]);
    let link = world.greeted("worker-2");
    differs(&mut world, link);
    assert!(world.words(link).contains(&"unable"));
}

#[test]
fn the_same_incarnation_registered_again_gets_the_same_id() {
    let (mut world, links) = World::training(2);
    let (id, entries) = (world.id(links[0]), world.index);
    world.say(links[0], Message::Register(registration(links[0].0)));
    assert_eq!(world.hear(links[0]), [Message::Registered { worker: id, term: Term(1) }]);
    assert_eq!((world.index, world.running()), (entries + 1, true), "nothing else was proposed");
}

#[test]
fn another_incarnation_on_the_same_link_is_a_new_worker() {
    let mut world = World::with_run(run_of(2));
    let link = world.worker("worker-1");
    let id = world.id(link);
    world.say(link, Message::Register(registration(77)));
    let workers: Vec<_> = world.core.state().workers().keys().copied().collect();
    assert_eq!(workers.len(), 1);
    assert!(workers[0] > id, "an id is never used again");
}

#[test]
fn a_worker_lost_before_the_start_is_forgotten() {
    let mut world = World::with_run(run_of(2));
    let link = world.worker("worker-1");
    world.kill(link);
    assert!(world.running() && world.core.state().workers().is_empty());
    world.worker("worker-2");
    assert_eq!(world.core.state().record(), None, "the run waits for two living workers");
    world.worker("worker-1");
    assert_eq!(world.generation(), Generation(1));
}

/// The worker's process may live: a link that is lost without a goodbye may come back.
#[test]
fn a_worker_without_a_link_has_time_to_come_back_before_the_start() {
    let mut world = World::with_run(run_of(2));
    let link = world.worker("worker-1");
    let id = world.id(link);
    world.cut(link);
    world.pass(2_000, &[]);
    let link = world.relink(link);
    assert_eq!(world.hear(link), [Message::Registered { worker: id, term: Term(1) }]);
    world.cut(link);
    world.pass(2_300, &[]);
    assert!(world.core.state().workers().is_empty());
    let late = world.relink(link);
    assert_eq!(world.hear(late), [Message::Evicted { worker: id }]);
    world.say(late, Message::Hello { worker: None });
    assert_eq!(world.words(late), ["welcome"], "it may register anew on the same link");
}

#[test]
fn a_newer_link_of_a_node_replaces_the_older() {
    let mut world = World::with_run(run_of(2));
    let old = world.worker("worker-1");
    let id = world.id(old);
    let new = world.relink(old);
    assert!(world.closed.contains_key(&old));
    world.give(ShellInput::Disconnected { link: old, end: LinkEnd::SaidAll });
    assert_eq!(world.core.state().workers().keys().collect::<Vec<_>>(), [&id]);
    world.worker("worker-2");
    assert_eq!(world.words(new), ["registered", "pause", "announce", "write"]);
}

#[test]
fn a_worker_that_leaves_while_it_registers_is_forgotten() {
    let mut world = World::with_run(run_of(2));
    let link = world.greeted("worker-1");
    world.holds_back = true;
    world.say(link, Message::Register(registration(1)));
    world.kill(link);
    world.catch_up();
    world.pass(2_300, &[]);
    assert!(world.core.state().workers().is_empty());
}

#[test]
fn a_worker_lost_while_the_first_generation_is_agreed_on_is_missed() {
    let mut world = World::with_run(run_of(2));
    let first = world.worker("worker-1");
    world.holds_back = true;
    let second = world.worker("worker-2");
    let entry = world.log.pop_front().expect("the registration");
    world.apply(entry);
    world.drain();
    let gone = world.id(second);
    world.kill(second);
    let commands: Vec<_> = world.log.iter().map(|entry| entry.command.clone()).collect();
    let [Command::Generation(_), Command::Lose { .. }] = &commands[..] else {
        panic!("not in flight: {commands:?}")
    };
    let mut other = world.log.clone();
    world.catch_up();
    assert_eq!(world.members(), [world.id(first)], "it was a member, and is missed");
    assert_eq!(world.comings_and_goings(), [format!("lost {gone}")]);
    // The log may have the entries in either order.
    let mut world = World::with_run(run_of(2));
    world.worker("worker-1");
    world.holds_back = true;
    let second = world.worker("worker-2");
    let entry = world.log.pop_front().expect("the registration");
    world.apply(entry);
    world.drain();
    world.kill(second);
    other.swap(0, 1);
    world.log = other;
    world.catch_up();
    assert_eq!((world.generation(), world.running()), (Generation(0), true));
    world.worker("worker-3");
    assert_eq!(world.members().len(), 2, "the Pause goes on until there are enough");
}

/// Messages that a role may not send in any phase change nothing, and are counted.
#[test]
fn messages_of_the_wrong_role_are_counted_and_ignored() {
    let (mut world, links) = World::training(2);
    let worker = links[0];
    let coordinator = world.connect(Role::Coordinator, "coordinator-2");
    let (stranger, nobody) = (world.connect(Role::Worker, "worker-9"), LinkId(99));
    let before = world.core.state().clone();
    let mut expected = 0;
    let of_workers = [
        &["hello", "heartbeat", "register", "fetch_record", "finished", "failed", "leave"][..],
        &["status", "unable", "written", "predecessors", "preempted"],
    ]
    .concat();
    let of_operators = [
        &["submit", "watch", "exited", "drain", "request", "transfer"][..],
        &["ask_coordinators", "ask_tokens", "ask_runs", "ask_revoked", "ask_checkpoints"],
        &["ask_operators", "ask_verification"],
    ]
    .concat();
    for message in exemplars::all() {
        for (link, permitted) in [
            (worker, &of_workers[..]),
            (world.operator, &of_operators),
            (stranger, &["hello"]),
            (coordinator, &["join", "fetch_lines", "lines"]),
            (nobody, &[]),
        ] {
            if !permitted.contains(&message.name()) {
                expected += 1;
                world.say(link, message.clone());
            }
        }
    }
    assert_eq!((world.core.ignored(), world.core.state()), (expected, &before));
    let other = WorkerResult { worker: WorkerId(99), ..WorkerResult::default() };
    world.say(worker, Message::Finished(other));
    assert_eq!(world.core.ignored(), expected + 1, "it speaks for another worker");
}

#[test]
fn a_fetched_record_is_the_announced_one() {
    let (mut world, links) = World::training(2);
    world.say(links[0], Message::FetchRecord);
    let record = world.record();
    assert_eq!(world.hear(links[0]), [Message::Announce(record)]);
}

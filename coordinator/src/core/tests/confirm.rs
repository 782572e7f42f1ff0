use super::*;

/// A leader that was stopped still believes that it leads, and that these are its workers.
fn stalled() -> (World, Vec<LinkId>) {
    let (mut world, links) = World::training(3);
    world.commit(1..=2);
    world.cut_off = true;
    (world, links)
}

/// I8: the worker registered with the next leader. The stalled leader does not have its log.
#[test]
fn nobody_is_evicted_by_a_leader_that_does_not_know_whether_it_leads() {
    let (mut world, _) = stalled();
    let link = world.connect(Role::Worker, "worker-9");
    world.say(link, Message::Hello { worker: Some(WorkerId(99)) });
    assert_eq!((world.words(link), world.tickets.len()), (vec![], 1));
    world.give(CoreInput::Unconfirmed { ticket: 1 });
    assert_eq!((world.words(link), world.tickets.len()), (vec![], 1));
    world.give(CoreInput::Tick);
    assert_eq!((world.words(link), &world.tickets[..]), (vec![], &[1, 2][..]));
    world.give(CoreInput::SteppedDown);
    world.give(CoreInput::Confirmed { ticket: 2 });
    assert_eq!(world.words(link), [""; 0]);
}

#[test]
fn a_leader_that_still_leads_evicts_whom_it_does_not_know() {
    let (mut world, _) = stalled();
    let link = world.connect(Role::Worker, "worker-9");
    world.say(link, Message::Hello { worker: Some(WorkerId(99)) });
    world.give(CoreInput::Confirmed { ticket: 7 });
    assert_eq!(world.words(link), [""; 0], "an answer to another question");
    world.give(CoreInput::Confirmed { ticket: 1 });
    assert_eq!(world.hear(link), [Message::Evicted { worker: WorkerId(99) }]);
}

/// When the confirmation comes, the leader knows all that was agreed until then.
#[test]
fn who_turns_out_to_be_registered_is_not_evicted() {
    let (mut world, links) = stalled();
    let (id, other) = (world.index + 1, registration(99));
    let link = world.connect(Role::Worker, "worker-9");
    world.say(link, Message::Hello { worker: Some(WorkerId(id)) });
    let name = NodeName::parse("worker-9").expect("a valid name");
    let run = world.core.state().run_id();
    let command = Command::Register { run, name, registration: other };
    world.apply(CommandEntry { unix_ms: 1, command });
    world.give(CoreInput::Confirmed { ticket: 1 });
    assert_eq!(world.words(link), ["registered"]);
    assert_eq!(world.generation(), Generation(1), "{links:?}");
}

#[test]
fn one_confirmation_serves_all_who_wait_when_it_is_asked_for() {
    let (mut world, _) = stalled();
    let links: Vec<LinkId> = (1..=4)
        .map(|place| {
            let link = world.connect(Role::Worker, &format!("late-{place}"));
            world.say(link, Message::Hello { worker: Some(WorkerId(99)) });
            link
        })
        .collect();
    assert_eq!(world.tickets, [1]);
    world.give(CoreInput::Confirmed { ticket: 1 });
    let evicted =
        |world: &mut World| links.iter().filter(|link| !world.hear(**link).is_empty()).count();
    assert_eq!((evicted(&mut world), &world.tickets[..]), (1, &[1, 2][..]));
    world.give(CoreInput::Confirmed { ticket: 2 });
    assert_eq!((evicted(&mut world), world.tickets.len()), (3, 2), "the rest at once");
}

/// Perhaps the leader itself does not hear: only a confirmed leader may take the workers for lost.
#[test]
fn silence_of_many_counts_only_for_a_leader_that_is_confirmed() {
    let (mut world, links) = stalled();
    world.pass(2_500, &links[..2]);
    assert_eq!((world.generation(), world.tickets.len()), (Generation(1), 1));
    let seen = world.core.cluster_view(world.now).workers;
    assert!(seen.iter().all(|view| view.state == WorkerState::Training));
    world.give(CoreInput::Unconfirmed { ticket: 1 });
    world.pass(50, &links[..2]);
    assert_eq!(world.tickets, [1, 2]);
    world.beat(links[2]);
    world.give(CoreInput::Confirmed { ticket: 2 });
    assert_eq!(world.generation(), Generation(1), "a worker that was heard meanwhile lives");
    world.actor(links[2]).mute = true;
    world.pass(2_500, &links[..2]);
    world.give(CoreInput::Confirmed { ticket: 3 });
    assert_eq!(world.members(), [world.id(links[0]), world.id(links[1])]);
}

#[test]
fn the_silence_of_few_needs_no_confirmation() {
    let (mut world, links) = World::training(5);
    world.cut_off = true;
    world.actor(links[4]).mute = true;
    world.pass(2_300, &links[..4]);
    assert_eq!((world.tickets.len(), world.members().len()), (0, 4));
}

#[test]
fn nobody_is_dismissed_after_the_end_before_that_is_confirmed() {
    let (mut world, links) = World::training(2);
    world.report_lines(links[0], 1..=20);
    super::results::finish(&mut world, links[0], [1; 32]);
    super::results::finish(&mut world, links[1], [1; 32]);
    world.cut_off = true;
    let late = world.greeted("worker-3");
    assert_eq!(world.words(late), [""; 0]);
    world.give(CoreInput::Confirmed { ticket: 1 });
    assert_eq!(world.hear(late), [Message::Dismiss]);
}

/// A leader in between may have given the worker the id that it has now.
#[test]
fn a_confirmation_is_of_no_use_for_what_was_said_after_it_was_asked_for() {
    let (mut world, _) = stalled();
    let link = world.connect(Role::Worker, "worker-9");
    let hello = |id| Message::Hello { worker: Some(WorkerId(id)) };
    world.say(link, hello(50));
    world.say(link, hello(99));
    world.give(CoreInput::Confirmed { ticket: 1 });
    assert_eq!((world.words(link), &world.tickets[..]), (vec![], &[1, 2][..]));
    world.give(CoreInput::Confirmed { ticket: 2 });
    assert_eq!(world.hear(link), [Message::Evicted { worker: WorkerId(99) }]);
}

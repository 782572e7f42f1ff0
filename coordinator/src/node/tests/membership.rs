//! How a process becomes a coordinator, and how it ceases to be one. The test switches a
//! coordinator off as soon as the others have let it go.

use everstep_transport::protocol::RunId;

use super::*;

impl World {
    /// Switches a coordinator off if the others have told it of its removal, or have shut it out.
    fn switch_off_if_removed(&mut self, id: CoordinatorId) -> bool {
        let name = &self.nodes[&id].introduction.own().name;
        let let_go = self.removed.contains(&id) || self.shut_out.contains(name);
        if let_go {
            self.kill(id);
            self.disks.remove(&id);
        }
        let_go
    }
}

#[test]
fn who_is_removed_is_told_and_the_others_go_on() {
    let (mut world, ids) = World::of_three();
    assert_eq!(world.command(1, OperatorCommand::Remove(ids[2])), Some(None));
    world.pass(500);
    assert_eq!(world.voters(ids[0]), ids[..2]);
    assert_eq!(world.removed.first(), Some(&ids[2]));
    world.kill(ids[2]);
    assert_eq!(
        world.command(2, OperatorCommand::Cancel(RunId(1))).map(|it| it.is_some()),
        Some(true),
        "there is no run"
    );
}

/// Until both have agreed that only one of them is left, they need each other.
#[test]
fn of_two_either_can_be_removed() {
    for leads in [true, false] {
        let mut world = World::founded();
        let ids = [FOUNDER, world.join(2)];
        world.pass(1_000);
        let leader = world.leader().expect("one of them leads");
        let gone = ids.into_iter().find(|id| (*id == leader) == leads).expect("one of two");
        let stays = ids.into_iter().find(|id| *id != gone).expect("the other");
        assert_eq!(world.command(1, OperatorCommand::Remove(gone)), Some(None));
        world.pass(1_000);
        assert_eq!((world.voters(stays), world.leader()), (vec![stays], Some(stays)));
        assert_eq!(world.removed.first(), Some(&gone));
    }
}

/// The history is no part of the log. A coordinator that has joined late may not have it yet.
#[test]
fn i13_nobody_is_let_go_while_it_can_tell_the_leader_of_history_that_this_lacks() {
    type Way = fn(&mut World, CoordinatorId);
    let told: Way = |world, it| {
        world.nodes.get_mut(&it).expect("it leads").restore_history(HistoryCache::default())
    };
    let restarted: Way = |world, it| {
        world.kill(FOUNDER);
        world.pass(5_000);
        assert_eq!(world.shut_out.len(), 0, "it may come back");
        world.start(FOUNDER, own(1));
        world.pass(6_000);
        assert_eq!(world.shut_out.len(), 0, "it has come back");
        world.nodes.get_mut(&it).expect("it leads").restore_history(HistoryCache::default());
    };
    let gone: Way = |world, _| {
        world.kill(FOUNDER);
        world.pass(10_000);
    };
    let dumb: Way = |world, _| world.pass(120_000);
    for way in [told, restarted, gone, dumb] {
        let mut world = World::founded();
        let stays = world.join(2);
        world.pass(1_000);
        world.nodes.get_mut(&stays).expect("it has joined").history.on_snapshot();
        assert_eq!(world.command(1, OperatorCommand::Remove(FOUNDER)), Some(None));
        world.pass(1_000);
        assert_eq!((world.voters(stays), world.leader()), (vec![stays], Some(stays)));
        assert_eq!((world.removed.len(), world.shut_out.len()), (0, 0));
        way(&mut world, stays);
        world.pass(1_000);
        assert!(world.shut_out.contains(&own(1).name), "it leaves for ever");
    }
}

/// Microseconds from a command to a disaster. The range is longer than a removal takes.
fn moments() -> impl Iterator<Item = u64> {
    (0..60_000).step_by(250)
}

/// The test switches off a coordinator that was told of its removal, and throws its disk away. The
/// other one's disk stands still from some moment on, and loses what it has not written by then.
#[test]
fn nobody_of_two_is_let_go_before_the_other_knows_it_for_good() {
    let mut let_go = 0;
    for moment in moments() {
        let mut world = World::founded();
        let gone = world.join(2);
        world.pass(1_000);
        if world.leader() != Some(FOUNDER) {
            assert_eq!(world.transfer(Some(FOUNDER)), Some(None));
        }
        let link = world.connect(FOUNDER, identity(Role::Operator, "operator"));
        let id = RequestId { client: 7, number: 1 };
        world.say(link, Message::Request { id, command: OperatorCommand::Remove(gone) });
        world.later(Duration::from_micros(moment), SimEvent::Stalls(FOUNDER));
        world.pass(200);
        let_go += u64::from(world.switch_off_if_removed(gone));
        world.kill(FOUNDER);
        world.stalled = None;
        world.start(FOUNDER, own(1));
        world.pass(3_000);
        assert!(world.leader().is_some(), "stalled after {moment} µs");
    }
    assert!((1..moments().count() as u64).contains(&let_go), "{let_go} times, not never or always");
}

/// The leader dies for good at some moment.
#[test]
fn nobody_of_four_is_let_go_before_a_majority_of_the_others_knows_it() {
    let mut let_go = 0;
    for moment in moments() {
        let (mut world, ids) = World::of_three();
        let gone = world.join(4);
        world.pass(1_000);
        let leader = world.leader().filter(|id| *id != gone);
        let leader = leader.unwrap_or_else(|| {
            assert_eq!(world.transfer(Some(ids[0])), Some(None));
            ids[0]
        });
        let link = world.operator(leader);
        let id = RequestId { client: 7, number: 1 };
        world.say(link, Message::Request { id, command: OperatorCommand::Remove(gone) });
        world.later(Duration::from_micros(moment), SimEvent::Dies(leader));
        world.pass(100);
        let_go += u64::from(world.switch_off_if_removed(gone));
        world.pass(3_000);
        assert!(world.leader().is_some(), "killed after {moment} µs");
    }
    assert!((1..moments().count() as u64).contains(&let_go), "{let_go} times, not never or always");
}

/// The new majority would have to agree, and cannot. The old one could not go back either.
#[test]
fn nobody_is_removed_whose_word_is_needed() {
    let (mut world, ids) = World::of_three();
    let leader = world.leader().expect("a coordinator leads");
    let [dead, needed] = match ids.into_iter().filter(|id| *id != leader).collect::<Vec<_>>()[..] {
        [one, other] => [one, other],
        _ => panic!("three, and one leads"),
    };
    world.kill(dead);
    world.pass(1_000);
    let refusal =
        world.command(1, OperatorCommand::Remove(needed)).flatten().expect("it is needed");
    assert!(refusal.contains(&format!("1 of the 2 that would be left are not heard (id {dead})")));
    assert_eq!(world.command(2, OperatorCommand::Remove(dead)), Some(None));
    world.pass(1_000);
    assert_eq!(
        world.command(3, OperatorCommand::Remove(needed)),
        Some(None),
        "two are left, and both live"
    );
    world.pass(1_000);
    assert_eq!(world.voters(leader), [leader]);
}

/// The leader heard its introduction long ago, and the log has no entry for it any more.
#[test]
fn who_was_removed_and_did_not_hear_of_it_is_told_when_it_asks_for_votes() {
    let (mut world, ids) = World::of_three();
    world.deaf = Some(ids[2]);
    assert_eq!(world.command(1, OperatorCommand::Remove(ids[2])), Some(None));
    world.pass(1_000);
    assert_eq!(world.voters(ids[0]), ids[..2]);
    assert_eq!(world.removed.first(), Some(&ids[2]));
    assert!(world.removed.iter().all(|id| *id == ids[2]));
}

/// The leader may be removed, too.
#[test]
fn every_coordinator_can_be_replaced_one_by_one() {
    let (mut world, ids) = World::of_three();
    let run = exemplars::run();
    assert_eq!(world.command(1, OperatorCommand::Submit(run.clone().into())), Some(None));
    for (round, old) in ids.into_iter().enumerate() {
        let next = world.replace(old, round as u64);
        assert!(!world.voters(next).contains(&old));
    }
    let leader = world.leader().expect("a coordinator leads");
    assert_eq!(world.voters(leader).len(), 3);
    assert!(world.voters(leader).iter().all(|id| !ids.contains(id)));
    assert_eq!(world.nodes[&leader].core.state().run(), Some(&run));
    world.assert_agreed();
}

/// The new leader answers from the log a removal that its predecessor heard, whatever links it has.
#[test]
fn a_removal_that_is_in_the_log_is_never_refused() {
    for moment in moments() {
        let (mut world, ids) = World::of_three();
        let leader = world.leader().expect("a coordinator leads");
        let gone = ids.into_iter().find(|id| *id != leader).expect("a follower");
        let link = world.operator(leader);
        let id = RequestId { client: 7, number: 1 };
        world.say(link, Message::Request { id, command: OperatorCommand::Remove(gone) });
        world.later(Duration::from_micros(moment), SimEvent::Dies(leader));
        let others = ids.into_iter().filter(|id| *id != leader);
        let others: Vec<_> = others.map(|to| (to, world.operator(to))).collect();
        for _ in 0..200 {
            world.pass(1);
            for (to, link) in &others {
                // It asks as soon as a leader is elected, which does not know yet what is agreed.
                if world.nodes[to].leads().is_some() {
                    world.say(
                        *link,
                        Message::Request { id, command: OperatorCommand::Remove(gone) },
                    );
                }
            }
        }
        let said = others.iter().filter_map(|(_, link)| world.said.get(link)).flatten();
        let answers = said.filter_map(|message| match message {
            Message::Answer { refusal, .. } => Some(refusal.clone()),
            _ => None,
        });
        let answers: Vec<_> = answers.collect();
        let listed = world
            .nodes
            .values()
            .any(|node| node.core.state().coordinators().iter().any(|view| view.id == gone));
        let refused = answers.iter().any(Option::is_some);
        assert!(listed || !refused, "killed after {moment} µs: {answers:?}");
    }
}

/// It applied to join, and died before it had the log.
#[test]
fn one_that_died_while_it_learned_holds_up_nobody() {
    let (mut world, ids) = World::of_three();
    let dead = world.apply_for(4);
    world.pass(1_000);
    let leader = world.leader().expect("a coordinator leads");
    let gone = ids.into_iter().find(|id| *id != leader).expect("a follower");
    assert_eq!(world.command(1, OperatorCommand::Remove(gone)), Some(None));
    world.pass(2_000);
    assert!(world.switch_off_if_removed(gone));
    assert_eq!(world.voters(leader).len(), 2);
    world.start(dead, own(4));
    world.pass(2_000);
    assert_eq!(world.voters(leader).len(), 3, "it has come back");
}

/// The file of the history is empty at first. The newest events come from the snapshot.
#[test]
fn i13_the_newest_events_are_known_before_anybody_has_told_the_history() {
    let mut world = World::founded();
    world.tells = false;
    let joins = world.join(2);
    world.pass(1_000);
    let events = |id: CoordinatorId| world.nodes[&id].core().events_after(0);
    assert!(matches!(events(FOUNDER), EventsAfter::Recent([_, ..])));
    assert_eq!(events(joins), events(FOUNDER));
}

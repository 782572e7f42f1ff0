//! Workers that catch up slowly, and last copies that are not to leave.

use super::*;

/// The joiner's feeds, by how many shards each names.
fn feeds(world: &mut World, link: LinkId) -> Vec<usize> {
    let shards = |message: Message| match message {
        Message::Feed { shards, .. } => Some(shards.len()),
        _ => None,
    };
    world.hear(link).into_iter().filter_map(shards).collect()
}

pub(super) fn holds(world: &mut World, link: LinkId) -> usize {
    world.words(link).into_iter().filter(|word| *word == "hold").count()
}

/// A run of two members, and a worker that is fed.
fn joining() -> (World, [LinkId; 3]) {
    let (mut world, links) = World::training(2);
    world.commit(1..=3);
    let all = [links[0], links[1], world.worker("worker-3")];
    (world, all)
}

#[test]
fn steps_are_held_back_until_a_joiner_that_they_outrun_has_everything() {
    let (mut world, all) = joining();
    world.actor(all[2]).behind = 1_000_000_000;
    world.pass(4_000, &all);
    assert_eq!(holds(&mut world, all[0]), 0, "it has some time of its own");
    world.pass(2_000, &all);
    assert!(holds(&mut world, all[0]) > 0);
    for _ in 0..20 {
        world.actor(all[2]).behind -= 50_000_000;
        world.pass(500, &all);
        assert!(holds(&mut world, all[0]) > 0, "the step leader would go on after a second");
    }
    let waits = world.seen().into_iter().find_map(|view| view.waits_for);
    assert_eq!(waits.as_deref(), Some("steps pause until it has 0.0 MB more"));
    world.sync_shards(all[2]);
    world.pass(50, &all);
    world.hold_all();
    assert_eq!((world.generation(), world.members().len()), (Generation(2), 3));
}

#[test]
fn a_join_that_never_comes_to_its_end_is_given_up_with_words_and_tried_again() {
    let (mut world, all) = joining();
    world.actor(all[2]).behind = 1_000_000_000;
    world.pass(1_000, &all);
    assert!(feeds(&mut world, all[2]).iter().all(|shards| *shards > 0));
    world.pass(60_000, &all);
    assert_eq!(feeds(&mut world, all[2]), [0], "nobody sends it anything any more");
    let joiner = world.id(all[2]);
    let seen = world.seen().into_iter().find(|view| view.worker == joiner).expect("it is there");
    assert_eq!(seen.state, WorkerState::Waiting);
    let reason = seen.waits_for.expect("a reason");
    assert!(reason.contains("it did not keep up with the steps: 1000.0 MB"), "{reason}");
    assert!(holds(&mut world, all[0]) < 60, "steps go on most of the time");
    world.pass(31_000, &all);
    let again = feeds(&mut world, all[2]);
    assert!(again.first().is_some_and(|shards| *shards > 0), "{again:?}");
    world.sync_shards(all[2]);
    world.pass(50, &all);
    world.hold_all();
    assert_eq!((world.generation(), world.members().len()), (Generation(2), 3));
}

/// Both owners of some shards are told to leave at once, and syncing is slow.
#[test]
fn last_copies_do_not_leave_before_others_have_them() {
    let (mut world, links) = World::training(3);
    world.commit(1..=3);
    for link in &links[..2] {
        world.say(*link, Message::Leave);
    }
    for _ in 0..4 {
        world.pass(5_000, &links);
        world.hold_all();
    }
    assert!(world.members().contains(&world.id(links[2])));
    let left = world.comings_and_goings().len();
    assert!(left <= 1, "one of the two had to stay");
    let leaving = links[..2].iter().find(|link| world.members().contains(&world.id(**link)));
    let leaving = *leaving.expect("it is still there");
    let id = world.id(leaving);
    let seen = world.seen().into_iter().find(|view| view.worker == id).expect("a member");
    assert!(seen.retained > 0 && seen.state == WorkerState::Leaving, "{seen:?}");
    assert!(seen.waits_for.is_some_and(|words| words.contains("no worker that stays")));
    world.hear(leaving);
    world.beat(leaving);
    let told = world.hear(leaving).into_iter().find_map(|message| match message {
        Message::HeartbeatAnswer { retained, .. } => Some(retained),
        _ => None,
    });
    assert_eq!(told, Some(seen.retained), "it knows what it waits for");
    for _ in 0..8 {
        let fed = |link: &&LinkId| world.workers[*link].shard_syncs.is_some();
        let fed: Vec<LinkId> = links.iter().filter(fed).copied().collect();
        fed.iter().for_each(|link| world.sync_shards(*link));
        world.pass(50, &links);
        world.hold_all();
    }
    assert_eq!(world.members(), [world.id(links[2])]);
}

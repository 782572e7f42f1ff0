use super::*;

fn break_link(world: &mut World, from: LinkId, to: LinkId) {
    let to = world.id(to);
    world.beat_with(from, |heartbeat| heartbeat.unreachable = vec![to]);
}

#[test]
fn a_pair_that_lost_each_other_is_renewed_with_the_same_members() {
    let (mut world, links) = World::training(4);
    world.commit(1..=3);
    let before = world.members();
    break_link(&mut world, links[1], links[3]);
    assert_eq!((world.generation(), world.members()), (Generation(2), before));
    assert_eq!((world.record().resume, world.cause()), (Step(3), Cause::Lost));
    break_link(&mut world, links[3], links[1]);
    assert_eq!(world.generation(), Generation(3), "and this was the second time");
}

#[test]
fn a_pair_that_fails_again_at_once_is_parted() {
    let (mut world, links) = World::training(4);
    world.commit(1..=3);
    break_link(&mut world, links[1], links[3]);
    world.commit(4..=4);
    world.pass(3_000, &links);
    let gone = world.id(links[3]);
    break_link(&mut world, links[1], links[3]);
    assert_eq!(world.comings_and_goings(), [format!("lost {gone}")], "the newest of the two");
    assert_eq!(world.hear(links[3]).pop(), Some(Message::Evicted { worker: gone }));
    let reason = world.events().into_iter().find_map(|event| match event {
        EventKind::Lost { reason, .. } => Some(reason),
        _ => None,
    });
    assert_eq!(reason.as_deref(), Some("it and worker 4 cannot reach each other"));
}

#[test]
fn a_pair_that_fails_again_later_is_renewed_again() {
    let (mut world, links) = World::training(4);
    world.commit(1..=3);
    break_link(&mut world, links[1], links[3]);
    world.commit(4..=4);
    world.pass(10_050, &links);
    break_link(&mut world, links[1], links[3]);
    assert_eq!((world.generation(), world.members().len()), (Generation(3), 4));
}

/// Worker 1 cannot reach two others: it is the one with the bad road, though it is the oldest.
#[test]
fn the_worker_with_more_broken_links_is_left_out() {
    let (mut world, links) = World::training(4);
    world.commit(1..=3);
    world.holds_back = true;
    break_link(&mut world, links[0], links[2]);
    break_link(&mut world, links[0], links[1]);
    world.catch_up();
    assert_eq!(world.members().len(), 4, "renewed for both");
    let both = [world.id(links[1]), world.id(links[2])];
    world.beat_with(links[0], |heartbeat| heartbeat.unreachable = both.to_vec());
    let members = world.members();
    assert!(!members.contains(&world.id(links[0])), "{members:?}");
}

/// Of a pair, worker 3 alone holds some shards: the other one goes.
#[test]
fn a_worker_with_a_last_copy_is_not_left_out() {
    let (mut world, links) = World::training(3);
    world.commit(1..=3);
    let newest = links[2];
    break_link(&mut world, links[1], newest);
    world.commit(4..=4);
    for link in [links[0], links[1]] {
        world.actor(link).versions.remove(&Shard(5));
    }
    world.actor(newest).versions.insert(Shard(5), (Step(4), Generation(2)));
    break_link(&mut world, links[1], newest);
    assert_eq!(world.members(), [world.id(links[0]), world.id(newest)]);
}

#[test]
fn a_learner_that_cannot_be_reached_disturbs_nobody() {
    let (mut world, links) = World::training(2);
    world.commit(1..=3);
    let joiner = world.worker("worker-3");
    break_link(&mut world, links[0], joiner);
    break_link(&mut world, joiner, links[0]);
    assert_eq!(world.generation(), Generation(1));
}

#[test]
fn what_was_broken_in_an_older_generation_is_no_news() {
    let (mut world, links) = World::training(3);
    world.commit(1..=3);
    break_link(&mut world, links[0], links[1]);
    let other = world.id(links[1]);
    world.beat_with(links[0], |heartbeat| {
        heartbeat.generation = Generation(1);
        heartbeat.unreachable = vec![other];
    });
    assert_eq!((world.generation(), world.members().len()), (Generation(2), 3));
}

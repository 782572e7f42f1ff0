use super::*;

/// Two members that cannot reach each other live on, and say so in every generation.
fn live_apart(world: &mut World, links: &[LinkId], millis: u64) {
    for _ in 0..millis / 50 {
        break_link(world, links[1], links[2]);
        world.pass(50, links);
    }
}

fn told_unreachable(world: &World) -> Vec<(WorkerId, WorkerId)> {
    let told = world.events().into_iter().filter_map(|event| match event {
        EventKind::Unreachable { workers } => Some(workers),
        _ => None,
    });
    told.collect()
}

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
    world.beat(links[0]);
    world.pass(3_000, &links);
    let gone = world.id(links[3]);
    break_link(&mut world, links[1], links[3]);
    assert_eq!(world.comings_and_goings(), [format!("lost {gone}")], "the newest of the two");
    assert_eq!(world.hear(links[3]).pop(), Some(Message::Evicted { worker: gone }));
    let reason = world.events().into_iter().find_map(|event| match event {
        EventKind::Lost { reason, .. } => Some(reason.to_string()),
        _ => None,
    });
    assert_eq!(reason.as_deref(), Some("it and worker 2 (id 4) cannot reach each other"));
}

#[test]
fn a_pair_that_fails_again_later_is_renewed_again() {
    let (mut world, links) = World::training(4);
    world.commit(1..=3);
    break_link(&mut world, links[1], links[3]);
    world.commit(4..=4);
    world.beat(links[0]);
    world.pass(10_050, &links);
    break_link(&mut world, links[1], links[3]);
    assert_eq!((world.generation(), world.members().len()), (Generation(3), 4));
}

/// Worker 1 cannot reach two others: it has the bad road, though it is the oldest.
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

/// Of a pair, worker 3 alone holds some shards: the other worker goes.
#[test]
fn a_worker_with_a_last_copy_is_not_left_out() {
    let (mut world, links) = World::training(3);
    world.commit(1..=3);
    let newest = links[2];
    break_link(&mut world, links[1], newest);
    world.commit(4..=4);
    world.beat(links[0]);
    for link in [links[0], links[1]] {
        world.actor(link).versions.remove(&Shard(5));
    }
    world.actor(newest).versions.insert(Shard(5), (Step(4), Generation(2)));
    break_link(&mut world, links[1], newest);
    assert_eq!(world.members(), [world.id(links[0]), world.id(newest)]);
}

#[test]
fn a_joiner_that_cannot_be_reached_disturbs_nobody() {
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

/// Each holds the only copy of its shards. The leader says so once, and renews the generation ever
/// more rarely: nothing else can be done.
#[test]
fn a_pair_that_cannot_be_parted_is_told_of_and_not_renewed_all_the_time() {
    let run = RunSpec { copies: 1, ..run_of(3) };
    let (mut world, links) = World::training_as(run);
    world.commit(1..=3);
    live_apart(&mut world, &links, 50);
    assert_eq!((world.generation(), told_unreachable(&world)), (Generation(2), vec![]));
    live_apart(&mut world, &links, 50);
    let pair = (world.id(links[1]), world.id(links[2]));
    assert_eq!((world.generation(), told_unreachable(&world)), (Generation(3), vec![pair]));
    live_apart(&mut world, &links, 30_000);
    let renewals = world.generation().0 - 3;
    assert!((8..=10).contains(&renewals), "{renewals} in half a minute");
    assert_eq!(told_unreachable(&world), [pair], "once");
    assert_eq!((world.members().len(), world.comings_and_goings()), (3, vec![]));
    assert_eq!(world.watch(0, 0).unreachable, [pair]);
    world.commit(4..=4);
    world.beat(links[0]);
    assert_eq!(world.watch(0, 0).unreachable, [], "who commits lacks nobody");
    world.pass(12_000, &links);
    assert_eq!(world.watch(0, 0).unreachable, [], "they have reached each other since");
    assert_eq!(world.generation().0 - 3, renewals + 1, "what was broken was still to be renewed");
}

#[test]
fn while_a_pair_waits_for_its_renewal_another_loss_is_mended_at_once() {
    let run = RunSpec { copies: 1, ..run_of(4) };
    let (mut world, links) = World::training_as(run);
    live_apart(&mut world, &links, 8_000);
    let before = world.generation();
    world.kill(links[3]);
    assert_eq!(world.generation(), before.next());
}

/// Worker 1 cannot reach two others, and alone holds a shard. The two hold nothing alone.
#[test]
fn who_holds_a_last_copy_stays_though_it_has_more_broken_links() {
    let (mut world, links) = World::training(4);
    world.commit(1..=3);
    let lonely = links[0];
    let others = [world.id(links[1]), world.id(links[2])];
    let all = |heartbeat: &mut Heartbeat| heartbeat.unreachable = others.to_vec();
    world.beat_with(lonely, all);
    world.commit(4..=4);
    world.beat(links[0]);
    for link in &links[1..] {
        world.actor(*link).versions.retain(|shard, _| shard.0 < SHARDS - 1);
        let shards = (0..SHARDS - 1).map(|shard| (Shard(shard), (Step(4), Generation(2))));
        world.actor(*link).versions.extend(shards);
    }
    world.actor(lonely).versions.insert(Shard(SHARDS - 1), (Step(4), Generation(2)));
    world.beat_with(lonely, all);
    assert_eq!(world.members(), [world.id(lonely), world.id(links[3])]);
    assert_eq!(told_unreachable(&world), []);
}

/// Two workers stand still. The others lose their links with them, and say so. When the two go on,
/// they find their own ends void only after the next generation has begun.
#[test]
fn i8_links_that_a_standstill_has_cost_part_no_pair() {
    let (mut world, links) = World::training(4);
    world.commit(1..=5);
    let (living, still) = links.split_at(2);
    still.iter().for_each(|link| world.actor(*link).mute = true);
    world.pass(3_000, living);
    break_link(&mut world, living[0], still[0]);
    world.pass(5_000, living);
    still.iter().for_each(|link| world.actor(*link).mute = false);
    world.pass(1_000, &links);
    assert_eq!(world.generation(), Generation(2), "they are back");
    break_link(&mut world, still[0], living[0]);
    assert_eq!((world.generation(), world.members().len()), (Generation(3), 4));
    world.pass(4_000, &links);
    break_link(&mut world, still[0], living[0]);
    assert_eq!((world.generation(), world.members().len()), (Generation(4), 4), "as any pair");
    break_link(&mut world, still[0], living[0]);
    assert_eq!((world.generation(), world.members().len()), (Generation(5), 3), "the road is cut");
}

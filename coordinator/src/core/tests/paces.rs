//! Members that compute at unlike speeds.

use super::*;

/// A run with a member for each of these times of a data shard, microseconds.
fn training(data_shards: u32, shard_us: &[u64]) -> (World, Vec<LinkId>) {
    let mut run = RunSpec { steps: 1_000, ..run_of(shard_us.len() as u32) };
    run.batch.data_shards = data_shards;
    let (mut world, links) = World::training_as(run);
    for (link, shard_us) in links.iter().zip(shard_us) {
        world.actor(*link).shard_us = *shard_us;
    }
    (world, links)
}

/// These steps are committed, a second each. Members hold when the leader asks for it.
fn train(world: &mut World, links: &[LinkId], steps: RangeInclusive<u64>) {
    for step in steps {
        world.commit(step..=step);
        world.pass(1_000, links);
        if links.iter().any(|link| world.words(*link).contains(&"hold")) {
            world.hold_all();
        }
    }
}

fn shares(world: &World) -> Vec<usize> {
    world.record().members.iter().map(|member| member.data_shards.len()).collect()
}

#[test]
fn i27_a_slow_member_gets_fewer_data_shards_after_a_while() {
    let (mut world, links) = training(16, &[10, 10, 20, 10]);
    train(&mut world, &links, 1..=28);
    assert_eq!(world.generation(), Generation(1), "it may be slow for a moment");
    train(&mut world, &links, 29..=40);
    assert_eq!((world.generation(), world.cause()), (Generation(2), Cause::Rebalance));
    assert_eq!(shares(&world), [5, 5, 2, 4]);
    train(&mut world, &links, 41..=200);
    assert_eq!(world.generation(), Generation(2), "it stays so");
    world.actor(links[2]).shard_us = 10;
    train(&mut world, &links, 201..=250);
    assert_eq!((world.generation(), shares(&world)), (Generation(3), vec![4; 4]));
    assert!(world.comings_and_goings().is_empty());
}

#[test]
fn changes_for_the_sake_of_pace_are_rare() {
    let (mut world, links) = training(16, &[10, 10, 20, 10]);
    let mut step = 0;
    for slow in 0..12 {
        for (place, link) in links.iter().enumerate() {
            world.actor(*link).shard_us = if place == slow % 4 { 30 } else { 10 };
        }
        train(&mut world, &links, step + 1..=step + 45);
        step += 45;
    }
    let changes = world.generation().0 - 1;
    assert!((5..=9).contains(&changes), "{changes} in nine minutes");
}

#[test]
fn nothing_is_shared_anew_that_pays_little() {
    for (data_shards, shard_us) in [
        (16, [10, 0, 0, 10]),
        (4, [10, 10, 90, 10]),
        (64, [100, 106, 100, 94]),
        (3, [10, 10, 0, 9]),
    ] {
        let (mut world, links) = training(data_shards, &shard_us);
        train(&mut world, &links, 1..=100);
        assert_eq!(world.generation(), Generation(1), "{data_shards} {shard_us:?}");
    }
}

/// A member that lacks a link, or computes slowly because others have been lost, is no reason.
#[test]
fn shares_are_left_alone_while_a_worker_joins_or_is_missing() {
    let (mut world, links) = training(16, &[10, 10, 20, 10]);
    let joiner = world.worker("worker-5");
    world.pass(100, &links);
    assert!(world.words(joiner).contains(&"feed"));
    let all = [&links[..], &[joiner]].concat();
    train(&mut world, &all, 1..=100);
    assert_eq!(world.generation(), Generation(1));
}

/// The slow member has become fast while the others held: no data shard moves, and no member has
/// lost a connection.
#[test]
fn a_change_that_finds_the_shares_right_is_none_for_a_lost_connection() {
    let (mut world, links) = training(16, &[10, 10, 20, 10]);
    for step in 1.. {
        world.commit(step..=step);
        world.pass(1_000, &links);
        if links.iter().any(|link| world.words(*link).contains(&"hold")) {
            break;
        }
    }
    world.actor(links[2]).shard_us = 10;
    world.pass(500, &links);
    world.hold_all();
    assert_eq!((world.generation(), shares(&world)), (Generation(2), vec![4; 4]));
    assert_eq!(world.cause(), Cause::Rebalance);
}

/// The survivors of a loss keep to their paces: the fast ones take the most.
#[test]
fn a_loss_leaves_a_slow_member_its_small_share() {
    let (mut world, links) = training(16, &[10, 10, 20, 10]);
    train(&mut world, &links, 1..=40);
    assert_eq!(shares(&world), [5, 5, 2, 4]);
    let slow = world.id(links[2]);
    world.kill(links[0]);
    let rest = &links[1..];
    world.pass(3_000, rest);
    let record = world.record();
    let rank = record.rank(slow).expect("a member");
    assert_eq!(record.member(rank).data_shards.len(), 3, "{:?}", shares(&world));
}

//! Members that have stated what they may fail together with.

use super::*;

/// How many shards have owners that all stand in one zone, by the zones of the links' workers.
fn at_risk(world: &World, zones: &BTreeMap<WorkerId, &str>) -> usize {
    let record = world.record();
    let together = |shard: &u32| {
        let owners = record.owners_of(Shard(*shard)).iter();
        let mut zones: Vec<_> = owners.map(|rank| zones[&record.member(*rank).worker]).collect();
        zones.dedup();
        zones.len() == 1
    };
    (0..SHARDS).filter(together).count()
}

/// All workers sync what they are fed, and the leader makes the changes that are due.
fn settle(world: &mut World, links: &[LinkId]) {
    for _ in 0..4 {
        world.pass(50, links);
        let fed = |link: &&LinkId| world.workers[link].shard_syncs.is_some();
        let fed: Vec<LinkId> = links.iter().filter(fed).copied().collect();
        fed.into_iter().for_each(|link| world.sync_shards(link));
        world.pass(50, links);
        world.hold_all();
    }
}

#[test]
fn the_owners_of_every_shard_are_in_different_zones_where_that_can_be() {
    let mut world = World::with_run(run_of(4));
    let mut zones = BTreeMap::new();
    let mut join = |world: &mut World, name: &str, zone: &'static str| {
        let link = world.worker_in(name, Zone::parse(zone));
        zones.insert(world.id(link), zone);
        (link, zones.clone())
    };
    let names = [("worker-1", "a"), ("worker-2", "a"), ("worker-3", "b"), ("worker-4", "b")];
    let mut links: Vec<LinkId> = names.iter().map(|(n, z)| join(&mut world, n, z).0).collect();
    world.commit(1..=3);
    world.kill(links.remove(0));
    let (joiner, zones) = join(&mut world, "worker-5", "a");
    assert_ne!(at_risk(&world, &zones), 0, "a zone has lost one of its two");
    links.push(joiner);
    settle(&mut world, &links);
    assert_eq!((world.members().len(), world.protection()), (4, 2));
    assert_eq!(at_risk(&world, &zones), 0);
    let shown: Vec<_> = world.seen().into_iter().filter_map(|view| view.zone).collect();
    assert_eq!(shown.iter().map(Zone::as_str).collect::<Vec<_>>(), ["a", "a", "b", "b", "a"]);
}

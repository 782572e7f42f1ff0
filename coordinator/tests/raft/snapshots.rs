//! Snapshots: an entry that the log has dropped is not lost.

use everstep_coordinator::raft::ReplicaId;

use super::world::{Climate, World, ms};

const CLIMATE: Climate = Climate { compact_every: 20, keep: 5, ..Climate::FAIR };

#[test]
fn a_replica_that_is_far_behind_gets_a_snapshot_and_the_rest() {
    for seed in 0..50 {
        let mut world = World::new(seed, 3, CLIMATE);
        world.wait(ms(1000), "a leader", |world| world.leader().is_some()).expect("alive");
        let behind = world.leader().map(|leader| ReplicaId(1 + leader.0 % 3)).expect("one leads");
        world.crash(behind, Some(ms(3000)));
        world.run(ms(3000)).expect("agreement");
        let last = world.nodes[&behind].disk.last().index;
        world
            .wait(ms(500), "it has caught up", |world| {
                world.judge.holds_all(&world.machine(behind)).is_ok()
            })
            .unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
        assert!(world.nodes[&behind].disk.base.index > last, "it got no snapshot");
    }
}

#[test]
fn a_snapshot_that_is_lost_on_its_way_is_sent_again() {
    for seed in 0..50 {
        let mut world = World::new(seed, 3, CLIMATE);
        world.wait(ms(1000), "a leader", |world| world.leader().is_some()).expect("alive");
        let behind = world.leader().map(|leader| ReplicaId(1 + leader.0 % 3)).expect("one leads");
        world.crash(behind, Some(ms(2000)));
        world.run(ms(2000)).expect("agreement");
        world.climate.lost = 500;
        world.run(ms(300)).expect("agreement");
        world.climate.lost = 0;
        world
            .wait(ms(1000), "it has caught up", |world| {
                world.judge.holds_all(&world.machine(behind)).is_ok()
            })
            .unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    }
}

#[test]
fn a_log_is_as_long_as_what_is_kept_and_what_came_since() {
    let mut world = World::new(1, 3, CLIMATE);
    world.run(ms(5000)).expect("agreement");
    assert!(world.judge.acknowledged() > 200);
    for node in world.nodes.values() {
        let length = node.disk.entries.len() as u64;
        assert!(length <= CLIMATE.keep + 2 * CLIMATE.compact_every, "{length}");
    }
}

#[test]
fn all_are_started_again_from_their_disks_alone() {
    for seed in 0..50 {
        let mut world = World::new(seed, 3, CLIMATE);
        world.run(ms(2000)).expect("agreement");
        for id in world.ids() {
            world.crash(id, Some(ms(100)));
        }
        world.run(ms(100)).expect("agreement");
        world.calm_down().unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    }
}

//! Coordinators that compare their states (I14).

use super::*;
use crate::node::state_comparison::COMPARED_ENTRIES;

/// Three coordinators that have compared their states at least once, and the id of the leader.
fn compared() -> (World, [u64; 3], u64) {
    let (mut world, ids) = World::of_three();
    for number in 1..=COMPARED_ENTRIES {
        world.command(number, OperatorCommand::RevokeToken(exemplars::token().id()));
    }
    let leader = world.leader().expect("a coordinator leads");
    (world, ids, leader)
}

#[test]
fn i14_followers_compare_their_states_with_the_leaders() {
    let (world, ids, leader) = compared();
    let leaders = world.nodes[&leader].comparison.own;
    assert!(leaders.is_some_and(|(index, _)| index >= COMPARED_ENTRIES));
    for id in ids.into_iter().filter(|id| *id != leader) {
        let comparison = &world.nodes[&id].comparison;
        assert_eq!((comparison.own, comparison.leaders), (leaders, leaders), "coordinator {id}");
    }
}

#[test]
fn i14_a_coordinator_with_another_state_than_the_leaders_ends() {
    let (mut world, ids, leader) = compared();
    let (index, mut digest) = world.nodes[&leader].comparison.own.expect("a digest");
    digest[0] ^= 1;
    let follower = ids.into_iter().find(|id| *id != leader).expect("it has followers");
    let mut tell = |identity: Identity, index| {
        let link = world.connect(follower, identity);
        let (from, message) = (world.links[&link].1, Message::StateDigest { index, digest });
        let node = world.nodes.get_mut(&follower).expect("it runs");
        node.handle(world.now, ShellInput::Message { from, message })
    };
    let stranger = identity(Role::Worker, "worker-1");
    assert!(tell(stranger, index).is_ok(), "a worker knows no state");
    let coordinator = || identity(Role::Coordinator, "coordinator-9");
    assert!(tell(coordinator(), index + COMPARED_ENTRIES).is_ok(), "it is not that far");
    let ended = tell(coordinator(), index);
    assert!(matches!(ended, Err(NodeError::Diverged { index: at }) if at == index), "{ended:?}");
}

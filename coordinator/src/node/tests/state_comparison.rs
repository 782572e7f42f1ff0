//! Coordinators that compare their states (I14).

use super::*;
use crate::node::state_comparison::COMPARED_ENTRIES;

/// Three coordinators that have compared their states at least once.
fn compared() -> (World, [CoordinatorId; 3]) {
    let (mut world, ids) = World::of_three();
    for number in 1..=COMPARED_ENTRIES {
        world.command(number, OperatorCommand::RevokeToken(exemplars::token().id()));
    }
    (world, ids)
}

#[test]
fn i14_coordinators_tell_each_other_of_their_states() {
    let (world, ids) = compared();
    let own = |id| world.nodes[&id].comparison.own;
    assert!(own(FOUNDER).is_some_and(|(index, _)| index >= COMPARED_ENTRIES));
    for id in ids {
        let others = ids.into_iter().filter(|other| *other != id);
        let told = others.map(|other| (ReplicaId::from(other), own(other).expect("a digest")));
        assert_eq!(world.nodes[&id].comparison.others, told.collect(), "as coordinator {id} knows");
    }
}

/// The others have faulty memories, as far as this one can see.
#[test]
fn i14_a_coordinator_that_a_majority_contradicts_ends() {
    let (mut world, [one, ..]) = compared();
    let (index, mut digest) = world.nodes[&one].comparison.own.expect("a digest");
    digest[0] ^= 1;
    let mut tell = |name: &str, role| {
        let link = world.connect(one, identity(role, name));
        let (from, message) = (world.links[&link].1, Message::StateDigest { index, digest });
        let node = world.nodes.get_mut(&one).expect("it runs");
        node.handle(world.now, ShellInput::Message { from, message })
    };
    assert!(tell("worker-1", Role::Worker).is_ok(), "a worker knows no state");
    assert!(tell("coordinator-9", Role::Coordinator).is_ok(), "it is no coordinator of this log");
    assert!(tell("coordinator-2", Role::Coordinator).is_ok(), "one against one");
    let ended = tell("coordinator-3", Role::Coordinator);
    assert!(matches!(ended, Err(NodeError::Diverged { index: at }) if at == index), "{ended:?}");
}

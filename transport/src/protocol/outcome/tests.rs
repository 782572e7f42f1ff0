//! State hashes.

use super::*;

fn result(digests: &[(u32, u8)]) -> WorkerResult {
    let digests = digests.iter().map(|(shard, byte)| (Shard(*shard), [*byte; 32])).collect();
    WorkerResult { digests, ..WorkerResult::default() }
}

#[test]
fn the_state_hash_does_not_depend_on_who_owns_what() {
    let alone = state_hash(3, &[result(&[(0, 7), (1, 8), (2, 9)])]);
    assert!(alone.is_some());
    let shared = [result(&[(1, 8), (2, 9)]), result(&[(0, 7), (2, 9)])];
    assert_eq!(state_hash(3, &shared), alone);
    assert_ne!(state_hash(4, &shared), alone);
}

#[test]
fn results_that_are_not_of_one_state_have_no_hash() {
    for results in [
        vec![],
        vec![result(&[])],
        vec![result(&[(0, 7)]), result(&[(0, 8)])],
        vec![result(&[(0, 7), (2, 9)])],
    ] {
        assert_eq!(state_hash(3, &results), None);
    }
}

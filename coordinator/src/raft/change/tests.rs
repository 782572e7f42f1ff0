use ::raft::eraftpb::{Entry, EntryType};
use proptest::prelude::*;

use super::*;

/// Changes, with the bytes that protobuf 2.28 makes of them. Disks hold such bytes.
fn known() -> [(ConfChangeV2, Vec<u8>); 3] {
    let learner = changes([(ConfChangeType::AddLearnerNode, ReplicaId(300))], false);
    let joint = [
        (ConfChangeType::AddNode, ReplicaId(3)),
        (ConfChangeType::RemoveNode, ReplicaId(1)),
        (ConfChangeType::AddNode, ReplicaId(u64::MAX / 4)),
    ];
    let joint = ConfChangeV2 { context: vec![9; 3].into(), ..changes(joint, true) };
    let head = [8, 2, 18, 2, 16, 3, 18, 4, 8, 1, 16, 1, 18, 10, 16];
    let tail = [255, 255, 255, 255, 255, 255, 255, 255, 63, 26, 3, 9, 9, 9];
    [
        (ConfChangeV2::default(), vec![]),
        (learner, vec![18, 5, 8, 2, 16, 172, 2]),
        (joint, [&head[..], &tail].concat()),
    ]
}

#[test]
fn changes_have_the_bytes_that_protobuf_gives_them() {
    for (change, bytes) in known() {
        assert_eq!(change.write_to_bytes(), bytes);
        assert_eq!(parse_change(&bytes), Some(change));
    }
}

#[test]
fn entries_are_as_long_as_protobuf_makes_them() {
    let entry = Entry { index: 300, term: 1, data: vec![0; 200].into(), ..Entry::default() };
    assert_eq!(entry.compute_size(), 208);
    let entry_type = EntryType::EntryConfChangeV2;
    let more = Entry { entry_type, index: u64::MAX / 4, context: vec![1].into(), ..entry };
    assert_eq!(more.compute_size(), 220);
}

#[test]
fn unknown_fields_are_passed_over_and_unknown_kinds_are_refused() {
    let bytes = [8, 2, 0x78, 1, 0x7a, 1, 7, 0x7d, 0, 0, 0, 0, 0x79, 0, 0, 0, 0, 0, 0, 0, 0];
    let transition = ConfChangeTransition::Explicit;
    assert_eq!(parse_change(&bytes), Some(ConfChangeV2 { transition, ..ConfChangeV2::default() }));
    for garbled in [&[8, 9][..], &[18, 2, 8, 9], &[18, 9, 8], &[0, 1], &[0x7b], &[0xff; 12], &[8]] {
        assert_eq!(parse_change(garbled), None, "{garbled:?}");
    }
}

proptest! {
    #[test]
    fn bytes_that_are_no_change_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..99)) {
        let _ = parse_change(&bytes);
    }
}

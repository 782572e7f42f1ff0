//! Which checkpoints are deleted, and in which order. Pure.
//!
//! Only whole checkpoints are counted and deleted. A damaged one is left to people: it may be the
//! only trace of what went wrong, and `checkpoint rm` removes it.

use everstep_transport::protocol::Step;
pub use everstep_transport::protocol::checkpoint::Retention;

use crate::names::ObjectName;
use crate::store::StoredObject;

/// How much older than the newest object of the store rubbish must be, seconds by the store's
/// clock. A listing of a network's file system may lack what is younger.
const RUBBISH_AGE_SECONDS: u64 = 600;
/// How much older than the newest object an unfinished file must be: its writer has ended.
const ABANDONED_AGE_SECONDS: u64 = 24 * 3_600;

/// The objects of a checkpoint in the order of their deletion. The manifest goes first, so that
/// whatever interrupts the deletion, no manifest ever lists a file that is gone.
pub fn deletion_order(listing: &[StoredObject], step: Step) -> Vec<ObjectName> {
    let of_step = listing.iter().map(|object| &object.name).filter(|it| it.step() == Some(step));
    let parts = of_step.filter(|name| matches!(name, ObjectName::Part(..))).cloned();
    std::iter::once(ObjectName::Manifest(step)).chain(parts).collect()
}

/// The objects that nothing needs any more: parts of steps up to `up_to` without a manifest, and
/// forgotten probes. The caller knows that no part of these steps can still become part of a
/// manifest. Claims always stay: they tell a cluster that another one has outdone it.
pub fn rubbish(listing: &[StoredObject], up_to: Step) -> Vec<ObjectName> {
    let has_manifest =
        |step: Step| listing.iter().any(|object| object.name == ObjectName::Manifest(step));
    let is_rubbish = |object: &&StoredObject| match &object.name {
        ObjectName::Part(step, _) => *step <= up_to && !has_manifest(*step),
        ObjectName::Probe(_) => true,
        ObjectName::Claim(_) | ObjectName::Manifest(_) | ObjectName::File(_) => false,
        ObjectName::Lines(_) | ObjectName::Events(_) => false,
    };
    let newest = newest_change(listing);
    let is_old =
        |object: &&StoredObject| object.changed.saturating_add(RUBBISH_AGE_SECONDS) <= newest;
    listing.iter().filter(is_old).filter(is_rubbish).map(|object| object.name.clone()).collect()
}

/// Unfinished files that were changed before this time have no writer any more: seconds of Unix
/// time by the store's clock.
pub fn abandoned_before(listing: &[StoredObject]) -> u64 {
    newest_change(listing).saturating_sub(ABANDONED_AGE_SECONDS)
}

fn newest_change(listing: &[StoredObject]) -> u64 {
    listing.iter().map(|object| object.changed).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use everstep_transport::protocol::{Generation, WorkerId};
    use proptest::prelude::*;

    use super::*;
    use crate::names::PartName;

    fn steps(numbers: impl IntoIterator<Item = u64>) -> BTreeSet<Step> {
        numbers.into_iter().map(Step).collect()
    }

    fn part(step: u64, worker: u64) -> ObjectName {
        let name = PartName { generation: Generation(1), worker: WorkerId(worker), claim: 1 };
        ObjectName::Part(Step(step), name)
    }

    fn object(name: ObjectName, changed: u64) -> StoredObject {
        StoredObject { name, bytes: 1, changed }
    }

    #[test]
    fn expired_checkpoints_by_table() {
        let whole = [0, 5, 10, 15, 20, 25];
        for (keep, keep_every, pinned, read, expired) in [
            (2, 0, vec![], vec![], vec![0, 5, 10, 15]),
            (2, 10, vec![], vec![], vec![5, 15]),
            (2, 0, vec![0], vec![10], vec![5, 15]),
            (0, 0, vec![], vec![], vec![0, 5, 10, 15, 20]),
            (9, 0, vec![], vec![], vec![]),
            (u64::MAX, 7, vec![], vec![], vec![]),
        ] {
            let found =
                Retention { keep, keep_every }.expired(&steps(whole), &steps(pinned), &steps(read));
            assert_eq!(found, steps(expired), "keep {keep}, every {keep_every}");
        }
    }

    proptest! {
        #[test]
        fn the_newest_the_pinned_and_those_being_read_always_stay(
            whole in prop::collection::btree_set(0_u64..200, 0..20),
            pinned in prop::collection::btree_set(0_u64..200, 0..5),
            read in prop::collection::btree_set(0_u64..200, 0..3),
            keep in 0_u64..6,
            keep_every in 0_u64..20,
        ) {
            let (whole, pinned, read) = (steps(whole), steps(pinned), steps(read));
            let expired = Retention { keep, keep_every }.expired(&whole, &pinned, &read);
            prop_assert!(expired.is_subset(&whole));
            prop_assert!(expired.is_disjoint(&pinned) && expired.is_disjoint(&read));
            prop_assert!(whole.last().is_none_or(|newest| !expired.contains(newest)));
            let kept = whole.len() - expired.len();
            prop_assert!(kept >= whole.len().min(keep as usize));
            prop_assert!(whole.is_empty() || kept > 0);
            // What is kept once is kept again: nothing else expires by a deletion.
            let left: BTreeSet<_> = whole.difference(&expired).copied().collect();
            let again = Retention { keep, keep_every }.expired(&left, &pinned, &read);
            prop_assert!(again.is_empty());
        }
    }

    #[test]
    fn a_manifest_is_deleted_before_its_parts() {
        let listing = [
            object(part(5, 1), 0),
            object(ObjectName::Manifest(Step(5)), 0),
            object(part(5, 2), 0),
            object(part(6, 1), 0),
        ];
        let order = deletion_order(&listing, Step(5));
        assert_eq!(order, [ObjectName::Manifest(Step(5)), part(5, 1), part(5, 2)]);
    }

    #[test]
    fn parts_without_a_manifest_are_rubbish_once_none_can_come() {
        let age = RUBBISH_AGE_SECONDS;
        let listing = [
            object(ObjectName::Claim(1), 0),
            object(ObjectName::Probe(1), 0),
            object(ObjectName::Probe(2), 1),
            object(ObjectName::File(crate::names::FileName::weights()), 0),
            object(part(5, 1), 0),
            object(part(5, 2), 0),
            object(ObjectName::Manifest(Step(5)), 0),
            object(part(6, 1), 0),
            object(part(7, 1), 1),
            object(part(8, 1), 0),
            object(ObjectName::Manifest(Step(9)), age),
        ];
        assert_eq!(rubbish(&listing, Step(7)), [ObjectName::Probe(1), part(6, 1)]);
        assert_eq!(rubbish(&listing, Step(8)), [ObjectName::Probe(1), part(6, 1), part(8, 1)]);
        assert_eq!(rubbish(&listing[..10], Step(8)), [], "it may be younger than the listing");
        assert_eq!(rubbish(&[], Step(8)), []);
    }

    proptest! {
        #[test]
        fn no_part_of_a_manifest_and_none_of_a_later_step_is_rubbish(
            parts in prop::collection::vec((0_u64..12, 0_u64..3, 0_u64..1_500), 0..30),
            manifests in prop::collection::btree_set(0_u64..12, 0..8),
            up_to in 0_u64..12,
        ) {
            let parts = parts.into_iter().map(|(step, by, at)| object(part(step, by), at));
            let whole = manifests.iter().map(|step| object(ObjectName::Manifest(Step(*step)), 9));
            let listing: Vec<_> = parts.chain(whole).collect();
            for name in rubbish(&listing, Step(up_to)) {
                let step = name.step().expect("a part");
                prop_assert!(step <= Step(up_to) && !manifests.contains(&step.0));
                prop_assert!(matches!(name, ObjectName::Part(..)));
            }
        }
    }
}

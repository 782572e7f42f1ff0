//! Which checkpoints are deleted, and in which order. Pure.
//!
//! Only whole checkpoints are counted and deleted. A damaged one is left to people: it may be the
//! only trace of what went wrong, and `checkpoint rm` removes it.

use std::collections::{BTreeMap, BTreeSet};

use everstep_transport::protocol::Step;
pub use everstep_transport::protocol::checkpoint::Retention;

use crate::names::ObjectName;
use crate::store::StoredObject;

/// How old an object without a manifest must be before it is swept, seconds. A part is written
/// before its manifest, so a younger one may belong to a checkpoint under way.
pub const ORPHAN_AGE_SECONDS: u64 = 24 * 3_600;
/// How many of the newest claims are never swept.
const KEPT_CLAIMS: usize = 8;

/// The objects of a checkpoint in the order of their deletion. The manifest goes first, so that
/// whatever interrupts the deletion, no manifest ever lists a file that is gone.
pub fn deletion_order(listing: &[StoredObject], step: Step) -> Vec<ObjectName> {
    let of_step = listing.iter().map(|object| &object.name).filter(|it| it.step() == Some(step));
    let parts = of_step.filter(|name| matches!(name, ObjectName::Part(..))).cloned();
    std::iter::once(ObjectName::Manifest(step)).chain(parts).collect()
}

/// What is known of a manifest that is in the listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KnownManifest {
    /// It lists these parts.
    Lists(BTreeSet<ObjectName>),
    /// It was not read, or is damaged. Everything beside it stays.
    Unknown,
}

/// The objects that no manifest lists and no writer waits for, at this time in seconds of Unix
/// time: parts of checkpoints that were never completed, forgotten probes, and old claims.
/// `manifests` has those that were read. A checkpoint that is being written is `writing`.
pub fn orphans(
    listing: &[StoredObject],
    manifests: &BTreeMap<Step, KnownManifest>,
    writing: &BTreeSet<Step>,
    now: u64,
) -> Vec<ObjectName> {
    let has_manifest = |step: Step| {
        let name = ObjectName::Manifest(step);
        manifests.contains_key(&step) || listing.iter().any(|object| object.name == name)
    };
    let claims: BTreeSet<u64> = listing.iter().filter_map(|it| claim(&it.name)).collect();
    let oldest_kept = claims.iter().rev().nth(KEPT_CLAIMS - 1);
    let is_orphan = |object: &&StoredObject| match &object.name {
        ObjectName::Part(step, _) if writing.contains(step) => false,
        ObjectName::Part(step, _) => match manifests.get(step) {
            Some(KnownManifest::Lists(files)) => !files.contains(&object.name),
            Some(KnownManifest::Unknown) => false,
            None => !has_manifest(*step),
        },
        ObjectName::Claim(number) => oldest_kept.is_some_and(|oldest| number < oldest),
        ObjectName::Probe(_) => true,
        ObjectName::Manifest(_) | ObjectName::File(_) => false,
        ObjectName::Lines(_) | ObjectName::Events(_) => false,
    };
    let is_old = |object: &&StoredObject| object.changed.saturating_add(ORPHAN_AGE_SECONDS) <= now;
    listing.iter().filter(is_old).filter(is_orphan).map(|object| object.name.clone()).collect()
}

fn claim(name: &ObjectName) -> Option<u64> {
    match name {
        ObjectName::Claim(number) => Some(*number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::{Generation, WorkerId};
    use proptest::prelude::*;

    use super::*;
    use crate::names::PartName;

    fn steps(numbers: impl IntoIterator<Item = u64>) -> BTreeSet<Step> {
        numbers.into_iter().map(Step).collect()
    }

    fn part(step: u64, worker: u64) -> ObjectName {
        let name = PartName { generation: Generation(1), worker: WorkerId(worker) };
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
    fn parts_that_nothing_needs_are_orphans_after_a_day() {
        let day = ORPHAN_AGE_SECONDS;
        let listing = [
            object(ObjectName::Probe(1), 0),
            object(part(5, 1), 0),
            object(part(5, 2), 0),
            object(ObjectName::Manifest(Step(5)), 0),
            object(part(6, 1), 0),
            object(part(7, 1), 1),
            object(part(8, 1), 0),
            object(part(9, 1), 0),
            object(ObjectName::Manifest(Step(9)), 0),
            object(part(10, 1), 0),
            object(ObjectName::Manifest(Step(10)), 0),
        ];
        let lists = KnownManifest::Lists([part(5, 1)].into());
        let manifests = [(Step(5), lists), (Step(9), KnownManifest::Unknown)].into();
        let found = orphans(&listing, &manifests, &steps([8]), day);
        assert_eq!(found, [ObjectName::Probe(1), part(5, 2), part(6, 1)]);
        assert_eq!(orphans(&listing, &manifests, &steps([8]), day - 1), []);
    }

    #[test]
    fn old_claims_go_and_the_newest_stay() {
        let listing: Vec<_> = (1..=10).map(|number| object(ObjectName::Claim(number), 0)).collect();
        let found = orphans(&listing, &BTreeMap::new(), &BTreeSet::new(), ORPHAN_AGE_SECONDS);
        assert_eq!(found, [ObjectName::Claim(1), ObjectName::Claim(2)]);
    }
}

//! Which checkpoints of a run stay when there are newer ones. Pure.

use std::collections::BTreeSet;

use crate::protocol::ids::Step;

/// How many checkpoints a run keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The newest so many. One is kept even for 0.
    pub keep: u64,
    /// Every checkpoint of a step that this divides, forever. 0: none.
    pub keep_every: u64,
}

impl Retention {
    /// The steps whose checkpoints are to be deleted, of those that are `whole`. Pinned ones, those
    /// that are being read, and the newest one stay.
    pub fn expired(
        &self,
        whole: &BTreeSet<Step>,
        pinned: &BTreeSet<Step>,
        read: &BTreeSet<Step>,
    ) -> BTreeSet<Step> {
        let keep = usize::try_from(self.keep.max(1)).unwrap_or(usize::MAX);
        let is_kept_forever =
            |step: &Step| self.keep_every > 0 && step.0.is_multiple_of(self.keep_every);
        let older = whole.iter().rev().skip(keep);
        let is_expired =
            |step: &&Step| !is_kept_forever(step) && !pinned.contains(step) && !read.contains(step);
        older.filter(is_expired).copied().collect()
    }
}

//! The owners of parameter shards that a change of generation waits for, and for how long.
//!
//! A leader tells now and then how long it and earlier leaders have listened for each owner in
//! vain. A later leader goes on from there. No wall clock takes part: the clocks of coordinators
//! differ, and an owner cannot answer while no coordinator listens.

use std::collections::BTreeMap;

use everstep_transport::protocol::outcome::{EventKind, WaitNotice};
use everstep_transport::protocol::rejection::Rejection;
use everstep_transport::protocol::{Generation, WorkerId};
use rkyv::{Archive, Deserialize, Serialize};

use super::{EntryOutcome, State};

/// An owner that a change of generation waits for.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerWait {
    /// The owner's worker id.
    pub worker: WorkerId,
    /// How long leaders have heard some worker, and not this owner, milliseconds. A silence of all
    /// workers does not count.
    pub waited_ms: u64,
}

/// The owners that a change of generation waits for.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerWaits {
    /// How long leaders have listened for each owner in vain, milliseconds.
    owners: BTreeMap<WorkerId, u64>,
    /// When the wait for its first owner began, in milliseconds of Unix time. Later owners do not
    /// change it. It is for people, by the wall clock of the leader that told it first.
    since: Option<u64>,
}

impl OwnerWaits {
    /// Since when the wait lasts, milliseconds of Unix time.
    pub fn since(&self) -> Option<u64> {
        self.since
    }

    /// How long leaders have listened for this owner in vain, milliseconds. 0 if the wait is not
    /// for it.
    pub fn waited_ms(&self, worker: WorkerId) -> u64 {
        self.owners.get(&worker).copied().unwrap_or_default()
    }

    /// The owners that the wait is for, by id.
    pub(crate) fn workers(&self) -> impl Iterator<Item = WorkerId> {
        self.owners.keys().copied()
    }

    /// The wait is for these owners, or it is over if there are none.
    fn replace(&mut self, unix_ms: u64, owners: &[OwnerWait]) {
        self.since = (!owners.is_empty()).then(|| self.since.unwrap_or(unix_ms));
        self.owners = owners.iter().map(|owner| (owner.worker, owner.waited_ms)).collect();
    }
}

impl State {
    pub(super) fn await_owners(
        &mut self,
        unix_ms: u64,
        generation: Generation,
        owners: &[OwnerWait],
        awaited: Option<&WaitNotice>,
    ) -> Result<EntryOutcome, Rejection> {
        if generation != self.generation() {
            return Err(Rejection::ChangeIsOver(generation));
        }
        if owners.is_empty() {
            self.end_wait(unix_ms);
        } else if let Some(awaited) = awaited.filter(|_| self.awaited().since().is_none()) {
            self.events.note(unix_ms, EventKind::Waiting { awaited: awaited.clone() });
        }
        self.generation.awaited.replace(unix_ms, owners);
        Ok(EntryOutcome::Accepted)
    }

    /// The wait for owners is over, if there is one. An event tells of it.
    pub(super) fn end_wait(&mut self, unix_ms: u64) {
        let awaited = std::mem::take(&mut self.generation.awaited);
        if let Some(since) = awaited.since {
            let (owners, waited_ms) = (awaited.workers().collect(), unix_ms.saturating_sub(since));
            self.events.note(unix_ms, EventKind::WaitingOver { owners, waited_ms });
        }
    }
}

//! I9 and I14, and I1 as far as it is about leaders: all coordinators have one log, at all times.
//! It leads to one state and one history. A term has one leader. I8, as far as a worker hears that
//! it is lost, or a coordinator that it is removed.

use std::collections::{BTreeMap, BTreeSet};

use everstep_transport::protocol::outcome::EventKind;
use everstep_transport::protocol::{CoordinatorId, HistoryEntry, HistoryEvent, Term, WorkerId};

use super::records::equal_with_nan;
use super::{Breach, Invariant};

/// What all coordinators have applied and stated, in all their lives.
#[derive(Debug, Default)]
pub(super) struct Agreement {
    /// The leader of each term, and its life: a process forgets what it said in a term of an
    /// earlier one.
    leaders: BTreeMap<Term, (usize, u64)>,
    /// By index: the term and the digest of each entry that was applied.
    entries: BTreeMap<u64, (Term, blake3::Hash)>,
    /// By index: the digest of the state.
    states: BTreeMap<u64, blake3::Hash>,
    history: BTreeMap<u64, HistoryEntry>,
    /// The workers that are registered, and neither lost nor gone.
    present: BTreeSet<WorkerId>,
    /// The coordinators that the log lists, and the entry that listed them.
    listed: (u64, BTreeSet<CoordinatorId>),
    /// The coordinators that were told that the others do without them.
    dismissed: BTreeSet<CoordinatorId>,
}

impl Agreement {
    /// Whether no coordinator has applied an entry yet.
    pub(super) fn is_new(&self, index: u64) -> bool {
        !self.entries.contains_key(&index)
    }

    /// Whether a coordinator has reported what an entry has brought.
    pub(super) fn is_reported(&self, index: u64) -> bool {
        self.history.contains_key(&index)
    }

    /// A coordinator leads in a term.
    pub(super) fn leads(&mut self, life: (usize, u64), term: Term) -> Result<(), Breach> {
        let first = *self.leaders.entry(term).or_insert(life);
        if first == life {
            return Ok(());
        }
        let (one, other) = (first.0, life.0);
        Err((Invariant::I1, format!("coordinators {one} and {other} both lead in term {term}")))
    }

    /// A coordinator has applied an entry.
    pub(super) fn applied(&mut self, index: u64, term: Term, bytes: &[u8]) -> Result<(), Breach> {
        let entry = (term, blake3::hash(bytes));
        let first = *self.entries.entry(index).or_insert(entry);
        if first == entry {
            return Ok(());
        }
        let (was, _) = first;
        let seen = format!("entry {index} was applied as one of term {was}, and is of {term} now");
        Err((Invariant::I9, seen))
    }

    /// A coordinator that has applied the log up to an index has this state.
    pub(super) fn stands(&mut self, index: u64, state: &[u8]) -> Result<(), Breach> {
        let state = blake3::hash(state);
        if *self.states.entry(index).or_insert(state) == state {
            return Ok(());
        }
        Err((Invariant::I14, format!("two states of coordinators that have applied entry {index}")))
    }

    /// An entry of the log has brought this to the history of a coordinator.
    pub(super) fn brought(&mut self, shown: &HistoryEntry) -> Result<(), Breach> {
        if let Some(first) = self.history.get(&shown.index) {
            if equal_with_nan(first, shown) {
                return Ok(());
            }
            let seen = format!("one entry brings {first:?} here, and {shown:?} there");
            return Err((Invariant::I14, seen));
        }
        for event in &shown.events {
            if let HistoryEvent::Event(event) = event {
                match event.kind {
                    EventKind::Registered { worker, .. } | EventKind::Joined { worker } => {
                        self.present.insert(worker);
                    }
                    EventKind::Lost { worker, .. } | EventKind::Left { worker } => {
                        self.present.remove(&worker);
                    }
                    EventKind::Complete { .. } | EventKind::Failed { .. } => self.present.clear(),
                    _ => {}
                }
            }
        }
        self.history.insert(shown.index, shown.clone());
        Ok(())
    }

    /// The log lists these coordinators since entry `revision`.
    pub(super) fn listed(&mut self, revision: u64, ids: &[CoordinatorId]) {
        if revision > self.listed.0 {
            self.listed = (revision, ids.iter().copied().collect());
        }
    }

    /// A coordinator ends for good. The log must not list it any more.
    pub(super) fn dismissed(&mut self, id: CoordinatorId) -> Result<(), Breach> {
        self.dismissed.insert(id);
        if !self.is_listed(id) {
            return Ok(());
        }
        let seen = format!("coordinator {id} ends as removed, but the log lists it");
        Err((Invariant::I8, seen))
    }

    /// Whether the log lists a coordinator.
    pub(super) fn is_listed(&self, id: CoordinatorId) -> bool {
        self.listed.1.contains(&id)
    }

    /// Whether a coordinator has ended since the others do without it.
    pub(super) fn was_dismissed(&self, id: CoordinatorId) -> bool {
        self.dismissed.contains(&id)
    }

    /// A coordinator tells a worker that it is lost.
    pub(super) fn evicted(&self, worker: WorkerId) -> Result<(), Breach> {
        if !self.present.contains(&worker) {
            return Ok(());
        }
        let seen =
            format!("worker {worker} is told that it is lost, but the log knows it as present");
        Err((Invariant::I8, seen))
    }
}

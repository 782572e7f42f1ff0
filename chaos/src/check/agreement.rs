//! I9 and I14, and I1 as far as it is about leaders: the log is one, whoever applies it and
//! whenever; what it comes to is one state and one history; of a term there is one leader. I8, as
//! far as somebody is told that it is lost, or that it is a coordinator no more.

use std::collections::{BTreeMap, BTreeSet};

use everstep_transport::protocol::outcome::EventKind;
use everstep_transport::protocol::{CoordinatorId, Frame, News, Term, WorkerId};

use super::records::alike;
use super::{Found, Invariant};

/// What all coordinators have come to, in every life of theirs.
#[derive(Debug, Default)]
pub(super) struct Agreement {
    /// Who led in each term, and in which of its lives: what was said in a term may be forgotten.
    leaders: BTreeMap<Term, (usize, u64)>,
    /// By index: the term and the digest of each entry that was applied.
    entries: BTreeMap<u64, (Term, blake3::Hash)>,
    /// By index: the digest of the state.
    states: BTreeMap<u64, blake3::Hash>,
    frames: BTreeMap<u64, Frame>,
    /// The workers that are registered, and not gone.
    present: BTreeSet<WorkerId>,
    /// The coordinators that the log lists, and the entry since which it does.
    listed: (u64, BTreeSet<CoordinatorId>),
    /// Those that were told that the others do without them.
    dismissed: BTreeSet<CoordinatorId>,
}

impl Agreement {
    /// Whether nobody has applied an entry yet.
    pub(super) fn is_new(&self, index: u64) -> bool {
        !self.entries.contains_key(&index)
    }

    /// Whether somebody has told what an entry has brought.
    pub(super) fn has_brought(&self, index: u64) -> bool {
        self.frames.contains_key(&index)
    }

    /// A coordinator leads in a term.
    pub(super) fn leads(&mut self, life: (usize, u64), term: Term) -> Result<(), Found> {
        let first = *self.leaders.entry(term).or_insert(life);
        if first == life {
            return Ok(());
        }
        let (one, other) = (first.0, life.0);
        Err((Invariant::I1, format!("coordinators {one} and {other} both lead in term {term}")))
    }

    /// A coordinator has applied an entry.
    pub(super) fn applied(&mut self, index: u64, term: Term, bytes: &[u8]) -> Result<(), Found> {
        let entry = (term, blake3::hash(bytes));
        let first = *self.entries.entry(index).or_insert(entry);
        if first == entry {
            return Ok(());
        }
        let (was, _) = first;
        let seen = format!("entry {index} was applied as one of term {was}, and is of {term} now");
        Err((Invariant::I9, seen))
    }

    /// The state of a coordinator that has applied the log up to an index.
    pub(super) fn stands(&mut self, index: u64, state: &[u8]) -> Result<(), Found> {
        let state = blake3::hash(state);
        if *self.states.entry(index).or_insert(state) == state {
            return Ok(());
        }
        Err((Invariant::I14, format!("two states of coordinators that have applied entry {index}")))
    }

    /// What an entry has brought to the history of a coordinator.
    pub(super) fn brought(&mut self, frame: &Frame) -> Result<(), Found> {
        if let Some(first) = self.frames.get(&frame.index) {
            if alike(first, frame) {
                return Ok(());
            }
            let seen = format!("one entry brings {first:?} here, and {frame:?} there");
            return Err((Invariant::I14, seen));
        }
        for news in &frame.news {
            if let News::Event(event) = news {
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
        self.frames.insert(frame.index, frame.clone());
        Ok(())
    }

    /// The log lists these coordinators since this entry, as somebody has applied it.
    pub(super) fn listed(&mut self, revision: u64, ids: &[CoordinatorId]) {
        if revision > self.listed.0 {
            self.listed = (revision, ids.iter().copied().collect());
        }
    }

    /// A coordinator ends for good: only if the log lists it no more.
    pub(super) fn dismissed(&mut self, id: CoordinatorId) -> Result<(), Found> {
        self.dismissed.insert(id);
        if !self.is_listed(id) {
            return Ok(());
        }
        let seen = format!("coordinator {id} ends as removed; the log lists it");
        Err((Invariant::I8, seen))
    }

    /// Whether the log lists a coordinator.
    pub(super) fn is_listed(&self, id: CoordinatorId) -> bool {
        self.listed.1.contains(&id)
    }

    /// Whether a coordinator has ended so.
    pub(super) fn was_dismissed(&self, id: CoordinatorId) -> bool {
        self.dismissed.contains(&id)
    }

    /// A coordinator tells a worker that it is lost.
    pub(super) fn evicted(&self, worker: WorkerId) -> Result<(), Found> {
        if !self.present.contains(&worker) {
            return Ok(());
        }
        let seen = format!("worker {worker} is told that it is lost; the log knows it as present");
        Err((Invariant::I8, seen))
    }
}

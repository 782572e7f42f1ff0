//! From the log of one coordinator to a cluster of that one alone, when most disks are lost.
//!
//! In: what one replica's disk holds. Out: the same log with this replica as its only member, and
//! one entry more, which says so and shuts the others out. Entries that only the lost coordinators
//! had are gone, though they may have been agreed on; entries here that may not have been agreed on
//! count from now on, as if this replica had been elected. It knows no files and no sockets.
//!
//! The new term is far above the old one. Workers obey the highest term: should the lost
//! coordinators come back after all, they do not lead the workers of the recovered cluster.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use everstep_transport::protocol::{CoordinatorId, CoordinatorView, Term};

use crate::raft::{self, HardState, Kept, Kind, Members, Place, ReplicaId};
use crate::seat::{self, SeatError};
use crate::state::{Command, Entry, State};

/// How far the new term is above the old one: more elections than lost coordinators hold.
const TERMS: u64 = 1 << 20;

/// Why a log cannot be gone on from.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// The coordinator was joining, and has nothing of the log.
    #[error("its log is empty: it had not learned yet what the others have agreed on")]
    Empty,
    /// The coordinator is none any more.
    #[error("it was removed from the cluster before the others were lost")]
    Removed,
    /// No other coordinator is needed.
    #[error("it is the only coordinator of its cluster: nothing is lost with the others")]
    Alone,
    /// Its log cannot be read.
    #[error(transparent)]
    Log(#[from] SeatError),
}

/// What a log holds, and what would become of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prospect {
    /// Whose log it is.
    pub survivor: CoordinatorId,
    /// The coordinators that are given up.
    pub lost: Vec<CoordinatorView>,
    /// The last entry.
    pub last: Place,
    /// Up to which index entries are known to be agreed on.
    pub agreed: u64,
    /// When the newest entry was proposed, milliseconds of Unix time, if there is one.
    pub newest_unix_ms: Option<u64>,
}

/// What a log holds.
///
/// # Errors
/// [`RecoveryError`].
pub fn prospect(kept: &Kept, survivor: CoordinatorId) -> Result<Prospect, RecoveryError> {
    if kept.snapshot.place.index == 0 {
        return Err(RecoveryError::Empty);
    }
    let (state, newest_unix_ms) = replay(kept)?;
    let mut lost = state.coordinators();
    let before = lost.len();
    lost.retain(|view| view.id != survivor);
    if lost.len() == before {
        return Err(RecoveryError::Removed);
    }
    let own = ReplicaId(survivor);
    let changes = kept.entries.iter().any(|entry| entry.kind == Kind::Members);
    if lost.is_empty() && kept.snapshot.members.are_only(own) && !changes {
        return Err(RecoveryError::Alone);
    }
    let agreed = kept.hard_state.commit;
    Ok(Prospect { survivor, lost, last: kept.last(), agreed, newest_unix_ms })
}

/// The log with this coordinator alone.
pub fn recovered(mut kept: Kept, survivor: CoordinatorId, unix_ms: u64) -> Kept {
    let own = ReplicaId(survivor);
    kept.snapshot.members = Members { voters: vec![own], ..Members::default() };
    // What has changed the members since then counts no more.
    for entry in kept.entries.iter_mut().filter(|entry| entry.kind == Kind::Members) {
        (entry.kind, entry.bytes) = (Kind::Command, Vec::new());
    }
    let term = Term(kept.hard_state.term.0 + TERMS);
    let place = Place { index: kept.last().index + 1, term };
    let bytes = seat::encode(&Entry { unix_ms, command: Command::Recover { survivor } });
    kept.entries.push_back(raft::Entry { place, kind: Kind::Command, bytes });
    kept.hard_state = HardState { term, vote: None, commit: place.index };
    kept
}

/// What the whole log comes to, and when its newest entry was proposed.
fn replay(kept: &Kept) -> Result<(State, Option<u64>), SeatError> {
    let bytes = &kept.snapshot.bytes;
    let mut state = if bytes.is_empty() { State::default() } else { State::decode(bytes)? };
    let mut newest = state.events().last().map(|event| event.unix_ms);
    for raft::Entry { place, kind, bytes } in &kept.entries {
        // Entries that the snapshot stands for may be kept for others.
        let is_new = place.index > kept.snapshot.place.index;
        if !is_new || *kind == Kind::Members || bytes.is_empty() {
            continue;
        }
        let entry = seat::decode(bytes)
            .map_err(|problem| SeatError::Entry { index: place.index, problem })?;
        state.apply(place.index, place.term, &entry);
        newest = newest.max(Some(entry.unix_ms));
    }
    Ok((state, newest))
}

#[cfg(test)]
mod tests;

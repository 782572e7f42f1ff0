//! From the log of one coordinator to a cluster of that one alone, when most disks are lost.
//!
//! In: the content of one replica's disk. Out: the same log with this replica as its only member.
//! One more entry says so and shuts the others out. Entries that only the lost coordinators had are
//! gone, though the cluster may have agreed on them. Entries here that may not have been agreed on
//! count from now on, as if this replica had been elected. This module knows no files and no
//! sockets.
//!
//! The new term is far above the old one. Workers obey the highest term. If the lost coordinators
//! come back after all, they do not lead the workers of the recovered cluster.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use everstep_transport::protocol::{CoordinatorId, CoordinatorView, Term};

use crate::node::NodeError;
use crate::raft::{self, DurableState, EntryKind, HardState, LogPosition, Members, ReplicaId};
use crate::state::{Command, CommandEntry, LOG_FORMATS, State};

/// How far the new term is above the old one. The lost coordinators cannot hold so many elections.
const TERMS: u64 = 1 << 20;

/// Why the cluster cannot go on from a log.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// The coordinator was joining, and has no part of the log yet.
    #[error("its log is empty: it had not learned yet what the others have agreed on")]
    Empty,
    /// The cluster has removed this coordinator.
    #[error("it was removed from the cluster before the others were lost")]
    Removed,
    /// It is the only coordinator, so it needs no recovery.
    #[error("it is the only coordinator of its cluster: nothing is lost with the others")]
    Alone,
    /// Its log does not decode.
    #[error(transparent)]
    Log(#[from] NodeError),
}

/// The content of a log, and the outcome of a recovery from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryPlan {
    /// The coordinator that the log belongs to.
    pub survivor: CoordinatorId,
    /// The coordinators that the recovery gives up.
    pub lost: Vec<CoordinatorView>,
    /// The place of the last entry.
    pub last: LogPosition,
    /// The index up to which entries are known to be agreed on.
    pub agreed: u64,
    /// When the newest entry was proposed, in milliseconds of Unix time. None without an entry.
    pub newest_unix_ms: Option<u64>,
}

/// Reads a log, and tells what a recovery from it would come to.
///
/// # Errors
/// [`RecoveryError`] if the cluster cannot go on from this log.
pub fn plan(kept: &DurableState, survivor: CoordinatorId) -> Result<RecoveryPlan, RecoveryError> {
    if kept.snapshot.position.index == 0 {
        return Err(RecoveryError::Empty);
    }
    let (state, newest_unix_ms) = replay(kept)?;
    let mut lost = state.coordinators();
    let before = lost.len();
    lost.retain(|view| view.id != survivor);
    if lost.len() == before {
        return Err(RecoveryError::Removed);
    }
    let own = ReplicaId::from(survivor);
    let changes = kept.entries.iter().any(|entry| entry.kind == EntryKind::Members);
    if lost.is_empty() && kept.snapshot.members.are_only(own) && !changes {
        return Err(RecoveryError::Alone);
    }
    let agreed = kept.hard_state.commit;
    Ok(RecoveryPlan { survivor, lost, last: kept.last(), agreed, newest_unix_ms })
}

/// Turns a log into that of a cluster with this coordinator alone.
pub fn recovered(mut kept: DurableState, survivor: CoordinatorId, unix_ms: u64) -> DurableState {
    let own = ReplicaId::from(survivor);
    kept.snapshot.members = Members { voters: vec![own], ..Members::default() };
    // Later changes of the members no longer count.
    for entry in kept.entries.iter_mut().filter(|entry| entry.kind == EntryKind::Members) {
        (entry.kind, entry.bytes) = (EntryKind::Command, Vec::new());
    }
    let term = Term(kept.hard_state.term.0 + TERMS);
    let position = LogPosition { index: kept.last().index + 1, term };
    let bytes = CommandEntry { unix_ms, command: Command::Recover { survivor } }
        .encode(*LOG_FORMATS.start());
    kept.entries.push_back(raft::RaftEntry { position, kind: EntryKind::Command, bytes });
    kept.hard_state = HardState { term, vote: None, commit: position.index };
    kept
}

/// The state after the whole log, and when its newest entry was proposed.
fn replay(kept: &DurableState) -> Result<(State, Option<u64>), NodeError> {
    let bytes = &kept.snapshot.bytes;
    let mut state = match bytes.is_empty() {
        true => State::default(),
        false => State::decode(bytes, *LOG_FORMATS.end())?,
    };
    let mut newest = state.events().last().map(|event| event.unix_ms);
    for raft::RaftEntry { position, kind, bytes } in &kept.entries {
        // The log may keep entries that the snapshot stands for, since other replicas need them.
        let is_new = position.index > kept.snapshot.position.index;
        if !is_new || *kind == EntryKind::Members || bytes.is_empty() {
            continue;
        }
        let entry = CommandEntry::decode(bytes, *LOG_FORMATS.end())
            .map_err(|problem| NodeError::Entry { index: position.index, problem })?;
        state.apply(position.index, position.term, &entry);
        newest = newest.max(Some(entry.unix_ms));
    }
    Ok((state, newest))
}

#[cfg(test)]
mod tests;

//! Where a cluster's coordinators may be made to fail: how it is founded, how one joins, what
//! replicas say to each other, what one of them has on its way to the disk, and how nodes are
//! admitted that have a token.

use super::find;
use crate::raft::{self, Batch};

/// See the module.
pub const AMONG: &[&str] = &[
    // One that joins has a certificate; has the keys; has half of its directory, and all of it; was
    // told its id; has an empty log; has written that it is one of them. One that founds a cluster
    // has half of its directory; has its log; has all of it.
    "enrolled",
    "keyed",
    "laying_out",
    "laid_out",
    "told",
    "begun",
    "admitted",
    // One that leads is asked for all that.
    "fetch_keys.receive",
    "keys.send",
    "join.receive",
    "joined.send",
    // The cluster begins, and one more is to be one of them: see the entries of one alone.
    "propose.found",
    "appended.found",
    "applied.found",
    "propose.coordinator",
    "appended.coordinator",
    "applied.coordinator",
    // Another one is to lead.
    "summons.receive",
    "summons.send",
    "vote.receive",
    "vote.send",
    "ballot.receive",
    "ballot.send",
    // A batch goes from the leader to a follower's disk, and is applied.
    "entries.send",
    "entries.receive",
    "batch.write",
    "batch.written",
    "entries_answer.send",
    "entries_answer.receive",
    "batch.applied",
    // A snapshot does, and what happened before it.
    "snapshot.send",
    "snapshot.receive",
    "snapshot.write",
    "snapshot.written",
    "snapshot.installed",
    "fetch_history.send",
    "fetch_history.receive",
    "history.send",
    "history.receive",
    "filled",
    // Whoever was removed is needed no more, and all are to know: see the entries of one alone.
    "propose.shut_out",
    "appended.shut_out",
    "applied.shut_out",
    // A node that has a token was judged, and a use of the token is to be spent; it is told.
    "admission.receive",
    "propose.spend_token",
    "appended.spend_token",
    "applied.spend_token",
    "admission.send",
];

/// The point of what one replica says to another, if it has one.
pub(super) fn of_raft(bytes: &[u8], way: &str) -> Option<&'static str> {
    find(raft::Message::decode(bytes).ok()?.name(), way)
}

/// The points of a batch at one of its stages.
pub(super) fn of_batch(batch: &Batch, stage: &str) -> impl Iterator<Item = &'static str> {
    let entries = (!batch.entries.is_empty()).then(|| find("batch", stage));
    entries.into_iter().chain(anothers(batch).then(|| find("snapshot", stage))).flatten()
}

/// Whether a batch holds a snapshot of another replica: it stands for the whole log.
pub(super) fn anothers(batch: &Batch) -> bool {
    batch.snapshot.as_ref().is_some_and(|snapshot| snapshot.place == batch.base)
}

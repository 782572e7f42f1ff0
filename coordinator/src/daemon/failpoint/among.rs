//! Failpoints of a cluster's coordinators: how one founds it, how another one joins, the messages
//! between replicas, the batches on their way to the disk, and the admission of nodes that have a
//! token.

use super::find;
use crate::raft::{self, WriteBatch};

/// The points of a coordinator among several.
pub const AMONG: &[&str] = &[
    // The steps of a joiner. It has a certificate, the keys, half of its directory, all of it, its
    // id, an empty log, and the note that it is a coordinator. A founder has half of its directory,
    // its log, and all of its directory.
    "enrolled",
    "keyed",
    "laying_out",
    "laid_out",
    "told",
    "begun",
    "admitted",
    // A leader serves a joiner's requests.
    "fetch_keys.receive",
    "keys.send",
    "join.receive",
    "joined.send",
    // The cluster begins, and one more coordinator joins. See the entries of one coordinator alone.
    "propose.found",
    "appended.found",
    "applied.found",
    "propose.coordinator",
    "appended.coordinator",
    "applied.coordinator",
    // Another coordinator has to lead.
    "timeout_now.receive",
    "timeout_now.send",
    "vote.receive",
    "vote.send",
    "vote_answer.receive",
    "vote_answer.send",
    // A batch goes from the leader to a follower's disk, and is applied.
    "entries.send",
    "entries.receive",
    "batch.write",
    "batch.written",
    "entries_answer.send",
    "entries_answer.receive",
    "batch.applied",
    // A snapshot goes there, and the history before it.
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
    // The cluster no longer needs a removed coordinator, and all have to know. See the entries of
    // one coordinator alone.
    "propose.shut_out",
    "appended.shut_out",
    "applied.shut_out",
    // The gatekeeper has judged a node that has a token, and has to spend a use of it. Then it
    // answers.
    "admission.receive",
    "propose.spend_token",
    "appended.spend_token",
    "applied.spend_token",
    "admission.send",
];

/// The point of a message between replicas, if it has one.
pub(super) fn of_raft(bytes: &[u8], way: &str) -> Option<&'static str> {
    find(raft::Message::decode(bytes).ok()?.name(), way)
}

/// The points of a batch at one of its stages.
pub(super) fn of_batch(batch: &WriteBatch, stage: &str) -> impl Iterator<Item = &'static str> {
    let entries = (!batch.entries.is_empty()).then(|| find("batch", stage));
    entries.into_iter().chain(anothers(batch).then(|| find("snapshot", stage))).flatten()
}

/// Whether a batch holds a snapshot of another replica, which stands for the whole log.
pub(super) fn anothers(batch: &WriteBatch) -> bool {
    batch.snapshot.as_ref().is_some_and(|snapshot| snapshot.position == batch.base)
}

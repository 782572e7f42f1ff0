//! Which messages of peers reach Raft: those that a sound peer could have sent.
//!
//! Raft stops the process over an impossible message, such as a commit of an entry that the log
//! lacks. A peer can send one all the same: its disk was lost or damaged, or it runs another
//! program. So the replica compares each message with its own knowledge, and refuses it if Raft
//! could trip over it.

use everstep_transport::protocol::Term;

use super::batch::{EntryKind, LogPosition, MAX_NUMBER, RaftEntry, Snapshot};
use super::members::{NO_REPLICA, ReplicaId};
use super::message::{Message, MessageKind};
use super::settings::{MAX_CHANGE_BYTES, MAX_ENTRY_BYTES, MAX_MESSAGE_BYTES};
use super::{Replica, parse_change};

/// The objection of a replica that has lost entries that it acknowledged.
pub(super) const FORGOTTEN: &str = "a commit of what this replica has not";
/// The longest context. A context holds Raft's own words, or the number of a read.
const MAX_CONTEXT_BYTES: usize = 32;

impl Replica {
    /// The reason to refuse a message. None if Raft may have it.
    pub(super) fn objection(&self, from: ReplicaId, message: &Message) -> Option<&'static str> {
        let numbers = [message.term, message.index, message.commit, message.reject_hint];
        if from == self.id || from == NO_REPLICA {
            return Some("it is from no other replica");
        }
        if message.term == 0 || numbers.iter().any(|number| *number > MAX_NUMBER) {
            return Some("a number that cannot be");
        }
        if message.context.len() > MAX_CONTEXT_BYTES {
            return Some("a context that no replica gives");
        }
        match message.kind {
            MessageKind::Append => objection_to_entries(message),
            MessageKind::Snapshot => self.objection_to_snapshot(message),
            _ if !message.entries.is_empty() || message.snapshot.is_some() => {
                Some("it carries what its kind does not")
            }
            MessageKind::Heartbeat => self.objection_to_heartbeat(message),
            MessageKind::AppendResponse => self.objection_to_response(from, message),
            MessageKind::TimeoutNow
            | MessageKind::Vote
            | MessageKind::VoteResponse
            | MessageKind::PreVote
            | MessageKind::PreVoteResponse
            | MessageKind::HeartbeatResponse => None,
        }
    }

    /// A leader asks a replica to commit only what that replica holds, unless the replica has lost
    /// it.
    fn objection_to_heartbeat(&self, message: &Message) -> Option<&'static str> {
        let raft = &self.node.raft;
        let lost = message.term >= raft.term && message.commit > raft.raft_log.last_index();
        lost.then_some(FORGOTTEN)
    }

    fn objection_to_response(&self, from: ReplicaId, message: &Message) -> Option<&'static str> {
        let raft = &self.node.raft;
        let matched = self.matched(from).filter(|_| self.leads());
        // Raft would send the entries again. The replica may have lost its votes with them. The
        // next heartbeat tells it which entries it had, and it ends.
        if message.reject
            && message.term == raft.term
            && matched.is_some_and(|matched| message.index <= matched)
        {
            return Some("it lacks what it has acknowledged");
        }
        let ahead = !message.reject
            && message.term == raft.term
            && message.index > raft.raft_log.last_index();
        ahead.then_some("it holds what it was not sent")
    }

    fn objection_to_snapshot(&self, message: &Message) -> Option<&'static str> {
        let Some(Snapshot { position, members, .. }) = &message.snapshot else {
            return Some("a snapshot without one");
        };
        if !message.entries.is_empty() {
            return Some("it carries what its kind does not");
        }
        if !exists(*position) || position.index > MAX_NUMBER || position.term.0 > message.term {
            return Some("a place that cannot be");
        }
        if !members.is_sound() || !members.contain(self.id) {
            return Some("members that cannot be, or not this one");
        }
        let log = &self.node.raft.raft_log;
        let known = position.index <= log.committed && position.index >= log.first_index();
        (known && !log.match_term(position.index, position.term.0)).then_some("agreed on otherwise")
    }
}

/// Checks that the entries follow each other, and follow the place that the message names.
fn objection_to_entries(message: &Message) -> Option<&'static str> {
    if message.snapshot.is_some() {
        return Some("it carries what its kind does not");
    }
    let before = LogPosition { index: message.index, term: Term(message.log_term) };
    if !exists(before) || before.term.0 > message.term {
        return Some("a place that cannot be");
    }
    let (mut previous, mut bytes) = (before, 0);
    for RaftEntry { position, kind, bytes: content } in &message.entries {
        let follows = position.index == previous.index + 1 && position.term >= previous.term;
        if !follows || position.term.0 > message.term {
            return Some("entries that do not follow each other");
        }
        bytes += content.len();
        if content.len() > MAX_ENTRY_BYTES || bytes > MAX_MESSAGE_BYTES + MAX_ENTRY_BYTES {
            return Some("more than a message may carry");
        }
        let changes = *kind == EntryKind::Members;
        if changes && (content.len() > MAX_CHANGE_BYTES || parse_change(content).is_none()) {
            return Some("a change of members that is none");
        }
        previous = *position;
    }
    None
}

/// Whether an entry can stand at this place.
fn exists(position: LogPosition) -> bool {
    position.index > 0 && position.term > Term(0)
}

//! The messages between replicas: Raft's own, without those that no peer may send.
//!
//! A message names neither its sender nor its receiver: the link has proved both. The vocabulary
//! has no local events, forwarded proposals or forwarded reads. This module validates and bounds
//! the bytes of a peer. `admit.rs` checks whether their content is possible.

// The derive does not carry the docs of fields over to the archived types.
#![allow(missing_docs)]

use ::raft::eraftpb::{self, MessageType};
use rkyv::rancor::Error as Failure;
use rkyv::util::AlignedVec;
use rkyv::{Archive, Deserialize, Serialize};

use super::batch::{RaftEntry, Snapshot};
use super::members::ReplicaId;

/// A message from one replica to another. All messages but snapshots go over one stream, in order.
/// A snapshot is large, and goes by itself.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Message {
    pub(super) kind: MessageKind,
    pub(super) term: u64,
    pub(super) log_term: u64,
    pub(super) index: u64,
    pub(super) commit: u64,
    pub(super) commit_term: u64,
    pub(super) reject: bool,
    pub(super) reject_hint: u64,
    pub(super) context: Vec<u8>,
    pub(super) entries: Vec<RaftEntry>,
    pub(super) snapshot: Option<Snapshot>,
    /// The sender's tick, in microseconds.
    pub(super) tick_us: u32,
    /// In a request: the sender's clock, in microseconds. In its answer: the same number. Otherwise
    /// 0.
    pub(super) asked_us: u64,
}

/// The kind of a message.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageKind {
    Append,
    AppendResponse,
    Vote,
    VoteResponse,
    PreVote,
    PreVoteResponse,
    Heartbeat,
    HeartbeatResponse,
    Snapshot,
    TimeoutNow,
}

/// Bytes that do not decode to a message.
#[derive(Debug, thiserror::Error)]
#[error("bytes that are not a message between replicas: {0}")]
pub struct MalformedMessage(Failure);

impl Message {
    /// Whether it carries a snapshot.
    pub fn is_snapshot(&self) -> bool {
        self.kind == MessageKind::Snapshot
    }

    /// Its name at a failpoint, where a test may make a replica fail that sends or hears it.
    #[cfg(feature = "failpoints")]
    pub(crate) fn name(&self) -> &'static str {
        match self.kind {
            MessageKind::Append if !self.entries.is_empty() => "entries",
            MessageKind::AppendResponse => "entries_answer",
            MessageKind::Vote => "vote",
            MessageKind::VoteResponse => "vote_answer",
            MessageKind::Snapshot => "snapshot",
            MessageKind::TimeoutNow => "timeout_now",
            _ => "",
        }
    }

    /// Whether a leader asks with it for an election at once.
    pub(super) fn is_timeout_now(&self) -> bool {
        self.kind == MessageKind::TimeoutNow
    }

    /// Whether only a leader sends it.
    pub(super) fn is_of_leader(&self) -> bool {
        matches!(self.kind, MessageKind::Append | MessageKind::Heartbeat | MessageKind::Snapshot)
    }

    /// In a PreVote request: the sender's term, which is one less than the term it asks for.
    pub(super) fn term_of_asker(&self) -> Option<u64> {
        (self.kind == MessageKind::PreVote).then(|| self.term - 1)
    }

    /// The bytes of the message.
    pub fn encode(&self) -> AlignedVec {
        rkyv::to_bytes::<Failure>(self).expect("a message is finite and needs no shared pointers")
    }

    /// Decodes a message. The caller has bounded `bytes`, and nothing inside can be larger.
    ///
    /// # Errors
    /// [`MalformedMessage`] if the bytes are no message.
    pub fn decode(bytes: &[u8]) -> Result<Self, MalformedMessage> {
        let mut aligned = AlignedVec::<16>::with_capacity(bytes.len());
        aligned.extend_from_slice(bytes);
        rkyv::from_bytes::<Self, Failure>(&aligned).map_err(MalformedMessage)
    }

    /// The message of this replica's Raft, with its receiver. None for a message that no peer may
    /// get.
    pub(super) fn from_raft(mut message: eraftpb::Message) -> Option<(ReplicaId, Self)> {
        let kind = MessageKind::from_raft(message.get_msg_type())?;
        let snapshot =
            (kind == MessageKind::Snapshot).then(|| Snapshot::from_raft(message.get_snapshot()));
        let said = Self {
            kind,
            term: message.term,
            log_term: message.log_term,
            index: message.index,
            commit: message.commit,
            commit_term: message.commit_term,
            reject: message.reject,
            reject_hint: message.reject_hint,
            context: message.take_context().to_vec(),
            entries: message.get_entries().iter().map(RaftEntry::from_raft).collect(),
            snapshot,
            tick_us: 0,
            asked_us: 0,
        };
        Some((ReplicaId(message.to), said))
    }

    /// The message as this replica's Raft takes it.
    pub(super) fn to_raft(&self, from: ReplicaId, to: ReplicaId) -> eraftpb::Message {
        let mut message = eraftpb::Message::default();
        message.set_msg_type(self.kind.to_raft());
        message.from = from.0;
        message.to = to.0;
        message.term = self.term;
        message.log_term = self.log_term;
        message.index = self.index;
        message.commit = self.commit;
        message.commit_term = self.commit_term;
        message.reject = self.reject;
        message.reject_hint = self.reject_hint;
        message.context = self.context.clone().into();
        message.set_entries(self.entries.iter().map(RaftEntry::to_raft).collect());
        if let Some(snapshot) = &self.snapshot {
            message.set_snapshot(snapshot.to_raft());
        }
        message
    }
}

impl MessageKind {
    fn from_raft(kind: MessageType) -> Option<Self> {
        Some(match kind {
            MessageType::MsgAppend => Self::Append,
            MessageType::MsgAppendResponse => Self::AppendResponse,
            MessageType::MsgRequestVote => Self::Vote,
            MessageType::MsgRequestVoteResponse => Self::VoteResponse,
            MessageType::MsgRequestPreVote => Self::PreVote,
            MessageType::MsgRequestPreVoteResponse => Self::PreVoteResponse,
            MessageType::MsgHeartbeat => Self::Heartbeat,
            MessageType::MsgHeartbeatResponse => Self::HeartbeatResponse,
            MessageType::MsgSnapshot => Self::Snapshot,
            MessageType::MsgTimeoutNow => Self::TimeoutNow,
            _ => return None,
        })
    }

    fn to_raft(self) -> MessageType {
        match self {
            Self::Append => MessageType::MsgAppend,
            Self::AppendResponse => MessageType::MsgAppendResponse,
            Self::Vote => MessageType::MsgRequestVote,
            Self::VoteResponse => MessageType::MsgRequestVoteResponse,
            Self::PreVote => MessageType::MsgRequestPreVote,
            Self::PreVoteResponse => MessageType::MsgRequestPreVoteResponse,
            Self::Heartbeat => MessageType::MsgHeartbeat,
            Self::HeartbeatResponse => MessageType::MsgHeartbeatResponse,
            Self::Snapshot => MessageType::MsgSnapshot,
            Self::TimeoutNow => MessageType::MsgTimeoutNow,
        }
    }
}

#[cfg(test)]
impl Message {
    /// A message of each kind with its name, for the golden file.
    pub(crate) fn examples() -> Vec<(String, Self)> {
        use super::batch::{EntryKind, LogPosition};
        use super::members::Members;

        let position = LogPosition { index: 8, term: everstep_transport::protocol::Term(4) };
        let entry = |kind| RaftEntry { position, kind, bytes: vec![5, 6] };
        let [one, two, three] = [1, 2, 3].map(ReplicaId);
        let members =
            Members { voters: vec![one, two], learners: vec![three], outgoing: vec![one] };
        let of_kind = |kind| {
            let is_append = kind == MessageKind::Append;
            let entries = [EntryKind::Command, EntryKind::Members].map(entry);
            let members = members.clone();
            let message = Self {
                kind,
                term: 4,
                log_term: 3,
                index: 7,
                commit: 6,
                commit_term: 2,
                reject: kind == MessageKind::AppendResponse,
                reject_hint: 5,
                context: vec![9, 1],
                entries: if is_append { entries.to_vec() } else { Vec::new() },
                snapshot: (kind == MessageKind::Snapshot).then(|| Snapshot {
                    position,
                    members,
                    bytes: vec![7],
                }),
                tick_us: 100_000,
                asked_us: 1 << 40,
            };
            (format!("{kind:?}"), message)
        };
        let kinds = [
            MessageKind::Append,
            MessageKind::AppendResponse,
            MessageKind::Vote,
            MessageKind::VoteResponse,
            MessageKind::PreVote,
            MessageKind::PreVoteResponse,
            MessageKind::Heartbeat,
            MessageKind::HeartbeatResponse,
            MessageKind::Snapshot,
            MessageKind::TimeoutNow,
        ];
        kinds.map(of_kind).to_vec()
    }
}

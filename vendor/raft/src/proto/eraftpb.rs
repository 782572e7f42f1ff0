//! The messages of `eraftpb.proto`, version 0.7 of `raft-proto`, as plain structs, with the methods
//! that protobuf 2 generates for them as far as they are used. Written by hand from that file.

#![allow(missing_docs)]

use bytes::Bytes;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EntryType {
    #[default]
    EntryNormal = 0,
    EntryConfChange = 1,
    EntryConfChangeV2 = 2,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MessageType {
    #[default]
    MsgHup = 0,
    MsgBeat = 1,
    MsgPropose = 2,
    MsgAppend = 3,
    MsgAppendResponse = 4,
    MsgRequestVote = 5,
    MsgRequestVoteResponse = 6,
    MsgSnapshot = 7,
    MsgHeartbeat = 8,
    MsgHeartbeatResponse = 9,
    MsgUnreachable = 10,
    MsgSnapStatus = 11,
    MsgCheckQuorum = 12,
    MsgTransferLeader = 13,
    MsgTimeoutNow = 14,
    MsgReadIndex = 15,
    MsgReadIndexResp = 16,
    MsgRequestPreVote = 17,
    MsgRequestPreVoteResponse = 18,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ConfChangeTransition {
    #[default]
    Auto = 0,
    Implicit = 1,
    Explicit = 2,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ConfChangeType {
    #[default]
    AddNode = 0,
    RemoveNode = 1,
    AddLearnerNode = 2,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    pub entry_type: EntryType,
    pub term: u64,
    pub index: u64,
    pub data: Bytes,
    pub context: Bytes,
    pub sync_log: bool,
}

impl Entry {
    pub fn get_entry_type(&self) -> EntryType {
        self.entry_type
    }

    pub fn set_entry_type(&mut self, value: EntryType) {
        self.entry_type = value;
    }

    pub fn get_term(&self) -> u64 {
        self.term
    }

    pub fn set_term(&mut self, value: u64) {
        self.term = value;
    }

    pub fn get_index(&self) -> u64 {
        self.index
    }

    pub fn set_index(&mut self, value: u64) {
        self.index = value;
    }

    pub fn get_data(&self) -> &[u8] {
        &self.data
    }

    pub fn set_data(&mut self, value: Bytes) {
        self.data = value;
    }

    pub fn mut_data(&mut self) -> &mut Bytes {
        &mut self.data
    }

    pub fn take_data(&mut self) -> Bytes {
        std::mem::take(&mut self.data)
    }

    pub fn get_context(&self) -> &[u8] {
        &self.context
    }

    pub fn set_context(&mut self, value: Bytes) {
        self.context = value;
    }

    pub fn mut_context(&mut self) -> &mut Bytes {
        &mut self.context
    }

    pub fn take_context(&mut self) -> Bytes {
        std::mem::take(&mut self.context)
    }

    pub fn get_sync_log(&self) -> bool {
        self.sync_log
    }

    pub fn set_sync_log(&mut self, value: bool) {
        self.sync_log = value;
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct SnapshotMetadata {
    pub conf_state: ConfState,
    pub index: u64,
    pub term: u64,
}

impl SnapshotMetadata {
    pub fn get_conf_state(&self) -> &ConfState {
        &self.conf_state
    }

    pub fn set_conf_state(&mut self, value: ConfState) {
        self.conf_state = value;
    }

    pub fn mut_conf_state(&mut self) -> &mut ConfState {
        &mut self.conf_state
    }

    pub fn take_conf_state(&mut self) -> ConfState {
        std::mem::take(&mut self.conf_state)
    }

    pub fn get_index(&self) -> u64 {
        self.index
    }

    pub fn set_index(&mut self, value: u64) {
        self.index = value;
    }

    pub fn get_term(&self) -> u64 {
        self.term
    }

    pub fn set_term(&mut self, value: u64) {
        self.term = value;
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    pub data: Bytes,
    pub metadata: SnapshotMetadata,
}

impl Snapshot {
    pub fn get_data(&self) -> &[u8] {
        &self.data
    }

    pub fn set_data(&mut self, value: Bytes) {
        self.data = value;
    }

    pub fn mut_data(&mut self) -> &mut Bytes {
        &mut self.data
    }

    pub fn take_data(&mut self) -> Bytes {
        std::mem::take(&mut self.data)
    }

    pub fn get_metadata(&self) -> &SnapshotMetadata {
        &self.metadata
    }

    pub fn set_metadata(&mut self, value: SnapshotMetadata) {
        self.metadata = value;
    }

    pub fn mut_metadata(&mut self) -> &mut SnapshotMetadata {
        &mut self.metadata
    }

    pub fn take_metadata(&mut self) -> SnapshotMetadata {
        std::mem::take(&mut self.metadata)
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Message {
    pub msg_type: MessageType,
    pub to: u64,
    pub from: u64,
    pub term: u64,
    pub log_term: u64,
    pub index: u64,
    pub entries: Vec<Entry>,
    pub commit: u64,
    pub commit_term: u64,
    pub snapshot: Snapshot,
    pub request_snapshot: u64,
    pub reject: bool,
    pub reject_hint: u64,
    pub context: Bytes,
    pub deprecated_priority: u64,
    pub priority: i64,
}

impl Message {
    pub fn get_msg_type(&self) -> MessageType {
        self.msg_type
    }

    pub fn set_msg_type(&mut self, value: MessageType) {
        self.msg_type = value;
    }

    pub fn get_to(&self) -> u64 {
        self.to
    }

    pub fn set_to(&mut self, value: u64) {
        self.to = value;
    }

    pub fn get_from(&self) -> u64 {
        self.from
    }

    pub fn set_from(&mut self, value: u64) {
        self.from = value;
    }

    pub fn get_term(&self) -> u64 {
        self.term
    }

    pub fn set_term(&mut self, value: u64) {
        self.term = value;
    }

    pub fn get_log_term(&self) -> u64 {
        self.log_term
    }

    pub fn set_log_term(&mut self, value: u64) {
        self.log_term = value;
    }

    pub fn get_index(&self) -> u64 {
        self.index
    }

    pub fn set_index(&mut self, value: u64) {
        self.index = value;
    }

    pub fn get_entries(&self) -> &[Entry] {
        &self.entries
    }

    pub fn set_entries(&mut self, value: Vec<Entry>) {
        self.entries = value;
    }

    pub fn mut_entries(&mut self) -> &mut Vec<Entry> {
        &mut self.entries
    }

    pub fn take_entries(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.entries)
    }

    pub fn get_commit(&self) -> u64 {
        self.commit
    }

    pub fn set_commit(&mut self, value: u64) {
        self.commit = value;
    }

    pub fn get_commit_term(&self) -> u64 {
        self.commit_term
    }

    pub fn set_commit_term(&mut self, value: u64) {
        self.commit_term = value;
    }

    pub fn get_snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    pub fn set_snapshot(&mut self, value: Snapshot) {
        self.snapshot = value;
    }

    pub fn mut_snapshot(&mut self) -> &mut Snapshot {
        &mut self.snapshot
    }

    pub fn take_snapshot(&mut self) -> Snapshot {
        std::mem::take(&mut self.snapshot)
    }

    pub fn get_request_snapshot(&self) -> u64 {
        self.request_snapshot
    }

    pub fn set_request_snapshot(&mut self, value: u64) {
        self.request_snapshot = value;
    }

    pub fn get_reject(&self) -> bool {
        self.reject
    }

    pub fn set_reject(&mut self, value: bool) {
        self.reject = value;
    }

    pub fn get_reject_hint(&self) -> u64 {
        self.reject_hint
    }

    pub fn set_reject_hint(&mut self, value: u64) {
        self.reject_hint = value;
    }

    pub fn get_context(&self) -> &[u8] {
        &self.context
    }

    pub fn set_context(&mut self, value: Bytes) {
        self.context = value;
    }

    pub fn mut_context(&mut self) -> &mut Bytes {
        &mut self.context
    }

    pub fn take_context(&mut self) -> Bytes {
        std::mem::take(&mut self.context)
    }

    pub fn get_deprecated_priority(&self) -> u64 {
        self.deprecated_priority
    }

    pub fn set_deprecated_priority(&mut self, value: u64) {
        self.deprecated_priority = value;
    }

    pub fn get_priority(&self) -> i64 {
        self.priority
    }

    pub fn set_priority(&mut self, value: i64) {
        self.priority = value;
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct HardState {
    pub term: u64,
    pub vote: u64,
    pub commit: u64,
}

impl HardState {
    pub fn get_term(&self) -> u64 {
        self.term
    }

    pub fn set_term(&mut self, value: u64) {
        self.term = value;
    }

    pub fn get_vote(&self) -> u64 {
        self.vote
    }

    pub fn set_vote(&mut self, value: u64) {
        self.vote = value;
    }

    pub fn get_commit(&self) -> u64 {
        self.commit
    }

    pub fn set_commit(&mut self, value: u64) {
        self.commit = value;
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConfState {
    pub voters: Vec<u64>,
    pub learners: Vec<u64>,
    pub voters_outgoing: Vec<u64>,
    pub learners_next: Vec<u64>,
    pub auto_leave: bool,
}

impl ConfState {
    pub fn get_voters(&self) -> &[u64] {
        &self.voters
    }

    pub fn set_voters(&mut self, value: Vec<u64>) {
        self.voters = value;
    }

    pub fn mut_voters(&mut self) -> &mut Vec<u64> {
        &mut self.voters
    }

    pub fn take_voters(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.voters)
    }

    pub fn get_learners(&self) -> &[u64] {
        &self.learners
    }

    pub fn set_learners(&mut self, value: Vec<u64>) {
        self.learners = value;
    }

    pub fn mut_learners(&mut self) -> &mut Vec<u64> {
        &mut self.learners
    }

    pub fn take_learners(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.learners)
    }

    pub fn get_voters_outgoing(&self) -> &[u64] {
        &self.voters_outgoing
    }

    pub fn set_voters_outgoing(&mut self, value: Vec<u64>) {
        self.voters_outgoing = value;
    }

    pub fn mut_voters_outgoing(&mut self) -> &mut Vec<u64> {
        &mut self.voters_outgoing
    }

    pub fn take_voters_outgoing(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.voters_outgoing)
    }

    pub fn get_learners_next(&self) -> &[u64] {
        &self.learners_next
    }

    pub fn set_learners_next(&mut self, value: Vec<u64>) {
        self.learners_next = value;
    }

    pub fn mut_learners_next(&mut self) -> &mut Vec<u64> {
        &mut self.learners_next
    }

    pub fn take_learners_next(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.learners_next)
    }

    pub fn get_auto_leave(&self) -> bool {
        self.auto_leave
    }

    pub fn set_auto_leave(&mut self, value: bool) {
        self.auto_leave = value;
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConfChange {
    pub change_type: ConfChangeType,
    pub node_id: u64,
    pub context: Bytes,
    pub id: u64,
}

impl ConfChange {
    pub fn get_change_type(&self) -> ConfChangeType {
        self.change_type
    }

    pub fn set_change_type(&mut self, value: ConfChangeType) {
        self.change_type = value;
    }

    pub fn get_node_id(&self) -> u64 {
        self.node_id
    }

    pub fn set_node_id(&mut self, value: u64) {
        self.node_id = value;
    }

    pub fn get_context(&self) -> &[u8] {
        &self.context
    }

    pub fn set_context(&mut self, value: Bytes) {
        self.context = value;
    }

    pub fn mut_context(&mut self) -> &mut Bytes {
        &mut self.context
    }

    pub fn take_context(&mut self) -> Bytes {
        std::mem::take(&mut self.context)
    }

    pub fn get_id(&self) -> u64 {
        self.id
    }

    pub fn set_id(&mut self, value: u64) {
        self.id = value;
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConfChangeSingle {
    pub change_type: ConfChangeType,
    pub node_id: u64,
}

impl ConfChangeSingle {
    pub fn get_change_type(&self) -> ConfChangeType {
        self.change_type
    }

    pub fn set_change_type(&mut self, value: ConfChangeType) {
        self.change_type = value;
    }

    pub fn get_node_id(&self) -> u64 {
        self.node_id
    }

    pub fn set_node_id(&mut self, value: u64) {
        self.node_id = value;
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConfChangeV2 {
    pub transition: ConfChangeTransition,
    pub changes: Vec<ConfChangeSingle>,
    pub context: Bytes,
}

impl ConfChangeV2 {
    pub fn get_transition(&self) -> ConfChangeTransition {
        self.transition
    }

    pub fn set_transition(&mut self, value: ConfChangeTransition) {
        self.transition = value;
    }

    pub fn get_changes(&self) -> &[ConfChangeSingle] {
        &self.changes
    }

    pub fn set_changes(&mut self, value: Vec<ConfChangeSingle>) {
        self.changes = value;
    }

    pub fn mut_changes(&mut self) -> &mut Vec<ConfChangeSingle> {
        &mut self.changes
    }

    pub fn take_changes(&mut self) -> Vec<ConfChangeSingle> {
        std::mem::take(&mut self.changes)
    }

    pub fn get_context(&self) -> &[u8] {
        &self.context
    }

    pub fn set_context(&mut self, value: Bytes) {
        self.context = value;
    }

    pub fn mut_context(&mut self) -> &mut Bytes {
        &mut self.context
    }

    pub fn take_context(&mut self) -> Bytes {
        std::mem::take(&mut self.context)
    }
}

impl Snapshot {
    /// For a given snapshot, determine if it's empty or not.
    pub fn is_empty(&self) -> bool {
        self.metadata.index == 0
    }
}

impl Entry {
    /// The length of its encoding as protobuf: limits are in these bytes.
    pub fn compute_size(&self) -> u64 {
        let number = |value: u64| if value == 0 { 0 } else { 1 + length(value) };
        let bytes = |value: &Bytes| match value.len() as u64 {
            0 => 0,
            len => 1 + length(len) + len,
        };
        number(self.entry_type as u64)
            + number(self.term)
            + number(self.index)
            + bytes(&self.data)
            + number(self.sync_log.into())
            + bytes(&self.context)
    }
}

/// The bytes of a number as protobuf encodes it.
fn length(value: u64) -> u64 {
    u64::from(64 - (value | 1).leading_zeros()).div_ceil(7)
}

impl<Iter1, Iter2> From<(Iter1, Iter2)> for ConfState
where
    Iter1: IntoIterator<Item = u64>,
    Iter2: IntoIterator<Item = u64>,
{
    fn from((voters, learners): (Iter1, Iter2)) -> Self {
        ConfState {
            voters: voters.into_iter().collect(),
            learners: learners.into_iter().collect(),
            ..ConfState::default()
        }
    }
}

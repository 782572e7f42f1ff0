//! Messages and chunks of other workers: taken only in the generation that both workers are in.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use everstep_kernels::buffer::{Buffer, Shared};
use everstep_transport::protocol::{
    Chunk, ChunkKind, Generation, Message, NodeName, Record, WorkerId,
};
use everstep_transport::time::Time;

use super::{Core, Phase};
use crate::step::event::Admission;

/// Most messages of a newer generation that wait, for each peer. It is far more than a peer that
/// keeps to the protocol sends before it must get an answer.
const MAX_EARLY: usize = 64;
/// With so many messages waiting, the worker keeps no more questions for states. Their senders ask
/// again.
const MANY_EARLY: usize = 4;

/// What a worker knows of the others beyond its generation's record.
#[derive(Debug, Default)]
pub(super) struct PeerInbox {
    /// Peers to which this worker has lost the connection since the generation began.
    unreachable: BTreeSet<WorkerId>,
    /// Messages of peers for a generation that this worker does not know yet.
    early: BTreeMap<WorkerId, VecDeque<Message>>,
    /// The workers that the shell knows, with their names: those of the record that it has entered
    /// last, and the joiners that it has met since.
    names: BTreeMap<WorkerId, NodeName>,
}

impl PeerInbox {
    /// A generation begins: each of its members has a link, or will have one.
    pub fn begin_generation(&mut self) {
        self.unreachable.clear();
    }

    /// The shell enters this record.
    pub fn enter(&mut self, record: &Record) {
        let members = record.members.iter();
        self.names = members.map(|member| (member.worker, member.name.clone())).collect();
    }

    /// The members feed a joiner with this name. What has come early under an older id of it is its
    /// own.
    pub fn meet(&mut self, joiner: WorkerId, name: &NodeName) {
        self.names.insert(joiner, name.clone());
        for old in self.early.keys().copied().collect::<Vec<_>>() {
            if old < joiner && self.names.get(&old) == Some(name) {
                self.move_early(old, joiner);
            }
        }
    }

    /// The members feed this worker from now on, with links that are new. Returns the peers that it
    /// could not reach before.
    pub fn begin_feed(&mut self) -> BTreeSet<WorkerId> {
        std::mem::take(&mut self.unreachable)
    }

    /// Peers to which this worker has lost the connection since the generation began.
    pub fn unreachable(&self) -> impl Iterator<Item = WorkerId> {
        self.unreachable.iter().copied()
    }

    /// The link to a peer is gone. Returns whether that is news.
    fn lose(&mut self, peer: WorkerId) -> bool {
        self.unreachable.insert(peer)
    }

    /// A peer is let in again.
    pub fn let_in(&mut self, peer: WorkerId) {
        self.unreachable.remove(&peer);
    }

    /// Whether no message waits.
    fn is_empty(&self) -> bool {
        self.early.is_empty()
    }

    /// Keeps a message until a generation begins. Returns false if there is no room.
    fn keep(&mut self, promised: Generation, from: WorkerId, message: Message) -> bool {
        let waiting = self.early.entry(from).or_default();
        // Messages of a generation that is over, and that this worker never entered, take no room.
        waiting.retain(|message| message.between_workers() >= Some(promised));
        let room = match message {
            Message::FetchState { .. } => MANY_EARLY,
            _ => MAX_EARLY, // A peer never repeats a vote, or a question for parameters.
        };
        let kept = waiting.len() < room;
        if kept {
            waiting.push_back(message);
        }
        kept
    }

    /// A record has come. A worker that was evicted and is back keeps its name, and has another id.
    /// Until now its messages have come under the id that the shell knows for its name.
    pub fn rename(&mut self, record: &Record) {
        if self.early.is_empty() {
            return;
        }
        let ids = record.members.iter().map(|member| (&member.name, member.worker));
        let ids: BTreeMap<&NodeName, WorkerId> = ids.collect();
        for old in self.early.keys().copied().collect::<Vec<_>>() {
            let new = self.names.get(&old).and_then(|name| ids.get(name));
            if let Some(new) = new.filter(|new| **new != old) {
                self.move_early(old, *new);
            }
        }
    }

    /// What waits of a worker under one id has come of it under another one.
    fn move_early(&mut self, old: WorkerId, new: WorkerId) {
        if let Some(messages) = self.early.remove(&old) {
            self.early.entry(new).or_default().extend(messages);
        }
    }

    /// All messages that wait, in the order of their senders and then of their arrival.
    fn take(&mut self) -> BTreeMap<WorkerId, VecDeque<Message>> {
        std::mem::take(&mut self.early)
    }
}

impl Core {
    /// What to do with a chunk whose header has arrived from another worker.
    pub fn admit(&self, from: WorkerId, chunk: &Chunk) -> Admission {
        if chunk.generation < self.membership.generation() && !self.takes_old() {
            return Admission::Drop;
        }
        match &self.phase {
            Phase::Broken(_) | Phase::Ended => Admission::Drop,
            _ if chunk.generation > self.generation() => Admission::Wait,
            _ if chunk.kind == ChunkKind::Master && chunk.generation == self.generation() => {
                self.admit_master(from, chunk)
            }
            Phase::Joining(joiner) => joiner.admit(from, chunk),
            Phase::Training(member) => member.admit(from, chunk),
            _ => Admission::Drop,
        }
    }

    /// A chunk has arrived whole. The worker may have promised, or entered, another generation
    /// since it admitted the chunk.
    pub(super) fn on_chunk(&mut self, now: Time, from: WorkerId, chunk: &Chunk, values: Buffer) {
        if self.admit(from, chunk) != Admission::Take {
            self.refused += 1;
            return;
        }
        match &mut self.phase {
            _ if chunk.kind == ChunkKind::Master && values.len() == chunk.count as usize => {
                self.take_master(now, chunk.shard, Shared::new(values));
            }
            Phase::Joining(joiner) => joiner.on_chunk(from, chunk, values),
            Phase::Training(member) => member.on_chunk(now, from, chunk, values),
            _ => self.refused += 1,
        }
    }

    pub(super) fn peer(&mut self, now: Time, from: WorkerId, message: Message) {
        let Some(generation) = message.between_workers() else {
            self.refused += 1;
            return;
        };
        if generation < self.membership.generation() && !self.takes_late(&message) {
            self.refused += 1; // I7: a generation that is over changes nothing
            return;
        }
        match generation.cmp(&self.generation()) {
            Ordering::Less => self.refused += 1,
            Ordering::Greater => self.put_off(from, message),
            Ordering::Equal if self.is_unknown(from) => self.keep(from, message),
            Ordering::Equal => match &mut self.phase {
                Phase::Joining(joiner) => joiner.peer(now, from, message),
                Phase::Training(member) => member.peer(now, from, message),
                _ => self.refused += 1,
            },
        }
    }

    /// Keeps a message of a generation that this worker does not know yet, and asks for its record.
    fn put_off(&mut self, from: WorkerId, message: Message) {
        let first = self.peers.is_empty();
        self.keep(from, message);
        if first && self.worker().is_some() {
            self.send_to_leader(Message::FetchRecord);
        }
    }

    fn keep(&mut self, from: WorkerId, message: Message) {
        if !self.peers.keep(self.membership.generation(), from, message) {
            self.refused += 1;
        }
    }

    /// Whether a worker is neither a member nor, as far as this member knows, a joiner. The
    /// leader's Feed for it may still be on its way.
    fn is_unknown(&self, from: WorkerId) -> bool {
        matches!(&self.phase, Phase::Training(member) if !member.serves(from))
    }

    /// A generation has begun: handles the messages that came too early for the one before.
    pub(super) fn replay_early(&mut self, now: Time) {
        for (from, messages) in self.peers.take() {
            for message in messages {
                self.peer(now, from, message);
            }
        }
    }

    /// A link is gone. The worker reports the loss of a member at once. The loss of a joiner is
    /// the joiner's to report.
    pub(super) fn peer_lost(&mut self, now: Time, from: WorkerId) {
        let (known, is_member) = match &mut self.phase {
            Phase::Joining(joiner) => {
                joiner.lost(from);
                let listed = joiner.sized_record().lists(from);
                (listed, listed)
            }
            Phase::Training(member) => {
                let listed = member.plan().sized_record().lists(from);
                (member.lost(from) || listed, listed)
            }
            _ => return,
        };
        if known && self.peers.lose(from) && is_member {
            self.heartbeat(now);
        }
    }

    #[cfg(not(feature = "planted"))]
    fn takes_old(&self) -> bool {
        false
    }

    #[cfg(feature = "planted")]
    fn takes_old(&self) -> bool {
        self.plant == Some(crate::plant::Plant::AcceptOld)
    }

    #[cfg(not(feature = "planted"))]
    fn takes_late(&self, _: &Message) -> bool {
        false
    }

    #[cfg(feature = "planted")]
    fn takes_late(&self, message: &Message) -> bool {
        let plant = self.plant == Some(crate::plant::Plant::BreakPromise);
        plant && matches!(message, Message::Commit(_))
    }
}

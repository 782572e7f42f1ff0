//! Messages and pieces of other workers: taken only in the generation that both workers are in.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::cmp::Ordering;

use everstep_kernels::buffer::{Buffer, Shared};
use everstep_transport::protocol::{Chunk, ChunkKind, Message, WorkerId};
use everstep_transport::time::Time;

use super::{Core, Phase};
use crate::step::event::Admission;

/// Most messages of a newer generation that wait, for each peer. It is far more than a peer that
/// keeps to the protocol sends before it must get an answer.
const MAX_EARLY: usize = 64;
/// With so many messages waiting, the worker keeps no more questions for states. Their senders ask
/// again.
const MANY_EARLY: usize = 4;

impl Core {
    /// What to do with a chunk whose header has arrived from another worker.
    pub fn admit(&self, from: WorkerId, chunk: &Chunk) -> Admission {
        if chunk.generation < self.promised.1 && !self.takes_old() {
            return Admission::Drop;
        }
        match &self.phase {
            Phase::Ended => Admission::Drop,
            _ if chunk.generation > self.generation() => Admission::Wait,
            _ if chunk.kind == ChunkKind::Master && chunk.generation == self.generation() => {
                self.admit_master(from, chunk)
            }
            Phase::Learning(learner) => learner.admit(from, chunk),
            Phase::Training(member) => member.admit(from, chunk),
            _ => Admission::Drop,
        }
    }

    /// A piece has arrived whole. The worker may have promised, or entered, another generation
    /// since it admitted the piece.
    pub(super) fn piece(&mut self, now: Time, from: WorkerId, chunk: &Chunk, values: Buffer) {
        if self.admit(from, chunk) != Admission::Take {
            self.refused += 1;
            return;
        }
        match &mut self.phase {
            _ if chunk.kind == ChunkKind::Master && values.len() == chunk.count as usize => {
                self.take_master(now, chunk.shard, Shared::new(values));
            }
            Phase::Learning(learner) => learner.piece(from, chunk, values),
            Phase::Training(member) => member.piece(now, from, chunk, values),
            _ => self.refused += 1,
        }
    }

    pub(super) fn peer(&mut self, now: Time, from: WorkerId, message: Message) {
        let Some(generation) = message.between_workers() else {
            self.refused += 1;
            return;
        };
        if generation < self.promised.1 && !self.takes_late(&message) {
            self.refused += 1; // I7: a generation that is over changes nothing
            return;
        }
        match generation.cmp(&self.generation()) {
            Ordering::Less => self.refused += 1,
            Ordering::Greater => self.put_off(from, message),
            Ordering::Equal if self.is_unknown(from) => self.keep(from, message),
            Ordering::Equal => match &mut self.phase {
                Phase::Learning(learner) => learner.peer(now, from, message),
                Phase::Training(member) => member.peer(now, from, message),
                _ => self.refused += 1,
            },
        }
    }

    /// Keeps a message of a generation that this worker does not know yet, and asks for its record.
    fn put_off(&mut self, from: WorkerId, message: Message) {
        let first = self.early.is_empty();
        self.keep(from, message);
        if first && self.worker.is_some() {
            self.tell(Message::FetchRecord);
        }
    }

    fn keep(&mut self, from: WorkerId, message: Message) {
        let promised = self.promised.1;
        let waiting = self.early.entry(from).or_default();
        // Messages of a generation that is over, and that this worker never entered, take no room.
        waiting.retain(|message| message.between_workers() >= Some(promised));
        let room = match message {
            Message::FetchState { .. } => MANY_EARLY,
            _ => MAX_EARLY, // A peer never repeats a vote, or a question for parameters.
        };
        if waiting.len() < room {
            waiting.push_back(message);
        } else {
            self.refused += 1;
        }
    }

    /// Whether a worker is neither a member nor, as far as this member knows, a learner. The
    /// leader's Feed for it may still be on its way.
    fn is_unknown(&self, from: WorkerId) -> bool {
        matches!(&self.phase, Phase::Training(member) if !member.serves(from))
    }

    /// A generation has begun: handles the messages that came too early for the one before.
    pub(super) fn hear_early(&mut self, now: Time) {
        for (from, messages) in std::mem::take(&mut self.early) {
            for message in messages {
                self.peer(now, from, message);
            }
        }
    }

    /// A link is gone. The worker reports the loss of a member at once. The loss of a learner is
    /// the learner's to report.
    pub(super) fn peer_lost(&mut self, now: Time, from: WorkerId) {
        let (known, is_member) = match &mut self.phase {
            Phase::Learning(learner) => {
                learner.lost(from);
                let listed = learner.roster().lists(from);
                (listed, listed)
            }
            Phase::Training(member) => {
                let listed = member.plan().roster().lists(from);
                (member.lost(from) || listed, listed)
            }
            _ => return,
        };
        if known && self.unreachable.insert(from) && is_member {
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

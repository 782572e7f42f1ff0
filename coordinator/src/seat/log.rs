//! Carries proposals from a core into its replica's log, and agreed entries from the log to the
//! core.

use everstep_transport::protocol::Message;
use everstep_transport::time::Time;
use rkyv::rancor;
use rkyv::util::AlignedVec;

use super::put_off::PutOff;
use super::{Effect, FIRST_DOUBT, Seat, SeatError};
use crate::core;
use crate::raft::{self, Agreed, Refused, ReplicaId, Snapshot};
use crate::state::{Entry, State};

/// The seat also takes a snapshot after this many bytes of entries since the last snapshot.
const SNAPSHOT_BYTES: usize = 4 << 20;

impl Seat {
    /// Carries the effects of the replica and the core from one to the other, until both are quiet.
    /// The core goes first: the history gets an entry's frame before a batch in which a snapshot
    /// takes that entry's place.
    pub(super) fn advance(&mut self, now: Time) -> Result<(), SeatError> {
        loop {
            if let Some(effect) = self.core.poll_effect() {
                self.follow_core(now, effect);
            } else if let Some(effect) = self.replica.poll_effect() {
                self.follow_log(now, effect)?;
            } else {
                return Ok(());
            }
        }
    }

    fn follow_log(&mut self, now: Time, effect: raft::Effect) -> Result<(), SeatError> {
        match effect {
            raft::Effect::Send { to, message } => self.say(to, &message),
            raft::Effect::Persist(batch) => {
                self.writes.given(now, batch.number);
                self.effects.push_back(Effect::Persist(batch));
            }
            raft::Effect::Apply(entries) => {
                for agreed in entries {
                    self.apply(now, agreed)?;
                }
            }
            raft::Effect::Install(snapshot) => self.install(now, snapshot)?,
            raft::Effect::TakeSnapshot => self.take_snapshot(),
            raft::Effect::Leads(term) => {
                (self.leads, self.leader) = (Some(term), Some(self.peers.own()));
                self.heard.begin(now);
                self.hearing.lead(now);
                (self.said_who_left, self.teller) = (None, None);
                self.transferred(self.leader);
                let id = self.peers.own().0;
                self.core.handle(now, core::Input::Elected { term, id });
                let leader = Some(self.peers.own().0);
                self.core.handle(now, core::Input::Leader { term, leader });
            }
            raft::Effect::Follows { leader, term } => {
                (self.leads, self.leader) = (None, leader);
                self.put_off = PutOff::default();
                self.transferred(leader);
                self.core.handle(now, core::Input::Deposed);
                let leader = leader.map(|id| id.0);
                self.core.handle(now, core::Input::Leader { term, leader });
            }
            raft::Effect::Read { ticket, .. } if ticket >= FIRST_DOUBT => {
                self.settle_doubt(ticket, true);
            }
            raft::Effect::ReadLost { ticket } if ticket >= FIRST_DOUBT => {
                self.settle_doubt(ticket, false);
            }
            raft::Effect::Read { ticket, .. } => {
                self.core.handle(now, core::Input::Confirmed { ticket });
            }
            raft::Effect::ReadLost { ticket } => {
                self.core.handle(now, core::Input::Unconfirmed { ticket });
            }
            raft::Effect::Members(members) => self.settled = members,
            raft::Effect::Forgotten { last, agreed } => {
                return Err(SeatError::Forgotten { last, agreed });
            }
        }
        Ok(())
    }

    fn follow_core(&mut self, now: Time, effect: core::Effect) {
        let effect = match effect {
            core::Effect::Propose(entry) => return self.propose(now, encode(&entry)),
            core::Effect::Confirm { ticket } => return self.replica.read(ticket),
            core::Effect::Describe { to } => return self.describe(now, to),
            core::Effect::Transfer { asked_by, id, to } => {
                return self.transfer(now, asked_by, id, to);
            }
            core::Effect::Looked(number) => Effect::Looked(number),
            core::Effect::Send { to, message } => Effect::Send { to, message },
            core::Effect::Broadcast { to, message } => Effect::Broadcast { to, message },
            core::Effect::OpenLines(history) => Effect::OpenLines(history),
            core::Effect::AppendLines(records) => Effect::AppendLines(records),
            core::Effect::SkipLines(to) => Effect::SkipLines(to),
            core::Effect::TellLines { to, lineage, reach, after } => {
                Effect::TellLines { to, lineage, reach, after }
            }
            core::Effect::Update { to, after, update } => Effect::Update { to, after, update },
            core::Effect::History(frame) => Effect::History(frame),
            core::Effect::Admitted { token, node, refusal } => {
                Effect::Admitted { token, node, refusal }
            }
            core::Effect::Close { to, reason } => Effect::Close { to, reason },
        };
        self.effects.push_back(effect);
    }

    fn say(&mut self, to: ReplicaId, message: &raft::Message) {
        match self.peers.link_of(self.replica.members(), to) {
            Some(link) => {
                let message = Message::Raft(message.encode().to_vec());
                self.effects.push_back(Effect::Send { to: link, message });
            }
            // Raft repeats other messages by itself.
            None if message.is_snapshot() => self.replica.snapshot_done(to, false),
            None => {}
        }
    }

    fn apply(&mut self, now: Time, agreed: Agreed) -> Result<(), SeatError> {
        let Agreed { place, bytes } = agreed;
        let entry =
            decode(&bytes).map_err(|problem| SeatError::Entry { index: place.index, problem })?;
        self.begin_past();
        let input = core::Input::Applied { index: place.index, term: place.term, entry };
        let before = self.core.state().revision();
        self.core.handle(now, input);
        if self.core.state().revision() != before {
            self.learn_of_peers();
        }
        self.since_snapshot.0 += 1;
        self.since_snapshot.1 += bytes.len();
        let (entries, bytes) = self.since_snapshot;
        if entries >= self.snapshot_entries || bytes >= SNAPSHOT_BYTES {
            self.take_snapshot();
        }
        Ok(())
    }

    fn install(&mut self, now: Time, snapshot: Snapshot) -> Result<(), SeatError> {
        if !snapshot.bytes.is_empty() {
            let state = State::decode(&snapshot.bytes)?;
            self.core.handle(now, core::Input::Installed(Box::new(state)));
            self.lacks_history |= self.has_begun;
            self.learn_of_peers();
        }
        self.since_snapshot = (0, 0);
        self.begin_past();
        Ok(())
    }

    /// Learns the coordinators from the state, and also leaving ones that may still have a vote. A
    /// coordinator that restarts from its disk alone knows them from nowhere else.
    fn learn_of_peers(&mut self) {
        let (state, members) = (self.core.state(), self.replica.members());
        self.peers.learn(state.revision(), state.coordinators(), members);
        let leaving = state.leaving();
        if !leaving.is_empty() {
            self.peers.learn(0, leaving, members);
        }
    }

    /// Restores the history of the entries that the log has dropped, if all of it is there.
    fn begin_past(&mut self) {
        if let Some(frames) = self.past.take()
            && !self.lacks_history
        {
            let index = self.core.state().index();
            let known = frames.into_iter().filter(|frame| frame.index <= index);
            self.core.restore_history(known);
        }
    }

    fn take_snapshot(&mut self) {
        self.since_snapshot = (0, 0);
        let state = self.core.state();
        self.replica.compact(state.index(), state.encode());
    }

    pub(super) fn propose(&mut self, now: Time, bytes: Vec<u8>) {
        if !self.put_off.is_empty() {
            return self.put_off(bytes);
        }
        match self.replica.propose(bytes.clone()) {
            Err(Refused::Full | Refused::HandingOver) => self.put_off(bytes),
            // This coordinator no longer leads, and its next effect says so. The core re-evaluates
            // all pending work then.
            Ok(_) | Err(Refused::NotLeader) => {}
            Err(Refused::Impossible(reason)) => {
                tracing::error!(reason, bytes = bytes.len(), "an entry is not for the log");
                self.core.entry_too_large(now, bytes.len());
            }
        }
    }

    /// Resigns when the proposal queue is full. The next leader re-evaluates the pending work, and
    /// a coordinator with a disk that stands still cannot become that leader.
    fn put_off(&mut self, bytes: Vec<u8>) {
        if !self.put_off.push(bytes) {
            tracing::error!("too much waits for the log: this coordinator leads no longer");
            self.replica.resign();
        }
    }

    pub(super) fn propose_put_off(&mut self, now: Time) {
        for bytes in self.put_off.take() {
            self.propose(now, bytes);
        }
    }
}

/// Encodes an entry of the log for a batch.
pub(crate) fn encode(entry: &Entry) -> Vec<u8> {
    let bytes = rkyv::to_bytes::<rancor::Error>(entry);
    bytes.expect("an entry is finite and needs no shared pointers").to_vec()
}

/// Decodes an entry of the log from a batch.
pub(crate) fn decode(bytes: &[u8]) -> Result<Entry, String> {
    let mut aligned = AlignedVec::<16>::with_capacity(bytes.len());
    aligned.extend_from_slice(bytes);
    rkyv::from_bytes::<Entry, rancor::Error>(&aligned).map_err(|error| error.to_string())
}

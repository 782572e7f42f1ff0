//! A coordinator among others: the core, and its replica of the log, as one plain state machine.
//!
//! Inputs: links and what peers say on them, batches that have become durable, the passing of time.
//! Outputs: what the core wants done, batches to write, what others ask of the history. In between
//! the core's proposals go into the log, and what is agreed comes back to it; who leads the log
//! leads the cluster. The links to other coordinators carry the log's messages (`peers.rs`).
//!
//! It knows no clock, no sockets and no files; one replica alone is a cluster, too.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

mod peers;

use std::collections::VecDeque;
use std::time::Duration;

use everstep_transport::identity::{Identity, Refusal, TokenId};
use everstep_transport::protocol::{
    CoordinatorId, CoordinatorView, Frame, Message, NodeName, Term,
};
use everstep_transport::time::Time;
use rkyv::rancor;
use rkyv::util::AlignedVec;

use self::peers::Peers;
use crate::core::{self, Core, LinkId};
use crate::raft::{self, Agreed, Batch, Kept, Refused, Replica, ReplicaId, Snapshot, Unsound};
use crate::state::{Command, Coordinator, Entry, SnapshotError, State};

/// How often the driver should give an [`Input::Tick`]: the replica counts time in these.
pub const TICK: Duration = raft::LAN_TICK;
/// A snapshot is taken when so many entries are behind the one before.
const SNAPSHOT_ENTRIES: u64 = 10_000;
/// Or so many bytes of them.
const SNAPSHOT_BYTES: usize = 4 << 20;
/// How often a coordinator says where it is, until the log says the same.
const INTRODUCTION: Duration = Duration::from_millis(500);

/// Who a coordinator is.
#[derive(Clone, Debug)]
pub struct Options {
    /// As the others are to know it.
    pub own: Coordinator,
    /// Its replica of the log.
    pub replica: raft::Options,
    /// The wall clock at time zero, milliseconds of Unix time: events are stamped with it.
    pub epoch_unix_ms: u64,
    /// If it founds the cluster: whether that is there for one run.
    pub founds: Option<bool>,
    /// Who the coordinators were when it last heard of them, with the list's revision.
    pub book: (u64, Vec<CoordinatorView>),
}

/// What happens to a coordinator.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A peer has proved who it is.
    Connected {
        /// Its link.
        link: LinkId,
        /// Who it is.
        identity: Identity,
    },
    /// A link is gone.
    Disconnected {
        /// Which.
        link: LinkId,
        /// The peer's process is gone; else it may live on.
        gone: bool,
        /// Why, in words.
        reason: String,
    },
    /// A peer says something.
    Message {
        /// Its link.
        from: LinkId,
        /// What.
        message: Message,
    },
    /// A node was judged to be admitted: its use of the token is to be spent.
    Admit {
        /// The token.
        token: TokenId,
        /// The node.
        node: NodeName,
    },
    /// This batch is durable, and so are all before it.
    Persisted(u64),
    /// It is to leave: if it leads, somebody else should.
    HandOver,
    /// Time has passed: to be given every [`TICK`].
    Tick,
}

/// What a coordinator wants done, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Say this.
    Send {
        /// To whom.
        to: LinkId,
        /// What.
        message: Message,
    },
    /// Say this to many.
    Broadcast {
        /// To whom.
        to: Vec<LinkId>,
        /// What.
        message: Message,
    },
    /// Close a link.
    Close {
        /// Which.
        to: LinkId,
        /// Why, in words for the peer.
        reason: String,
    },
    /// What an entry has brought to the history. One that is there already is to be left out: after
    /// a restart the log is gone through again.
    History(Frame),
    /// A use of a token was spent, or not.
    Admitted {
        /// The token.
        token: TokenId,
        /// The node.
        node: NodeName,
        /// Why it is not admitted after all.
        refusal: Option<Refusal>,
    },
    /// Write this, make it durable, then give [`Input::Persisted`]. Before a batch with a snapshot
    /// the history is to be durable: what it follows from goes. An error is the end of the process.
    Persist(Batch),
    /// Another coordinator lacks the history from this entry on: send it [`Message::History`].
    Recall {
        /// Its link.
        to: LinkId,
        /// The first entry that is wanted.
        from: u64,
    },
    /// What was asked for of the history.
    Recalled(Vec<Frame>),
    /// The others go on without this coordinator.
    Removed,
}

/// Why a coordinator cannot begin, or go on.
#[derive(Debug, thiserror::Error)]
pub enum SeatError {
    /// What its disk holds cannot be.
    #[error(transparent)]
    Unsound(#[from] Unsound),
    /// A snapshot holds no state.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// An entry that was agreed on cannot be read.
    #[error("entry {index} of the log cannot be read ({problem}); run the same build everywhere")]
    Entry {
        /// Its place.
        index: u64,
        /// What is wrong with it.
        problem: String,
    },
}

/// One coordinator.
pub struct Seat {
    own: Coordinator,
    founds: Option<bool>,
    core: Core,
    replica: Replica,
    /// The term in which it leads the log.
    leads: Option<Term>,
    /// Who leads, as far as is known.
    leader: Option<ReplicaId>,
    /// Proposals for which the log had no room.
    put_off: VecDeque<Vec<u8>>,
    /// What was applied since the newest snapshot.
    since_snapshot: (u64, usize),
    peers: Peers,
    /// The newest tick of the core.
    core_ticked: Time,
    /// When it last said where it is.
    introduced: Option<Time>,
    /// The history up to the snapshot that the disk holds, until that is installed.
    past: Option<Vec<Frame>>,
    effects: VecDeque<Effect>,
}

// Inputs and outputs.
impl Seat {
    /// A coordinator as its disk left it, with the history of its cluster as far as it is known.
    /// Its first effects go through the log that is there.
    ///
    /// # Errors
    /// [`SeatError`].
    pub fn new(
        now: Time,
        options: Options,
        kept: Kept,
        history: Vec<Frame>,
    ) -> Result<Self, SeatError> {
        let mut seat = Self::restored(now, options, kept, history)?;
        seat.advance(now)?;
        Ok(seat)
    }

    /// The same with a bug in the core, which is there from the first entry on.
    ///
    /// # Errors
    /// [`SeatError`].
    #[cfg(feature = "planted")]
    pub fn planted(
        now: Time,
        options: Options,
        kept: Kept,
        history: Vec<Frame>,
        plant: crate::plant::Plant,
    ) -> Result<Self, SeatError> {
        let mut seat = Self::restored(now, options, kept, history)?;
        seat.core.plant(plant);
        seat.advance(now)?;
        Ok(seat)
    }

    /// Before its first effects.
    fn restored(
        now: Time,
        options: Options,
        kept: Kept,
        history: Vec<Frame>,
    ) -> Result<Self, SeatError> {
        let Options { own, replica, epoch_unix_ms, founds, book } = options;
        Ok(Self {
            own,
            founds,
            core: Core::new(now, epoch_unix_ms),
            peers: Peers::new(replica.id, book),
            replica: Replica::new(now, replica, kept)?,
            leads: None,
            leader: None,
            put_off: VecDeque::new(),
            since_snapshot: (0, 0),
            core_ticked: now,
            introduced: None,
            past: Some(history),
            effects: VecDeque::new(),
        })
    }

    /// Takes what happened. `now` never goes backwards.
    ///
    /// # Errors
    /// [`SeatError`]: it cannot go on.
    pub fn handle(&mut self, now: Time, input: Input) -> Result<(), SeatError> {
        match input {
            Input::Connected { link, identity } => {
                self.peers.connected(link, &identity);
                self.core.handle(now, core::Input::Connected { link, identity: identity.clone() });
                self.introduce_to(link, &identity);
            }
            Input::Disconnected { link, gone, reason } => {
                if let Some(id) = self.peers.disconnected(self.core.state(), link) {
                    self.replica.link_lost(id);
                }
                self.core.handle(now, core::Input::Disconnected { link, gone, reason });
            }
            Input::Message { from, message } => self.hear(now, from, message),
            Input::Admit { token, node } => {
                self.core.handle(now, core::Input::Admit { token, node });
            }
            Input::Persisted(number) => self.replica.persisted(number),
            Input::HandOver => self.hand_over(),
            Input::Tick => self.tick(now),
        }
        self.advance(now)
    }

    /// The next thing to do; none until more happens. To be drained after every input.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// What it knows of the cluster.
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// Its replica of the log.
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// Whether it leads, and in which term.
    pub fn leads(&self) -> Option<Term> {
        self.leads
    }

    /// Who leads, as far as is known.
    pub fn leader(&self) -> Option<ReplicaId> {
        self.leader
    }

    /// Coordinators to which there is no link.
    pub fn to_dial(&self) -> Vec<CoordinatorView> {
        self.peers.missing(self.core.state())
    }
}

// What peers say.
impl Seat {
    fn hear(&mut self, now: Time, from: LinkId, message: Message) {
        let coordinator = self.peers.is_coordinator(from);
        match message {
            Message::Raft(bytes) if coordinator => self.hear_replica(from, &bytes),
            Message::FetchHistory { from: index } if coordinator => {
                self.effects.push_back(Effect::Recall { to: from, from: index });
            }
            Message::History { frames } if coordinator => {
                self.effects.push_back(Effect::Recalled(frames));
            }
            Message::Coordinators { revision, members, .. } if coordinator => {
                self.peers.heard_of(revision, members);
            }
            Message::Removed if coordinator => self.effects.push_back(Effect::Removed),
            Message::Join { id: Some(id), .. } if coordinator && self.was_removed(id) => {
                // Until the log does without it, its vote may be needed.
                if self.leads.is_some() && !self.replica.members().contain(ReplicaId(id)) {
                    self.effects.push_back(Effect::Send { to: from, message: Message::Removed });
                }
            }
            Message::Joined { .. } if coordinator => {} // what it says is in the log, too
            message => self.core.handle(now, core::Input::Message { from, message }),
        }
    }

    fn was_removed(&self, id: CoordinatorId) -> bool {
        let all = self.core.state().coordinators();
        !all.is_empty() && all.iter().all(|view| view.id != id)
    }

    /// Who it is, its link has proved; under which id, the log says.
    fn hear_replica(&mut self, from: LinkId, bytes: &[u8]) {
        let Some(id) = self.peers.id_of(self.core.state(), from) else { return };
        match raft::Message::decode(bytes) {
            Ok(message) => self.replica.receive(id, &message),
            Err(error) => {
                let reason = error.to_string();
                self.effects.push_back(Effect::Close { to: from, reason });
            }
        }
    }

    /// A coordinator says where it is to every other that it meets.
    fn introduce_to(&mut self, to: LinkId, identity: &Identity) {
        if peers::is_coordinator(identity) {
            self.say_where(to);
        }
    }

    fn say_where(&mut self, to: LinkId) {
        let Coordinator { incarnation, address, api, .. } = self.own;
        let message = Message::Join { id: Some(self.peers.own().0), incarnation, address, api };
        self.effects.push_back(Effect::Send { to, message });
    }

    fn hand_over(&mut self) {
        let voters = self.replica.members().voters.clone();
        let linked =
            voters.into_iter().find(|id| self.peers.link_of(self.core.state(), *id).is_some());
        if let Some(to) = linked.filter(|_| self.leads.is_some()) {
            let _ = self.replica.transfer(to); // who cannot leaves all the same
        }
    }
}

// Time.
impl Seat {
    fn tick(&mut self, now: Time) {
        self.replica.tick(now);
        if now.since(self.core_ticked) >= core::TICK {
            self.core_ticked = now;
            self.core.handle(now, core::Input::Tick);
        }
        if self.leads.is_some() {
            self.propose_put_off();
            self.seek_members();
        }
        self.settle_in(now);
    }

    /// The replicas are to be those of the coordinators. The wish goes with leadership, and is
    /// repeated until it has come true.
    fn seek_members(&mut self) {
        let all = self.core.state().coordinators();
        let wanted: Vec<_> = all.iter().map(|view| ReplicaId(view.id)).collect();
        let members = self.replica.members();
        if !wanted.is_empty() && (members.voters != wanted || !members.learners.is_empty()) {
            let _ = self.replica.change(wanted); // refused while leadership is handed over
        }
    }

    /// Founds the cluster, or says where it is found by now, until the log says the same.
    fn settle_in(&mut self, now: Time) {
        let due = self.introduced.is_none_or(|last| now.since(last) >= INTRODUCTION);
        let (state, id) = (self.core.state(), self.peers.own());
        let coordinators = state.coordinators();
        if !due || state.knows(&self.own) {
            return;
        }
        let listed = coordinators.iter().any(|view| view.id == id.0);
        let coordinator = self.own.clone();
        let command = match self.founds {
            Some(ephemeral) if coordinators.is_empty() => {
                Command::Found { ephemeral, founder: coordinator }
            }
            _ if listed => Command::Coordinator { id: Some(id.0), coordinator },
            // It does not know the log yet, or was removed, and asks whether it may go.
            _ => {
                self.introduced = Some(now);
                return self.peers.links().into_iter().for_each(|link| self.say_where(link));
            }
        };
        // Where there is nobody to tell yet, it is told as soon as there is.
        if self.leads.is_some() {
            self.introduced = Some(now);
            let entry = Entry { unix_ms: self.core.unix_ms(now), command };
            self.propose(encode(&entry));
        } else if let Some(link) = self.leader.and_then(|id| self.peers.link_of(state, id)) {
            self.introduced = Some(now);
            self.say_where(link);
        }
    }
}

// The log.
impl Seat {
    /// Carries what the replica and the core want from one to the other, until both are quiet. The
    /// core goes first: what an entry brings to the history comes before a batch in which a snapshot
    /// takes that entry's place.
    fn advance(&mut self, now: Time) -> Result<(), SeatError> {
        loop {
            if let Some(effect) = self.core.poll_effect() {
                self.follow_core(effect);
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
            raft::Effect::Persist(batch) => self.effects.push_back(Effect::Persist(batch)),
            raft::Effect::Apply(entries) => {
                for agreed in entries {
                    self.apply(now, agreed)?;
                }
            }
            raft::Effect::Install(snapshot) => self.install(now, snapshot)?,
            raft::Effect::TakeSnapshot => self.take_snapshot(),
            raft::Effect::Leads(term) => {
                (self.leads, self.leader) = (Some(term), Some(self.peers.own()));
                self.core.handle(now, core::Input::Elected { term });
                let leader = Some(self.peers.own().0);
                self.core.handle(now, core::Input::Leader { term, leader });
            }
            raft::Effect::Follows { leader, term } => {
                (self.leads, self.leader) = (None, leader);
                self.put_off.clear();
                self.core.handle(now, core::Input::Deposed);
                let leader = leader.map(|id| id.0);
                self.core.handle(now, core::Input::Leader { term, leader });
            }
            raft::Effect::Read { ticket, .. } => {
                self.core.handle(now, core::Input::Confirmed { ticket });
            }
            raft::Effect::ReadLost { ticket } => {
                self.core.handle(now, core::Input::Unconfirmed { ticket });
            }
            raft::Effect::Members(_) => {} // whoever wants to know asks the replica
        }
        Ok(())
    }

    fn follow_core(&mut self, effect: core::Effect) {
        let effect = match effect {
            core::Effect::Propose(entry) => return self.propose(encode(&entry)),
            core::Effect::Confirm { ticket } => return self.replica.read(ticket),
            core::Effect::Send { to, message } => Effect::Send { to, message },
            core::Effect::Broadcast { to, message } => Effect::Broadcast { to, message },
            core::Effect::History(frame) => Effect::History(frame),
            core::Effect::Admitted { token, node, refusal } => {
                Effect::Admitted { token, node, refusal }
            }
            core::Effect::Close { to, reason } => Effect::Close { to, reason },
        };
        self.effects.push_back(effect);
    }

    fn say(&mut self, to: ReplicaId, message: &raft::Message) {
        match self.peers.link_of(self.core.state(), to) {
            Some(link) => {
                let message = Message::Raft(message.encode().to_vec());
                self.effects.push_back(Effect::Send { to: link, message });
            }
            // Raft says the rest again by itself.
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
        self.core.handle(now, input);
        self.since_snapshot.0 += 1;
        self.since_snapshot.1 += bytes.len();
        if self.since_snapshot.0 >= SNAPSHOT_ENTRIES || self.since_snapshot.1 >= SNAPSHOT_BYTES {
            self.take_snapshot();
        }
        Ok(())
    }

    fn install(&mut self, now: Time, snapshot: Snapshot) -> Result<(), SeatError> {
        if !snapshot.bytes.is_empty() {
            let state = State::decode(&snapshot.bytes)?;
            self.core.handle(now, core::Input::Installed(Box::new(state)));
        }
        self.since_snapshot = (0, 0);
        self.begin_past();
        Ok(())
    }

    /// What the history says of entries that are not in the log any more.
    fn begin_past(&mut self) {
        if let Some(frames) = self.past.take() {
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

    fn propose(&mut self, bytes: Vec<u8>) {
        if !self.put_off.is_empty() {
            return self.put_off.push_back(bytes);
        }
        match self.replica.propose(bytes.clone()) {
            Err(Refused::Full | Refused::HandingOver) => self.put_off.push_back(bytes),
            // It leads no longer, and hears so next; the core looks anew at everything then.
            Ok(_) | Err(Refused::NotLeader) => {}
            Err(Refused::Impossible(reason)) => {
                tracing::error!(reason, bytes = bytes.len(), "an entry is not for the log");
            }
        }
    }

    fn propose_put_off(&mut self) {
        for bytes in std::mem::take(&mut self.put_off) {
            self.propose(bytes);
        }
    }
}

/// An entry of the log, as a batch holds it.
pub(crate) fn encode(entry: &Entry) -> Vec<u8> {
    let bytes = rkyv::to_bytes::<rancor::Error>(entry);
    bytes.expect("an entry is finite and needs no shared pointers").to_vec()
}

/// An entry of the log, from what a batch holds of it.
pub(crate) fn decode(bytes: &[u8]) -> Result<Entry, String> {
    let mut aligned = AlignedVec::<16>::with_capacity(bytes.len());
    aligned.extend_from_slice(bytes);
    rkyv::from_bytes::<Entry, rancor::Error>(&aligned).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;

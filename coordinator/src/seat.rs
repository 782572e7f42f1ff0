//! A coordinator among others: the core and its replica of the log, as one plain state machine.
//!
//! Inputs: links, messages of peers, batches that have become durable, and the passing of time.
//! Outputs: the core's effects, batches to write, and requests for the history. The seat carries
//! the core's proposals to the log and carries agreed entries back to the core. The replica that
//! leads the log leads the cluster. The links to other coordinators carry the log's messages
//! (`peers.rs`).
//!
//! A seat has no clock, no sockets and no files. A single replica is a cluster, too.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

mod error;
mod hearing;
mod log;
mod membership;
mod peers;
mod put_off;
mod standing;
mod transfer;
mod writes;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use everstep_transport::identity::{AcceptedToken, Identity, Refusal, TokenId};
use everstep_transport::protocol::outcome::Update;
use everstep_transport::protocol::{
    CoordinatorView, Frame, Lineage, Message, NodeName, Step, Term, Wish,
};
use everstep_transport::time::Time;

pub use self::error::SeatError;
use self::hearing::Hearing;
pub(crate) use self::log::{decode, encode};
use self::peers::Peers;
use self::put_off::PutOff;
use self::standing::Heard;
use self::transfer::Transfer;
use self::writes::Writes;
use crate::core::{self, Core, LinkEnd, LinkId};
use crate::lines::{LineRecord, LinesFound};
use crate::raft::{self, Batch, Kept, Members, Replica, ReplicaId};
use crate::state::{Coordinator, LineHistory};

/// The driver gives an [`Input::Tick`] this often, except while the seat is [quiet](Seat::quiet).
/// The replica counts time in these ticks.
pub const TICK: Duration = raft::LAN_TICK;
/// The first ticket of the seat's own reads. The core's tickets are all below it.
const FIRST_DOUBT: u64 = 1 << 63;

/// The identity and the settings of a coordinator.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name and the addresses by which the other coordinators know this one.
    pub own: Coordinator,
    /// The settings of its replica of the log.
    pub replica: raft::Options,
    /// The wall clock at time zero, milliseconds of Unix time. Events take their times from it.
    pub epoch_unix_ms: u64,
    /// The seat takes a snapshot after this many entries since the last snapshot.
    pub snapshot_entries: u64,
    /// `Some` if this coordinator founds the cluster: whether the cluster exists for one run only.
    pub founds: Option<bool>,
    /// For a founder: the tokens that admit nodes from the beginning.
    pub tokens: Vec<AcceptedToken>,
    /// The newest list of the coordinators that this one has heard of, with the list's revision.
    pub book: (u64, Vec<CoordinatorView>),
    /// Whether a part of the history that the log has already dropped is missing here.
    pub lacks_history: bool,
}

/// What happens to a coordinator.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant)] // the driver takes one at a time and keeps none
pub enum Input {
    /// A peer has proved its identity.
    Connected {
        /// The link to the peer.
        link: LinkId,
        /// The identity that the peer's certificate proves.
        identity: Identity,
    },
    /// A link is gone.
    Disconnected {
        /// The link that is gone.
        link: LinkId,
        /// What the end of the link tells about the peer's process.
        end: LinkEnd,
        /// The reason, in words.
        reason: String,
    },
    /// A peer's message has arrived.
    Message {
        /// The link on which the message came.
        from: LinkId,
        /// The message itself.
        message: Message,
    },
    /// The gatekeeper has judged that a node may join. The core has to spend a use of the token.
    Admit {
        /// The token that the node presented.
        token: TokenId,
        /// The node's name.
        node: NodeName,
    },
    /// See [`core::Input::Look`].
    Look(u64),
    /// This batch and all before it are durable.
    Persisted(u64),
    /// See [`core::Input::LinesOpened`].
    LinesOpened {
        /// The history that the file belongs to.
        lineage: Lineage,
        /// The lines that the file holds.
        found: LinesFound,
    },
    /// See [`core::Input::LinesDurable`].
    LinesDurable {
        /// The history that the file belongs to.
        lineage: Lineage,
        /// The last step with a durable line.
        reach: Step,
    },
    /// The process is about to end. If this coordinator leads, another one should lead instead.
    HandOver,
    /// Time has passed. The driver gives this every [`TICK`].
    Tick,
}

/// What a coordinator wants its driver to do, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send a message.
    Send {
        /// The link to send on.
        to: LinkId,
        /// The message to send.
        message: Message,
    },
    /// Send one message to many peers.
    Broadcast {
        /// The links to send on.
        to: Vec<LinkId>,
        /// The message to send.
        message: Message,
    },
    /// Close a link.
    Close {
        /// The link to close.
        to: LinkId,
        /// The reason, in words for the peer.
        reason: String,
    },
    /// What an entry has added to the history. After a restart the seat goes through its log again:
    /// the driver skips a frame that the history holds already.
    History(Frame),
    /// See [`core::Effect::OpenLines`].
    OpenLines(LineHistory),
    /// See [`core::Effect::AppendLines`].
    AppendLines(Vec<LineRecord>),
    /// See [`core::Effect::SkipLines`].
    SkipLines(Step),
    /// See [`core::Effect::TellLines`].
    TellLines {
        /// The link to the asker.
        to: LinkId,
        /// The history that the asker wants lines of.
        lineage: Lineage,
        /// The last step that the file has reached.
        reach: Step,
        /// The answer begins with the line of the next step.
        after: Step,
    },
    /// See [`core::Effect::Update`].
    Update {
        /// The link to the asker.
        to: LinkId,
        /// The lines begin after this step. None: the update has no lines.
        after: Option<Step>,
        /// The whole update except its lines.
        update: Box<Update>,
    },
    /// The core has spent a use of a token, or has refused to.
    Admitted {
        /// The token that the node presented.
        token: TokenId,
        /// The node's name.
        node: NodeName,
        /// The reason for a refusal. None if the node is admitted.
        refusal: Option<Refusal>,
    },
    /// See [`core::Effect::Looked`].
    Looked(u64),
    /// Write this, make it durable, then give [`Input::Persisted`]. Before a batch with a snapshot
    /// the history has to be durable, since the batch drops its entries. An error ends the process.
    Persist(Batch),
    /// Another coordinator lacks the history from this entry on: send it [`Message::History`].
    Recall {
        /// The link to that coordinator.
        to: LinkId,
        /// The first entry that it lacks.
        from: u64,
    },
    /// The frames of the history that this coordinator has asked for.
    Recalled(Vec<Frame>),
    /// The other coordinators go on without this one.
    Removed,
}

/// One coordinator: its core, its replica of the log, and its links to the others.
pub struct Seat {
    own: Coordinator,
    founds: Option<bool>,
    /// For a founder: the tokens that admit nodes from the beginning.
    tokens: Vec<AcceptedToken>,
    core: Core,
    replica: Replica,
    /// The term in which this coordinator leads the log. None while it does not lead.
    leads: Option<Term>,
    /// The leader, as far as this coordinator knows.
    leader: Option<ReplicaId>,
    put_off: PutOff,
    snapshot_entries: u64,
    /// The number and the bytes of the entries applied since the newest snapshot.
    since_snapshot: (u64, usize),
    writes: Writes,
    peers: Peers,
    heard: Heard,
    hearing: Hearing,
    /// The transfer of leadership that an operator waits for.
    transfer: Option<Transfer>,
    /// Set when the process ends: how often this leader has asked each of the others to lead.
    asked_to_lead: Option<BTreeMap<ReplicaId, u32>>,
    /// The time of the core's newest tick.
    core_ticked: Time,
    /// When this coordinator last told the cluster its address.
    introduced: Option<Time>,
    /// When this leader last proposed to shut out a coordinator that has left.
    said_who_left: Option<Time>,
    /// The history up to the snapshot on the disk, until the seat has installed that snapshot.
    past: Option<Vec<Frame>>,
    /// Another coordinator has to send the history before the snapshot.
    lacks_history: bool,
    /// Set after `begin`: a later snapshot comes from another coordinator, not from the disk.
    has_begun: bool,
    /// Set while a leaving coordinator keeps its links because it may send the missing history.
    teller: Option<membership::Teller>,
    /// The members of the log, as this disk has them.
    settled: Members,
    /// Links to coordinators that may have been removed, by the ticket of the read that will tell.
    doubts: BTreeMap<u64, LinkId>,
    /// The number of doubts so far. It numbers their tickets.
    doubts_before: u64,
    effects: VecDeque<Effect>,
}

// Inputs and outputs.
impl Seat {
    /// A coordinator as its disk left it, with the part of the cluster's history that it knows. The
    /// first effects replay the log on the disk.
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
        seat.begin(now)?;
        Ok(seat)
    }

    /// The same as [`Seat::new`], with a bug in the core from the first entry on.
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
        seat.begin(now)?;
        Ok(seat)
    }

    /// Replays the log on the disk. The first effects bring the history up to its end.
    fn begin(&mut self, now: Time) -> Result<(), SeatError> {
        self.advance(now)?;
        self.has_begun = true;
        Ok(())
    }

    /// The seat before its first effects.
    fn restored(
        now: Time,
        options: Options,
        kept: Kept,
        history: Vec<Frame>,
    ) -> Result<Self, SeatError> {
        let Options { own, replica, epoch_unix_ms, snapshot_entries, founds, .. } = options;
        let Options { tokens, book, lacks_history, .. } = options;
        let peers = Peers::new(replica.id, book);
        let replica = Replica::new(now, replica, kept)?;
        Ok(Self {
            own,
            founds,
            tokens,
            core: Core::new(now, epoch_unix_ms),
            writes: Writes::default(),
            peers,
            settled: replica.members().clone(),
            replica,
            leads: None,
            leader: None,
            put_off: PutOff::default(),
            snapshot_entries,
            since_snapshot: (0, 0),
            heard: Heard::default(),
            hearing: Hearing::default(),
            transfer: None,
            asked_to_lead: None,
            core_ticked: now,
            introduced: None,
            said_who_left: None,
            teller: None,
            past: Some(history),
            lacks_history,
            has_begun: false,
            doubts: BTreeMap::new(),
            doubts_before: 0,
            effects: VecDeque::new(),
        })
    }

    /// Takes the wall clock of `now`, milliseconds of Unix time.
    pub fn set_clock(&mut self, now: Time, unix_ms: u64) {
        self.core.set_clock(now, unix_ms);
    }

    /// Handles one input. `now` never goes backwards.
    ///
    /// # Errors
    /// [`SeatError`]: the coordinator cannot go on.
    pub fn handle(&mut self, now: Time, input: Input) -> Result<(), SeatError> {
        match input {
            Input::Connected { link, identity } => {
                self.peers.connected(link, &identity);
                self.core.handle(now, core::Input::Connected { link, identity: identity.clone() });
                self.introduce_to(link, &identity);
            }
            Input::Disconnected { link, end, reason } => {
                if let Some(id) = self.peers.disconnected(self.replica.members(), link) {
                    self.replica.link_lost(id);
                }
                self.core.handle(now, core::Input::Disconnected { link, end, reason });
            }
            Input::Message { from, message } => self.hear(now, from, message),
            Input::Admit { token, node } => {
                self.core.handle(now, core::Input::Admit { token, node });
            }
            Input::Persisted(number) => self.persisted(number),
            Input::Look(number) => self.core.handle(now, core::Input::Look(number)),
            Input::LinesOpened { lineage, found } => {
                self.core.handle(now, core::Input::LinesOpened { lineage, found });
            }
            Input::LinesDurable { lineage, reach } => {
                self.core.handle(now, core::Input::LinesDurable { lineage, reach });
            }
            Input::HandOver => self.hand_over(now),
            Input::Tick => self.tick(now),
        }
        self.advance(now)
    }

    /// The next effect. The driver takes all effects after every input.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Takes the whole, durable history up to the newest entry applied here. After a snapshot of
    /// another coordinator, the seat lacks the beginning of the history until this call.
    pub fn restore_history(&mut self, frames: Vec<Frame>) {
        self.lacks_history = false;
        self.core.restore_history(frames);
    }

    /// How long the driver may leave out [`Input::Tick`] if nothing else happens. A founder needs
    /// its ticks: it has to found its cluster before the first request.
    pub fn quiet(&self) -> Duration {
        let is_settled = self.put_off.is_empty() && self.core.state().knows(&self.own);
        if is_settled { self.replica.quiet() } else { TICK }
    }

    /// Whether the cluster has no run to train. Then no work depends on noticing a death at once.
    pub fn rests(&self) -> bool {
        !self.core.state().is_training()
    }

    /// The cluster's state, as this coordinator knows it.
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// Its replica of the log.
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// The term in which this coordinator leads. None if it does not lead.
    pub fn leads(&self) -> Option<Term> {
        self.leads
    }

    /// The leader, as far as this coordinator knows.
    pub fn leader(&self) -> Option<ReplicaId> {
        self.leader
    }
}

// Messages of peers.
impl Seat {
    fn hear(&mut self, now: Time, from: LinkId, message: Message) {
        let coordinator = self.peers.is_coordinator(from);
        match message {
            Message::Raft(bytes) if coordinator => self.hear_replica(now, from, &bytes),
            Message::FetchHistory { from: index } if coordinator => {
                self.effects.push_back(Effect::Recall { to: from, from: index });
            }
            Message::History { frames } if coordinator => {
                if !frames.is_empty() {
                    self.told_history(now);
                }
                self.effects.push_back(Effect::Recalled(frames));
            }
            Message::Coordinators { revision, members, .. } if coordinator => {
                self.peers.learn(revision, members, self.replica.members());
            }
            Message::Removed if coordinator => self.effects.push_back(Effect::Removed),
            Message::Join { id: Some(id), .. } if coordinator && self.was_removed(id) => {
                self.doubt(from);
            }
            Message::Joined { .. } if coordinator => {} // the log holds its content, too
            Message::Request { id, wish: Wish::Remove(gone) } if self.core.is_operator(from) => {
                self.asked_to_remove(now, from, id, gone);
            }
            Message::Hears { workers } if coordinator => self.told_hearing(now, from, workers),
            message => self.core.handle(now, core::Input::Message { from, message }),
        }
    }

    /// The link has proved the sender's name. The log gives the id of that name.
    fn hear_replica(&mut self, now: Time, from: LinkId, bytes: &[u8]) {
        let id = self.peers.id_of(self.replica.members(), from);
        let reason = match (id, raft::Message::decode(bytes)) {
            (Some(id), Ok(message)) => {
                self.heard.hear(now, id);
                return self.replica.receive(id, &message);
            }
            // The sender of a snapshot waits for an answer until the link ends. The sender repeats
            // other messages by itself, and its id may be known by then.
            (None, Ok(message)) if message.is_snapshot() => "it is not known here yet".into(),
            (None, Ok(_)) => return self.doubt(from),
            (_, Err(error)) => error.to_string(),
        };
        self.effects.push_back(Effect::Close { to: from, reason });
    }
}

// Time.
impl Seat {
    fn tick(&mut self, now: Time) {
        self.replica.rest(self.rests());
        self.replica.tick(now);
        if now.since(self.core_ticked) >= core::TICK {
            self.core_ticked = now;
            self.core.handle(now, core::Input::Tick);
        }
        self.end_transfer(now);
        if self.leads.is_some() {
            self.propose_put_off(now);
            self.seek_members(now);
            self.yield_to_faster(now);
            self.seek_heir(now);
        }
        self.compare_hearing(now);
        self.settle_in(now);
    }
}

#[cfg(test)]
mod tests;

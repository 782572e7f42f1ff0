//! A coordinator among others: the core, and its replica of the log, as one plain state machine.
//!
//! Inputs: links and what peers say on them, batches that have become durable, the passing of time.
//! Outputs: what the core wants done, batches to write, what others ask of the history. In between
//! the core's proposals go into the log, and what is agreed comes back to it; who leads the log
//! leads the cluster. The links to other coordinators carry the log's messages (`peers.rs`).
//!
//! It knows no clock, no sockets and no files; one replica alone is a cluster, too.

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

/// How often the driver may give an [`Input::Tick`]: the replica counts time in these. It need not
/// while the seat is [quiet](Seat::quiet).
pub const TICK: Duration = raft::LAN_TICK;
/// The first ticket of a read of the seat's own: above all that the core gives.
const FIRST_DOUBT: u64 = 1 << 63;

/// Who a coordinator is.
#[derive(Clone, Debug)]
pub struct Options {
    /// As the others are to know it.
    pub own: Coordinator,
    /// Its replica of the log.
    pub replica: raft::Options,
    /// The wall clock at time zero, milliseconds of Unix time: events are stamped with it.
    pub epoch_unix_ms: u64,
    /// A snapshot is taken when so many entries are behind the one before.
    pub snapshot_entries: u64,
    /// If it founds the cluster: whether that is there for one run.
    pub founds: Option<bool>,
    /// If it founds the cluster: the tokens that admit nodes from the beginning.
    pub tokens: Vec<AcceptedToken>,
    /// Who the coordinators were when it last heard of them, with the list's revision.
    pub book: (u64, Vec<CoordinatorView>),
    /// Whether a part of the history that is not in its log any more is missing.
    pub lacks_history: bool,
}

/// What happens to a coordinator.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant)] // taken one at a time, and never kept
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
        /// What that tells of the peer's process.
        end: LinkEnd,
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
    /// See [`core::Input::Look`].
    Look(u64),
    /// This batch is durable, and so are all before it.
    Persisted(u64),
    /// See [`core::Input::LinesOpened`].
    LinesOpened {
        /// Of which history the file is.
        lineage: Lineage,
        /// What it holds.
        found: LinesFound,
    },
    /// See [`core::Input::LinesDurable`].
    LinesDurable {
        /// Of which history the file is.
        lineage: Lineage,
        /// Up to this step.
        reach: Step,
    },
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
    /// See [`core::Effect::OpenLines`].
    OpenLines(LineHistory),
    /// See [`core::Effect::AppendLines`].
    AppendLines(Vec<LineRecord>),
    /// See [`core::Effect::SkipLines`].
    SkipLines(Step),
    /// See [`core::Effect::TellLines`].
    TellLines {
        /// Its link.
        to: LinkId,
        /// Of which history.
        lineage: Lineage,
        /// How far the file goes.
        reach: Step,
        /// The step.
        after: Step,
    },
    /// See [`core::Effect::Update`].
    Update {
        /// Its link.
        to: LinkId,
        /// The step.
        after: Option<Step>,
        /// All but the lines.
        update: Box<Update>,
    },
    /// A use of a token was spent, or not.
    Admitted {
        /// The token.
        token: TokenId,
        /// The node.
        node: NodeName,
        /// Why it is not admitted after all.
        refusal: Option<Refusal>,
    },
    /// See [`core::Effect::Looked`].
    Looked(u64),
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

/// One coordinator.
pub struct Seat {
    own: Coordinator,
    founds: Option<bool>,
    /// If it founds the cluster: the tokens that admit nodes from the beginning.
    tokens: Vec<AcceptedToken>,
    core: Core,
    replica: Replica,
    /// The term in which it leads the log.
    leads: Option<Term>,
    /// Who leads, as far as is known.
    leader: Option<ReplicaId>,
    put_off: PutOff,
    snapshot_entries: u64,
    /// What was applied since the newest snapshot.
    since_snapshot: (u64, usize),
    writes: Writes,
    peers: Peers,
    heard: Heard,
    hearing: Hearing,
    /// The transfer of leadership that an operator waits for.
    transfer: Option<Transfer>,
    /// If it is to end: how often each of the others was asked to lead instead.
    asked_to_lead: Option<BTreeMap<ReplicaId, u32>>,
    /// The newest tick of the core.
    core_ticked: Time,
    /// When it last said where it is.
    introduced: Option<Time>,
    /// When it last proposed to shut out who has left.
    said_who_left: Option<Time>,
    /// The history up to the snapshot that the disk holds, until that is installed.
    past: Option<Vec<Frame>>,
    /// Another coordinator has to tell what happened before its snapshot.
    lacks_history: bool,
    /// A snapshot comes from another coordinator, not from the disk.
    has_begun: bool,
    /// Who leaves is kept for that.
    teller: Option<membership::Teller>,
    /// The replicas, as this disk has them.
    settled: Members,
    /// Who may have been removed, by the ticket of a read that will tell.
    doubts: BTreeMap<u64, LinkId>,
    /// How many doubts there have been.
    doubts_before: u64,
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
        seat.begin(now)?;
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
        seat.begin(now)?;
        Ok(seat)
    }

    /// Its first effects, which go through what the disk holds: the history goes as far.
    fn begin(&mut self, now: Time) -> Result<(), SeatError> {
        self.advance(now)?;
        self.has_begun = true;
        Ok(())
    }

    /// Before its first effects.
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

    /// The next thing to do; none until more happens. To be drained after every input.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Takes the whole history up to the newest entry that was applied here, once that is known:
    /// after a snapshot of another coordinator its beginning is not. It is to be durable.
    pub fn restore_history(&mut self, frames: Vec<Frame>) {
        self.lacks_history = false;
        self.core.restore_history(frames);
    }

    /// For so long it need not be given an [`Input::Tick`], if nothing else happens. A founder has
    /// to found its cluster before anybody asks for anything.
    pub fn quiet(&self) -> Duration {
        let is_settled = self.put_off.is_empty() && self.core.state().knows(&self.own);
        if is_settled { self.replica.quiet() } else { TICK }
    }

    /// Whether the cluster has no run to train: nothing depends on a death that is noticed at once.
    pub fn rests(&self) -> bool {
        !self.core.state().is_training()
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
}

// What peers say.
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
            Message::Joined { .. } if coordinator => {} // what it says is in the log, too
            Message::Request { id, wish: Wish::Remove(gone) } if self.core.is_operator(from) => {
                self.asked_to_remove(now, from, id, gone);
            }
            Message::Hears { workers } if coordinator => self.told_hearing(now, from, workers),
            message => self.core.handle(now, core::Input::Message { from, message }),
        }
    }

    /// Who it is, its link has proved; under which id, the log says.
    fn hear_replica(&mut self, now: Time, from: LinkId, bytes: &[u8]) {
        let id = self.peers.id_of(self.replica.members(), from);
        let reason = match (id, raft::Message::decode(bytes)) {
            (Some(id), Ok(message)) => {
                self.heard.hear(now, id);
                return self.replica.receive(id, &message);
            }
            // Who sends one waits for an answer as long as the link lasts; what else is said comes
            // again by itself, when it is known who says it.
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

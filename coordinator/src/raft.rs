//! A replica of the log as a plain state machine: Raft, without clock, disk, sockets or chance.
//!
//! Inputs: the passing of time, messages of other replicas, proposals, reads, requests to change
//! the members or the leader, and the news that a batch is durable. Outputs: messages, batches to
//! write, agreed entries, snapshots to install, and the leader. A replica does not know what an
//! entry means, how a message travels, or what a file is.
//!
//! It wraps the `raft` crate, and does what that crate leaves to its user:
//!
//! - **No message goes out before its batch is durable.** Messages of a follower or candidate wait
//!   for the batch that they rest on (`writes.rs`). A leader's messages go at once, while its
//!   entries are written here, but only once its *term* is on the disk. Otherwise a leader that
//!   elected itself could speak in a term that it may use a second time.
//! - **The commit is written with the entries it came with.** A follower that holds one change of
//!   members then knows, after a restart too, that the change before is agreed. So it never counts
//!   votes by a set of members that is two changes old.
//! - **No election while a write is under way.** Raft takes for granted that the log of a candidate
//!   is durable, and stops the process where it is not. The time-out rests meanwhile.
//! - **A removed leader steps down** (`change.rs`), for Raft lets it lead on.
//! - **The replica refuses every message that no sound peer sends** (`admit.rs`), since Raft stops
//!   the process over it.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

mod admit;
mod batch;
mod change;
mod drive;
mod invariants;
mod members;
mod memory_storage;
mod message;
#[cfg(feature = "planted")]
pub mod plant;
mod quiet;
mod reads;
mod settings;
mod step_down;
mod tick_rate;
mod writes;

use std::collections::{BTreeMap, VecDeque};

use ::raft::{RawNode, SnapshotStatus, StateRole};
use everstep_transport::protocol::Term;
use everstep_transport::time::Time;

pub use self::batch::{
    CorruptState, DurableState, EntryKind, HardState, LogPosition, RaftEntry, Snapshot, WriteBatch,
};
use self::change::parse_change;
use self::members::NO_REPLICA;
pub use self::members::{MAX_MEMBERS, Members, ReplicaId};
use self::memory_storage::MemoryStorage;
pub use self::message::{MalformedMessage, Message};
use self::reads::ReadTickets;
pub use self::settings::{LAN_TICK, MAX_ENTRY_BYTES};
use self::settings::{LEASE_TICKS, MAX_UNCOMMITTED};
use self::tick_rate::TickRate;
use self::writes::BatchWrites;

/// The identity and the settings of a replica.
#[derive(Clone, Copy, Debug)]
pub struct RaftOptions {
    /// The id of this replica.
    pub id: ReplicaId,
    /// A cluster-wide number. The election time-outs follow from this, the replica's id and the
    /// term.
    pub seed: u64,
    /// How many entries before a snapshot's place stay in the log, for a replica that is a little
    /// behind.
    pub keep: u64,
    /// A bug that a test plants.
    #[cfg(feature = "planted")]
    pub plant: Option<plant::RaftPlant>,
}

impl RaftOptions {
    /// The options of a replica without a planted bug.
    pub fn new(id: ReplicaId, seed: u64, keep: u64) -> Self {
        Self {
            id,
            seed,
            keep,
            #[cfg(feature = "planted")]
            plant: None,
        }
    }
}

/// An entry for the state machine that is agreed on and durable here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedEntry {
    /// The entry's place in the log. Places that are left out hold Raft's own entries.
    pub position: LogPosition,
    /// The bytes that the leader proposed.
    pub bytes: Vec<u8>,
}

/// What a replica wants its driver to do, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum RaftEffect {
    /// Send a message to a replica. Messages to one replica stay in order, except snapshots.
    Send {
        /// The replica that receives the message.
        to: ReplicaId,
        /// The message to send.
        message: Message,
    },
    /// Write this, make it durable, then call [`Replica::persisted`]. An error ends the process:
    /// only the next start can tell what the disk holds then.
    Persist(WriteBatch),
    /// Apply these entries, in order.
    Apply(Vec<CommittedEntry>),
    /// Replace the state machine by this snapshot.
    Install(Snapshot),
    /// Call [`Replica::compact`] now: a replica that became a member after the last snapshot needs
    /// one. The effect comes again until the snapshot is there.
    TakeSnapshot,
    /// This replica leads from now on.
    Leads(Term),
    /// This replica does not lead.
    Follows {
        /// The leader, if this replica knows it.
        leader: Option<ReplicaId>,
        /// The newest term that this replica knows.
        term: Term,
    },
    /// A read may look at the state machine now. It has applied all that was agreed before the read
    /// began.
    Read {
        /// The caller's number of the read.
        ticket: u64,
        /// The commit index that the read saw.
        index: u64,
    },
    /// A read gets no answer, because this replica does not lead.
    ReadLost {
        /// The caller's number of the read.
        ticket: u64,
    },
    /// The disk has lost entries that this replica has acknowledged, and perhaps votes. The process
    /// must not go on as this replica.
    Forgotten {
        /// The index of the last entry on the disk.
        last: u64,
        /// The index of an entry that this replica had acknowledged.
        agreed: u64,
    },
    /// The members have changed, durably here. After a restart this replica asks no former member
    /// for a vote. Other replicas may not know of the change yet.
    Members(Members),
}

/// Why a request failed. It has not happened and will not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Another replica leads, or none.
    #[error("this replica does not lead")]
    NotLeader,
    /// Leadership is being handed over.
    #[error("leadership is being handed over")]
    HandingOver,
    /// Too many proposals are not agreed on yet.
    #[error("too much is proposed already")]
    Full,
    /// The log cannot hold such an entry, or Raft cannot have such members.
    #[error("it cannot be: {0}")]
    Impossible(&'static str),
}

/// A replica of the log. Every call leaves effects behind. The caller polls them at once.
pub struct Replica {
    id: ReplicaId,
    seed: u64,
    tick_rate: TickRate,
    keep: u64,
    node: RawNode<MemoryStorage>,
    /// The time up to which the replica has counted ticks.
    ticked: Time,
    /// The members since the snapshot, by the index at which they became it.
    history: BTreeMap<u64, Members>,
    /// The voters that this leader has to bring about, by id.
    goal: Option<Vec<ReplicaId>>,
    writes: BatchWrites,
    reads: ReadTickets,
    /// The leader and the term that the last effect told.
    told: Option<(Option<ReplicaId>, Term)>,
    effects: VecDeque<RaftEffect>,
    refused: u64,
    /// Whether the cluster is at rest.
    rests: bool,
    /// A leader's `TimeoutNow` that arrived while a write was under way.
    timeout_now: Option<::raft::eraftpb::Message>,
    #[cfg(feature = "planted")]
    plant: Option<plant::RaftPlant>,
}

// Inputs.
impl Replica {
    /// A replica as its disk left it. Its first effects rebuild the state machine.
    ///
    /// # Errors
    /// [`CorruptState`], if the disk holds a contradiction.
    pub fn new(now: Time, options: RaftOptions, kept: DurableState) -> Result<Self, CorruptState> {
        kept.validate()?;
        let RaftOptions { id, seed, keep, .. } = options;
        let Snapshot { position, members, .. } = kept.snapshot.clone();
        let (snapshot, term) = (kept.snapshot.clone(), kept.hard_state.term.0);
        let settings = settings::settings(id, position.index);
        let node = RawNode::new(&settings, MemoryStorage::new(kept), &::raft::Logger);
        let mut replica = Self {
            id,
            seed,
            tick_rate: TickRate::new(now),
            keep,
            node: node.expect("what is kept is sound, and so are the settings"),
            ticked: now,
            history: BTreeMap::from([(position.index, members.clone())]),
            goal: None,
            writes: BatchWrites::new(term),
            reads: ReadTickets::default(),
            told: None,
            effects: VecDeque::new(),
            refused: 0,
            rests: false,
            timeout_now: None,
            #[cfg(feature = "planted")]
            plant: options.plant,
        };
        if position.index > 0 {
            replica.effects.extend([RaftEffect::Install(snapshot), RaftEffect::Members(members)]);
        }
        replica.drive();
        // A replica that decides alone need not wait for another one.
        if replica.members().are_only(id) && !replica.is_writing() {
            let _ = replica.node.campaign(); // refused while a change of members is not applied
            replica.drive();
        }
        Ok(replica)
    }

    /// Time has passed. After a long gap not all of it counts: first the replica hears the messages
    /// that have come meanwhile. Only then does it give up its leader, or its own lead.
    pub fn tick(&mut self, now: Time) {
        self.tick_rate.pass(now);
        let tick = self.tick_rate.tick(self.is_elected());
        let due = now.since(self.ticked).as_nanos() / tick.as_nanos();
        let due = due as usize; // a span of time has fewer ticks than that
        let late = due > self.quiet_ticks().max(self.heartbeat());
        self.ticked = if late { now } else { self.ticked + tick * due as u32 };
        let (leader_before, term_before) = self.leader_of_term();
        for _ in 0..due.min(LEASE_TICKS) {
            if late && self.times_out_next() || self.must_rest() {
                break;
            }
            self.node.tick();
            self.set_election_timeout();
        }
        self.notice_if_given_up(leader_before, term_before);
        self.drive();
    }

    /// Handles a replica's message. `from` is the id that the link has proved.
    pub fn receive(&mut self, from: ReplicaId, message: &Message) {
        if let Some(reason) = self.objection(from, message) {
            tracing::warn!(%from, reason, ?message.kind, "a message was refused");
            self.refused += 1;
            if reason == admit::FORGOTTEN {
                let last = self.node.raft.raft_log.last_index();
                self.effects.push_back(RaftEffect::Forgotten { last, agreed: message.commit });
            }
            return;
        }
        if self.must_ignore(message) {
            return;
        }
        self.tick_rate.hear(from, message, self.node.raft.term);
        let heard = message.to_raft(from, self.id);
        if message.is_timeout_now() && self.is_writing() {
            self.timeout_now = Some(heard);
            return;
        }
        self.follow_into_term(message);
        // An error means an answer of a replica that is no longer a member.
        let _ = self.node.step(heard);
        self.drive();
    }

    /// Proposes an entry. It will stand at the returned place, or nowhere.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn propose(&mut self, bytes: Vec<u8>) -> Result<LogPosition, Refused> {
        self.check_leading()?;
        if bytes.is_empty() || bytes.len() > MAX_ENTRY_BYTES {
            return Err(Refused::Impossible("an entry that is empty, or too large"));
        }
        let log = &self.node.raft.raft_log;
        if log.last_index() - log.applied() >= MAX_UNCOMMITTED {
            return Err(Refused::Full);
        }
        self.node.propose(Vec::new(), bytes).map_err(|_| Refused::Full)?;
        let raft = &self.node.raft;
        let position = LogPosition { index: raft.raft_log.last_index(), term: Term(raft.term) };
        self.drive();
        Ok(position)
    }

    /// A batch and all before it are durable.
    pub fn persisted(&mut self, number: u64) {
        self.writes.persisted(number);
        self.release();
        self.drive();
        if let Some(timeout_now) = self.timeout_now.take_if(|_| !self.writes.are_under_way()) {
            let _ = self.node.step(timeout_now); // refused if its term is older
            self.drive();
        }
    }

    /// Asks for the moment at which all that is agreed by now is applied. One answer comes:
    /// [`RaftEffect::Read`] or [`RaftEffect::ReadLost`]. The caller chooses the ticket.
    pub fn read(&mut self, ticket: u64) {
        // Before its first agreed entry a leader does not know what is agreed. Raft does not answer
        // then.
        let knows = self.leads() && self.node.raft.commit_to_current_term();
        #[cfg(feature = "planted")]
        if knows && self.plant == Some(plant::RaftPlant::ReadAtOnce) {
            let index = self.node.raft.raft_log.applied();
            return self.effects.push_back(RaftEffect::Read { ticket, index });
        }
        match knows.then(|| self.reads.ask(ticket)).flatten() {
            Some(context) => self.node.read_index(context),
            None => self.effects.push_back(RaftEffect::ReadLost { ticket }),
        }
        self.drive();
    }

    /// Asks for these voters and no other members. A joiner learns the log first, however long that
    /// takes. A later call replaces this one. The request is lost with leadership.
    ///
    /// # Errors
    /// [`Refused::NotLeader`], [`Refused::Impossible`].
    pub fn change(&mut self, mut voters: Vec<ReplicaId>) -> Result<(), Refused> {
        self.check_leading()?;
        voters.sort_unstable();
        let members = Members { voters, ..Members::default() };
        if !members.is_sound() {
            return Err(Refused::Impossible(
                "a list of voters that is empty, has one twice, or is too long",
            ));
        }
        self.goal = Some(members.voters);
        self.drive();
        Ok(())
    }

    /// Whether these, by id, are the voters, and no other change is wanted.
    pub fn is_settled_on(&self, voters: &[ReplicaId]) -> bool {
        let members = self.members();
        let is_so = members.voters == voters && members.learners.is_empty() && !members.is_joint();
        is_so && self.goal.as_ref().is_none_or(|goal| goal == voters)
    }

    /// Whether a replica is no member, and no change that this leader knows of can make it one.
    pub fn is_done_without(&self, id: ReplicaId) -> bool {
        let is_wanted = self.goal.as_ref().is_some_and(|goal| goal.contains(&id));
        !is_wanted && !self.members().contain(id) && !self.node.raft.has_pending_conf()
    }

    /// Takes the encoded state machine as of an applied index. The log may drop the entries before
    /// it.
    ///
    /// # Panics
    /// If the replica has not handed out the entry at that index.
    pub fn compact(&mut self, index: u64, bytes: Vec<u8>) {
        assert!(index <= self.node.raft.raft_log.applied(), "{index} is not applied");
        let kept = self.node.store().kept();
        let index = self.stands_for(index.max(kept.snapshot.position.index));
        if index <= kept.snapshot.position.index {
            return;
        }
        let place_of =
            |index| LogPosition { index, term: kept.term(index).expect("it is in the log") };
        let base = kept.base.index.max(index.saturating_sub(self.keep));
        let (position, base) = (place_of(index), place_of(base));
        let (_, members) = self.history.range(..=index).next_back().expect("since the snapshot");
        let members = members.clone();
        self.history = self.history.split_off(&(index + 1));
        self.history.insert(index, members.clone());
        #[cfg(feature = "planted")]
        let members = match self.plant {
            Some(plant::RaftPlant::ForgetMembers) => Members::default(),
            _ => members,
        };
        self.write_snapshot(Snapshot { position, members, bytes }, base);
        self.drive();
    }

    /// The last index at which the state machine is the same as at `index`: only Raft's own entries
    /// lie between.
    fn stands_for(&self, index: u64) -> u64 {
        let kept = self.node.store().kept();
        let behind = kept.entries.range(kept.position(index + 1)..);
        let applied = self.node.raft.raft_log.applied();
        let same = behind.take_while(|it| it.position.index <= applied && !it.is_command());
        same.last().map_or(index, |entry| entry.position.index)
    }

    /// The link to a replica is gone, with everything that was under way on it.
    pub fn link_lost(&mut self, peer: ReplicaId) {
        self.tick_rate.link_lost(peer);
        self.node.report_unreachable(peer.0);
        self.snapshot_done(peer, false);
    }

    /// A snapshot has reached a replica, or never will.
    pub fn snapshot_done(&mut self, peer: ReplicaId, reached: bool) {
        let status = if reached { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.node.report_snapshot(peer.0, status);
        self.drive();
    }
}

// Outputs.
impl Replica {
    /// The next effect. None when all effects are taken.
    pub fn poll_effect(&mut self) -> Option<RaftEffect> {
        let mut effect = self.effects.pop_front();
        if let Some(RaftEffect::Send { to, message }) = &mut effect {
            self.tick_rate.stamp(*to, message);
        }
        effect
    }

    /// The members, according to the changes applied here.
    pub fn members(&self) -> &Members {
        self.history.values().next_back().expect("never empty")
    }

    /// The index up to which a replica is known to have the log. A leader knows it of all members.
    /// Any other replica knows only its own.
    pub fn matched(&self, id: ReplicaId) -> Option<u64> {
        let raft = &self.node.raft;
        match self.leads() {
            true => raft.prs().get(id.0).map(|progress| progress.matched),
            false => (id == self.id).then(|| raft.raft_log.last_index()),
        }
    }

    /// The index up to which the replica has handed out entries to apply.
    pub fn applied(&self) -> u64 {
        self.node.raft.raft_log.applied()
    }

    /// How many messages this replica has refused since its start.
    pub fn refused(&self) -> u64 {
        self.refused
    }
}

impl Replica {
    /// Whether this replica is elected. Its term may not be on its disk yet.
    fn is_elected(&self) -> bool {
        self.node.raft.state == StateRole::Leader
    }

    /// Whether this replica leads with a term on its disk. It cannot lead that term a second time.
    fn leads(&self) -> bool {
        #[cfg(feature = "planted")]
        if self.plant == Some(plant::RaftPlant::LeadEarly) {
            return self.is_elected();
        }
        self.is_elected() && self.writes.durable_term() == self.node.raft.term
    }

    /// Adopts the term of a PreVote request unless a leader is alive. A refusal tells the asker
    /// what is agreed on. The asker may need that: if it does not know that a change of members is
    /// agreed, it may ask removed members, with longer logs, for ever. But Raft ignores a refusal
    /// in an older term, and a PreVote alone takes no replica to a newer one.
    fn follow_into_term(&mut self, message: &Message) {
        let raft = &mut self.node.raft;
        let hears = raft.leader_id != NO_REPLICA.0 && raft.election_elapsed < LEASE_TICKS;
        if let Some(term) = message.term_of_asker().filter(|term| *term > raft.term && !hears) {
            raft.become_follower(term, NO_REPLICA.0);
        }
    }

    fn check_leading_or_handing_over(&self) -> Result<(), Refused> {
        if self.leads() { Ok(()) } else { Err(Refused::NotLeader) }
    }

    fn check_leading(&self) -> Result<(), Refused> {
        self.check_leading_or_handing_over()?;
        if self.is_handing_over() { Err(Refused::HandingOver) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;

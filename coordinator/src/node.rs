//! A coordinator among others: the core and its replica of the log, as one plain state machine.
//!
//! Inputs: links, messages of peers, batches that have become durable, and the passing of time.
//! Outputs: the core's effects, batches to write, and requests for the history. The node carries
//! the core's proposals to the log and carries agreed entries back to the core. The replica that
//! leads the log leads the cluster. The links to other coordinators carry the log's messages
//! (`peers.rs`).
//!
//! A node has no clock, no sockets and no files. A single replica is a cluster, too.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

mod error;
mod history_restore;
mod introduction;
mod leadership;
mod log;
mod membership;
mod peers;
mod proposal_queue;
mod removal;
mod snapshots;
mod state_comparison;
mod status;
mod transfer;
mod worker_reach;
mod writes;

use std::collections::VecDeque;
use std::time::Duration;

use everstep_transport::identity::AcceptedToken;
use everstep_transport::protocol::{CoordinatorView, HistoryEntry, Message, OperatorCommand, Term};
use everstep_transport::time::Time;

pub use self::error::NodeError;
use self::history_restore::HistoryRestore;
use self::introduction::Introduction;
use self::leadership::LogLeadership;
use self::peers::Peers;
use self::proposal_queue::ProposalQueue;
use self::removal::Removals;
use self::snapshots::SnapshotSchedule;
use self::state_comparison::StateComparison;
pub use self::status::ReachableVoters;
use self::transfer::Handover;
use self::worker_reach::WorkerReach;
use self::writes::DiskWrites;
use crate::core::{self, Core, CoreInput, HistoryCache, LinkId, ShellEffect, ShellInput};
use crate::raft::{self, DurableState, RaftOptions, Replica, ReplicaId, WriteBatch};
use crate::state::CoordinatorInfo;

/// How often the driver gives a [`NodeInput::Tick`], unless the node is [quiet](Node::quiet).
/// The replica counts time in these ticks.
pub const NODE_TICK: Duration = raft::LAN_TICK;

/// The identity and the settings of a coordinator.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// The name and the addresses by which the other coordinators know this one.
    pub own: CoordinatorInfo,
    /// The settings of its replica of the log.
    pub replica: RaftOptions,
    /// The wall clock at time zero, milliseconds of Unix time. Events take their times from it.
    pub epoch_unix_ms: u64,
    /// The node takes a snapshot after this many entries since the last snapshot.
    pub snapshot_entries: u64,
    /// `Some` if this coordinator founds the cluster: whether the cluster exists for one run only.
    pub founds: Option<bool>,
    /// For a founder: the tokens that admit nodes from the beginning.
    pub tokens: Vec<AcceptedToken>,
    /// The newest list of the coordinators that this one has heard of, with the list's revision.
    pub membership: (u64, Vec<CoordinatorView>),
    /// Whether a part of the history that the log has already dropped is missing here.
    pub lacks_history: bool,
}

/// What happens to a coordinator.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant)] // the driver takes one at a time and keeps none
pub enum NodeInput {
    /// The shell has news for the core.
    Shell(ShellInput),
    /// This batch and all before it are durable.
    Persisted(u64),
    /// The process is about to end. If this coordinator leads, another one should lead instead.
    HandOver,
    /// Time has passed. The driver gives this every [`NODE_TICK`].
    Tick,
}

impl From<ShellInput> for NodeInput {
    fn from(it: ShellInput) -> Self {
        Self::Shell(it)
    }
}

/// What a coordinator wants its driver to do, in this order.
#[allow(clippy::large_enum_variant)] // the driver drains them after every input
#[derive(Clone, Debug, PartialEq)]
pub enum NodeEffect {
    /// The core wants this. After a restart the node goes through its log again: the driver skips
    /// what the history holds already.
    Shell(ShellEffect),
    /// Write this, make it durable, then give [`NodeInput::Persisted`]. The history has to be
    /// durable before a batch with a snapshot, which drops its entries. An error ends the process.
    Persist(WriteBatch),
    /// Another coordinator lacks the history from this entry on: send it [`Message::History`].
    Recall {
        /// The link to that coordinator.
        to: LinkId,
        /// The first entry that it lacks.
        from: u64,
    },
    /// The part of the history that this coordinator has asked for.
    Recalled(Vec<HistoryEntry>),
    /// The other coordinators go on without this one.
    Removed,
}

impl From<ShellEffect> for NodeEffect {
    fn from(it: ShellEffect) -> Self {
        Self::Shell(it)
    }
}

/// One coordinator: its core, its replica of the log, and its links to the others.
pub struct Node {
    core: Core,
    replica: Replica,
    leadership: LogLeadership,
    introduction: Introduction,
    peers: Peers,
    proposal_queue: ProposalQueue,
    snapshots: SnapshotSchedule,
    writes: DiskWrites,
    history: HistoryRestore,
    removals: Removals,
    handover: Handover,
    worker_reach: WorkerReach,
    comparison: StateComparison,
    /// The time of the core's newest tick.
    core_ticked: Time,
    effects: VecDeque<NodeEffect>,
}

// Inputs and outputs.
impl Node {
    /// A coordinator as its disk left it, with the cluster's history up to the snapshot on the
    /// disk, as far as it knows that. The first effects replay the log on the disk.
    ///
    /// # Errors
    /// [`NodeError`].
    pub fn new(
        now: Time,
        options: NodeOptions,
        kept: DurableState,
        history: HistoryCache,
    ) -> Result<Self, NodeError> {
        let mut node = Self::restored(now, options, kept, history)?;
        node.begin(now)?;
        Ok(node)
    }

    /// The same as [`Node::new`], with a bug in the core from the first entry on.
    ///
    /// # Errors
    /// [`NodeError`].
    #[cfg(feature = "planted")]
    pub fn planted(
        now: Time,
        options: NodeOptions,
        kept: DurableState,
        history: HistoryCache,
        plant: crate::plant::CorePlant,
    ) -> Result<Self, NodeError> {
        let mut node = Self::restored(now, options, kept, history)?;
        node.core.plant(plant);
        node.begin(now)?;
        Ok(node)
    }

    /// Replays the log on the disk. The first effects bring the history up to its end.
    fn begin(&mut self, now: Time) -> Result<(), NodeError> {
        self.advance(now)?;
        self.history.begin();
        Ok(())
    }

    /// The node before its first effects.
    fn restored(
        now: Time,
        options: NodeOptions,
        kept: DurableState,
        history: HistoryCache,
    ) -> Result<Self, NodeError> {
        let NodeOptions { own, replica, epoch_unix_ms, snapshot_entries, founds, .. } = options;
        let NodeOptions { tokens, membership, lacks_history, .. } = options;
        let (revision, views) = membership;
        let peers = Peers::new(replica.id, revision, views);
        let replica = Replica::new(now, replica, kept)?;
        let mut core = Core::new(now, epoch_unix_ms);
        core.restore_history(history.emptied());
        Ok(Self {
            core,
            leadership: LogLeadership::default(),
            introduction: Introduction::new(own, founds, tokens),
            peers,
            proposal_queue: ProposalQueue::default(),
            snapshots: SnapshotSchedule::new(snapshot_entries),
            writes: DiskWrites::default(),
            history: HistoryRestore::new(history, lacks_history),
            removals: Removals::new(replica.members().clone()),
            handover: Handover::default(),
            worker_reach: WorkerReach::default(),
            comparison: StateComparison::default(),
            core_ticked: now,
            effects: VecDeque::new(),
            replica,
        })
    }

    /// Takes the wall clock of `now`, milliseconds of Unix time.
    pub fn set_clock(&mut self, now: Time, unix_ms: u64) {
        self.core.set_clock(now, unix_ms);
    }

    /// Handles one input. `now` never goes backwards.
    ///
    /// # Errors
    /// [`NodeError`]: the coordinator cannot go on.
    pub fn handle(&mut self, now: Time, input: impl Into<NodeInput>) -> Result<(), NodeError> {
        match input.into() {
            NodeInput::Shell(input) => self.on_shell_input(now, input)?,
            NodeInput::Persisted(number) => self.persisted(number),
            NodeInput::HandOver => self.hand_over(now),
            NodeInput::Tick => self.tick(now),
        }
        self.advance(now)
    }

    /// The core takes what concerns it. Links and messages of coordinators concern the node, too.
    fn on_shell_input(&mut self, now: Time, input: ShellInput) -> Result<(), NodeError> {
        match input {
            ShellInput::Connected { link, identity, address } => {
                self.peers.connected(link, &identity);
                let connected = ShellInput::Connected { link, identity: identity.clone(), address };
                self.core.handle(now, connected);
                self.introduce_to(link, &identity);
            }
            ShellInput::Disconnected { link, end } => {
                if let Some(id) = self.peers.disconnected(self.replica.members(), link) {
                    self.replica.link_lost(id);
                }
                self.core.handle(now, ShellInput::Disconnected { link, end });
            }
            ShellInput::Message { from, message } => return self.on_message(now, from, message),
            of_core => self.core.handle(now, of_core),
        }
        Ok(())
    }

    fn push(&mut self, effect: impl Into<NodeEffect>) {
        self.effects.push_back(effect.into());
    }

    /// The next effect. The driver takes all effects after every input.
    pub fn poll_effect(&mut self) -> Option<NodeEffect> {
        self.effects.pop_front()
    }

    /// Takes the whole, durable history up to the newest entry applied here. After a snapshot of
    /// another coordinator, the node lacks the beginning of the history until this call.
    pub fn restore_history(&mut self, history: HistoryCache) {
        self.history.complete();
        self.core.restore_history(history);
    }

    /// How long the driver may leave out [`NodeInput::Tick`] if nothing else happens. A founder
    /// needs its ticks: it has to found its cluster before the first request.
    pub fn quiet(&self) -> Duration {
        let is_settled =
            self.proposal_queue.is_empty() && self.core.state().knows(self.introduction.own());
        if is_settled { self.replica.quiet() } else { NODE_TICK }
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
        self.leadership.term()
    }

    /// The leader, as far as this coordinator knows.
    pub fn leader(&self) -> Option<ReplicaId> {
        self.leadership.leader()
    }
}

// Messages of peers.
impl Node {
    fn on_message(&mut self, now: Time, from: LinkId, message: Message) -> Result<(), NodeError> {
        let coordinator = self.peers.is_coordinator(from);
        let operator = self.core.is_operator(from);
        match message {
            Message::Raft(bytes) if coordinator => self.on_raft_message(now, from, &bytes),
            Message::FetchHistory { from: index } if coordinator => {
                self.push(NodeEffect::Recall { to: from, from: index });
            }
            Message::History { entries } if coordinator => {
                if !entries.is_empty() {
                    self.on_history_page(now);
                }
                self.push(NodeEffect::Recalled(entries));
            }
            Message::Coordinators { revision, members, .. } if coordinator => {
                self.peers.learn(revision, members, self.replica.members());
            }
            Message::Removed if coordinator => self.push(NodeEffect::Removed),
            Message::Join { id: Some(id), .. } if coordinator && self.was_removed(id) => {
                self.check_removal(from);
            }
            Message::Joined { .. } if coordinator => {} // the log holds its content, too
            Message::Request { id, command: OperatorCommand::Remove(gone) } if operator => {
                self.on_remove_request(now, from, id, gone);
            }
            Message::Hears { workers } if coordinator => self.on_worker_count(now, from, workers),
            Message::StateDigest { index, digest } => {
                return self.on_state_digest(from, (index, digest));
            }
            message => self.core.handle(now, ShellInput::Message { from, message }),
        }
        Ok(())
    }

    /// The link has proved the sender's name. The log gives the id of that name.
    fn on_raft_message(&mut self, now: Time, from: LinkId, bytes: &[u8]) {
        let id = self.peers.id_of(self.replica.members(), from);
        let reason = match (id, raft::Message::decode(bytes)) {
            (Some(id), Ok(message)) => {
                self.peers.hear(now, id);
                return self.replica.receive(id, &message);
            }
            // The sender of a snapshot waits for an answer until the link ends. The sender repeats
            // other messages by itself, and its id may be known by then.
            (None, Ok(message)) if message.is_snapshot() => "it is not known here yet".into(),
            (None, Ok(_)) => return self.check_removal(from),
            (_, Err(error)) => error.to_string(),
        };
        self.push(ShellEffect::Close { to: from, reason });
    }
}

// Time.
impl Node {
    fn tick(&mut self, now: Time) {
        self.replica.rest(self.rests());
        self.replica.tick(now);
        if now.since(self.core_ticked) >= core::CORE_TICK {
            self.core_ticked = now;
            self.core.handle(now, CoreInput::Tick);
        }
        self.end_transfer(now);
        if self.leadership.leads() {
            self.propose_queued(now);
            self.seek_members(now);
            self.yield_to_faster(now);
            self.seek_heir(now);
        }
        self.compare_reach(now);
        self.announce_itself(now);
    }
}

#[cfg(test)]
mod tests;

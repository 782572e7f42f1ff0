//! How long a tick is. Raft counts its time-outs in ticks, and a tick grows with the round trip.
//!
//! Within one place a tick is [`LAN_TICK`]. An election takes two round trips, a new leader has to
//! hear a majority within its lease, and two candidates whose time-outs end within half a round
//! trip of each other split the vote. So a tick is at least an eighth of the longest round trip to
//! a voter: the lease is two and a half round trips, the shortest time-out three, and time-outs
//! differ by up to two. Round trips below 40 ms change nothing.
//!
//! Every request between replicas carries its sender's time, and every answer carries it back. A
//! candidate that gets its answers too late to be elected knows the round trip for its next
//! attempt. Leaders and candidates tell their tick, so that no follower times out earlier than
//! they expect.
//!
//! Without a run ticks are longer, since each heartbeat costs every replica some wake-ups.
//!
//! A leader that its followers gave up and hear again was slow, not gone. Then ticks double for a
//! while, as on a machine that has too much to do.

use std::collections::BTreeMap;
use std::time::Duration;

use everstep_transport::time::Time;

use super::Replica;
use super::members::{NO_REPLICA, ReplicaId};
use super::message::{Message, MessageKind};
use super::settings::{self, LAN_TICK, LEASE_TICKS, REST_TICK};

/// The longest tick: for round trips up to a second, and some slack.
const MAX_TICK: Duration = Duration::from_millis(160);
/// Ticks to a round trip.
const TICKS_A_ROUND_TRIP: u32 = 8;
/// The network's part of a round trip is the shortest one of the last span and of this span. Pauses
/// of processes lengthen single measurements.
const ROUND_TRIP_WINDOW: Duration = Duration::from_secs(5);
/// A longer measurement says nothing of the network.
const MAX_ROUND_TRIP: Duration = Duration::from_secs(10);
/// How long ticks stay longer after a replica gave a leader up too early.
const SLOW_LEADER_CAUTION: Duration = Duration::from_secs(30);
/// The shortest round trips to a replica, in the last span and in the one that began at a time.
#[derive(Clone, Copy, Debug)]
struct RoundTrip {
    last: Duration,
    this: Duration,
    began: Time,
}

/// How fast a replica's time-outs run.
#[derive(Debug)]
pub(super) struct TickRate {
    now: Time,
    tick: Duration,
    round_trips: BTreeMap<ReplicaId, RoundTrip>,
    /// The newest time that each replica's request stated, for the answers to it.
    echoes: BTreeMap<ReplicaId, u64>,
    /// The tick that a leader or candidate has told.
    told: Duration,
    /// The leader that this replica gave up last, and its term.
    given_up: Option<(ReplicaId, u64)>,
    /// When this replica last gave up a leader too early.
    erred: Option<Time>,
    /// Whether the cluster is at rest.
    rests: bool,
}

impl TickRate {
    pub(super) fn new(now: Time) -> Self {
        Self {
            now,
            tick: LAN_TICK,
            round_trips: BTreeMap::new(),
            echoes: BTreeMap::new(),
            told: LAN_TICK,
            given_up: None,
            erred: None,
            rests: false,
        }
    }

    /// Time has passed. Forgets measurements and errors that are too old.
    pub(super) fn pass(&mut self, now: Time) {
        self.now = now;
        self.round_trips.retain(|_, it| now.since(it.began) <= 2 * ROUND_TRIP_WINDOW);
        self.erred = self.erred.filter(|erred| now.since(*erred) <= SLOW_LEADER_CAUTION);
    }

    /// Tells whether the cluster is at rest: no run waits for a new leader, so ticks are longer.
    pub(super) fn rest(&mut self, rests: bool) {
        self.rests = rests;
    }

    /// The tick that the replica counts time in. A leader's tick changes with its heartbeats alone.
    pub(super) fn tick(&mut self, leads: bool) -> Duration {
        if !leads {
            self.tick = self.wanted(self.told);
        }
        self.tick
    }

    /// The tick of the last call of [`TickRate::tick`] or of the last heartbeat.
    pub(super) fn current(&self) -> Duration {
        self.tick
    }

    fn wanted(&self, told: Duration) -> Duration {
        let shortest = self.round_trips.values().map(|it| it.last.min(it.this));
        let longest = shortest.max().unwrap_or_default();
        let least = match self.erred {
            _ if self.rests => REST_TICK,
            Some(_) => 2 * LAN_TICK,
            None => LAN_TICK,
        };
        (longest / TICKS_A_ROUND_TRIP).max(least).max(told).min(MAX_TICK)
    }

    /// Stamps a message that goes out now with the tick and the time, or with a request's time
    /// again.
    pub(super) fn stamp(&mut self, to: ReplicaId, message: &mut Message) {
        if message.kind == MessageKind::Heartbeat {
            // Followers that know the old tick must hear the next heartbeat in time.
            let (shortest, longest) = (self.tick / 2, self.tick * 2);
            self.tick = self.wanted(LAN_TICK).clamp(shortest, longest);
        }
        message.tick_us = self.tick.as_micros() as u32; // at most MAX_TICK
        message.asked_us = match message.kind {
            MessageKind::Heartbeat | MessageKind::Vote | MessageKind::PreVote => {
                self.now.as_micros()
            }
            MessageKind::HeartbeatResponse
            | MessageKind::VoteResponse
            | MessageKind::PreVoteResponse => self.echoes.get(&to).copied().unwrap_or_default(),
            _ => 0,
        };
    }

    /// A replica has sent a message. `term` is the term of this replica.
    pub(super) fn hear(&mut self, from: ReplicaId, message: &Message, term: u64) {
        match message.kind {
            MessageKind::Heartbeat | MessageKind::Vote | MessageKind::PreVote => {
                self.echoes.insert(from, message.asked_us);
            }
            MessageKind::HeartbeatResponse
            | MessageKind::VoteResponse
            | MessageKind::PreVoteResponse => {
                self.measure(from, message.asked_us);
            }
            _ => {}
        }
        let tick = Duration::from_micros(message.tick_us.into()).clamp(LAN_TICK, MAX_TICK);
        match message.kind {
            _ if message.term < term => {}
            MessageKind::Heartbeat | MessageKind::Append | MessageKind::Snapshot => {
                self.told = tick
            }
            MessageKind::Vote | MessageKind::PreVote | MessageKind::TimeoutNow => {
                self.told = self.told.max(tick)
            }
            _ => {}
        }
        if message.is_of_leader() && self.given_up == Some((from, message.term)) {
            self.given_up = None;
            self.be_cautious();
        }
    }

    /// The link to a replica is gone. No answer comes to a request on it.
    pub(super) fn link_lost(&mut self, peer: ReplicaId) {
        self.echoes.remove(&peer);
    }

    /// This replica no longer waits for a leader.
    pub(super) fn give_up(&mut self, leader: ReplicaId, term: u64) {
        self.given_up = Some((leader, term));
    }

    /// This replica gave up a leader that lives, or was a leader that lost its followers for a
    /// moment.
    pub(super) fn be_cautious(&mut self) {
        self.erred = Some(self.now);
    }

    fn measure(&mut self, from: ReplicaId, asked_us: u64) {
        let now = self.now;
        let Some(taken) = now.as_micros().checked_sub(asked_us) else { return };
        let taken = Duration::from_micros(taken);
        if asked_us == 0 || taken > MAX_ROUND_TRIP {
            return;
        }
        let first = RoundTrip { last: taken, this: taken, began: now };
        let known = self.round_trips.entry(from).or_insert(first);
        if now.since(known.began) > ROUND_TRIP_WINDOW {
            *known = RoundTrip { last: known.this, this: taken, began: now };
        }
        known.this = known.this.min(taken);
    }
}

impl Replica {
    /// The leader according to Raft, and the term.
    pub(super) fn leader_of_term(&self) -> (ReplicaId, u64) {
        (ReplicaId(self.node.raft.leader_id), self.node.raft.term)
    }

    /// Notices if a tick has ended the wait for a leader, or this replica's own lease.
    pub(super) fn notice_if_given_up(&mut self, leader: ReplicaId, term: u64) {
        if leader == NO_REPLICA || self.leader_of_term().0 != NO_REPLICA {
            return;
        }
        match leader == self.id {
            true => self.tick_rate.be_cautious(),
            false => self.tick_rate.give_up(leader, term),
        }
    }

    /// Whether the next tick makes a follower give its leader up, or a leader its lead.
    pub(super) fn times_out_next(&self) -> bool {
        let raft = &self.node.raft;
        let timeout =
            if self.is_elected() { LEASE_TICKS } else { raft.randomized_election_timeout() };
        raft.election_elapsed + 1 >= timeout
    }

    /// Due after every step: Raft draws a time-out from the system's generator whenever it begins
    /// anew.
    pub(super) fn set_election_timeout(&mut self) {
        let ticks = settings::election_ticks(self.seed, self.id, self.node.raft.term);
        self.node.raft.set_randomized_election_timeout(ticks);
    }
}

//! A worker's way out of the run.

use std::time::Duration;

use everstep_transport::protocol::{Cloud, Message, PreemptionNotice};
use everstep_transport::time::Time;

use super::Core;
use crate::step::event::Exit;

/// What the worker knows of its leave.
#[derive(Debug, Default)]
pub(super) struct Departure {
    /// The worker was told to leave the run.
    pub(super) requested: bool,
    /// The cloud that takes the worker's machine back, and when.
    preemption: Option<(Cloud, Time)>,
    /// The leader has let the worker go. It ends when its part of a checkpoint is durable.
    is_free: bool,
    /// The number of parameter shards of which no staying worker has a copy, as the leader last
    /// said.
    pub(super) retained: u32,
}

impl Core {
    /// The shell could not reach any coordinator for long. A worker that has an id waits for one:
    /// it may hold state that the run needs, and its join token may be used up. A worker that shall
    /// leave and is not a member may go. A worker that never met a coordinator probably has a wrong
    /// address.
    pub(super) fn abandoned(&mut self, reason: &str) {
        if self.departure.requested && self.member().is_none() {
            self.end(Exit::Drained);
        } else if self.worker().is_none() && !self.leader.has_met_any() {
            self.end(Exit::Failed(format!("no coordinator can be reached: {reason}")));
        }
    }

    /// Whether to tell all unwritten lines, those of the step leader too: the leader lacks some, or
    /// this worker leaves. In the next generation there may be nobody else to ask.
    pub(super) fn tells_all_lines(&self) -> bool {
        self.heartbeats.lacks_lines() || self.departure.requested
    }

    pub(super) fn drain(&mut self, now: Time) {
        self.departure.requested = true;
        match self.worker() {
            Some(_) => self.ask_to_leave(now),
            None => self.end(Exit::Drained), // It takes no part in anything.
        }
    }

    /// A cloud takes the worker's machine back, or does so at another time than it said before. Or
    /// it has withdrawn that: the worker leaves all the same, since others are taking over from it.
    pub(super) fn preempted(&mut self, now: Time, notice: Option<PreemptionNotice>) {
        self.departure.preemption = notice.map(|PreemptionNotice { cloud, seconds_left }| {
            (cloud, now + Duration::from_secs(seconds_left.into()))
        });
        self.drain(now);
    }

    /// Tells the leader why the worker has to leave, with the time that is left now.
    pub(super) fn ask_to_leave(&mut self, now: Time) {
        let message = match self.departure.preemption {
            Some((cloud, at)) => Message::Preempted(PreemptionNotice::until(cloud, at.since(now))),
            None => Message::Leave,
        };
        self.send_to_leader(message);
    }

    /// The leader lets the worker go. A part of a checkpoint that is being written is told first,
    /// since no other worker writes it, unless the store fails.
    pub(super) fn let_go(&mut self) {
        (self.departure.requested, self.departure.is_free) = (true, true);
        self.end_if_free();
    }

    /// The worker ends, if it may go and writes no part of a checkpoint.
    pub(super) fn end_if_free(&mut self) {
        if self.departure.is_free && !self.checkpoints.is_writing() {
            self.end(Exit::Drained);
        }
    }
}

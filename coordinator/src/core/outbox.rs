//! What the core wants done, in order, until the driver takes it.
//!
//! The outbox stamps entries with the wall clock. It does not know the peers at the ends of links.

use std::collections::VecDeque;

use everstep_transport::protocol::Message;
use everstep_transport::time::Time;

use super::clock::Clock;
use super::{CoreEffect, LinkId, ShellEffect};
use crate::state::{Command, CommandEntry};

/// The effects that the driver has not taken yet.
#[derive(Debug)]
pub(super) struct Outbox {
    clock: Clock,
    effects: VecDeque<CoreEffect>,
}

impl Outbox {
    /// An empty outbox. `epoch_unix_ms` is the wall clock at time zero, milliseconds of Unix time.
    pub(super) fn new(epoch_unix_ms: u64) -> Self {
        Self { clock: Clock::new(epoch_unix_ms), effects: VecDeque::new() }
    }

    pub(super) fn push(&mut self, effect: impl Into<CoreEffect>) {
        self.effects.push_back(effect.into());
    }

    /// The oldest effect that the driver has not taken yet.
    pub(super) fn pop(&mut self) -> Option<CoreEffect> {
        self.effects.pop_front()
    }

    pub(super) fn send(&mut self, to: LinkId, message: Message) {
        self.push(ShellEffect::Send { to, message });
    }

    /// Sends one message to many peers, if there are any.
    pub(super) fn broadcast(&mut self, to: Vec<LinkId>, message: Message) {
        if !to.is_empty() {
            self.push(ShellEffect::Broadcast { to, message });
        }
    }

    pub(super) fn close(&mut self, to: LinkId, reason: &str) {
        self.push(ShellEffect::Close { to, reason: reason.to_string() });
    }

    /// Proposes an entry with the wall clock of `now`.
    pub(super) fn propose(&mut self, now: Time, command: Command) {
        let entry = CommandEntry { unix_ms: self.unix_ms(now), command };
        self.push(CoreEffect::Propose(entry));
    }

    /// Takes the wall clock of `now`, milliseconds of Unix time.
    pub(super) fn set_clock(&mut self, now: Time, unix_ms: u64) {
        self.clock.set(now, unix_ms);
    }

    /// The wall clock at this time, milliseconds of Unix time.
    pub(super) fn unix_ms(&self, at: Time) -> u64 {
        self.clock.unix_ms(at)
    }
}

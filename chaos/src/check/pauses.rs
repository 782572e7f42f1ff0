//! I20: each Pause that living members and a quorum of coordinators can serve ends in a record
//! within a stated time. A Pause that no worker has promised before its leader is replaced is void.

use std::time::Duration;

use everstep_transport::protocol::Generation;
use everstep_transport::time::Time;

use super::{Breach, Invariant};

/// The longest time of a Pause without faults: 20 s for workers that fell silent together, then 10
/// s until a run gives up an owner that has ended unnoticed, by a clock that is a tenth slow.
/// Before it a link's idle time-out may have to pass (3 s), and after it 2 s for the others to
/// answer. An election takes a second.
pub const PAUSE_SERVED_WITHIN: Duration = Duration::from_millis(39_000);

#[derive(Debug, Default)]
pub(super) struct Pauses {
    /// The newest number that a Pause has asked for, and since when it could have been served.
    open: Option<(Generation, Time)>,
    /// Whether a worker has promised it.
    heard: bool,
    /// The newest generation that is recorded.
    recorded: Generation,
    longest: Duration,
    began: Time,
}

impl Pauses {
    pub(super) fn paused(&mut self, now: Time, number: Generation) {
        match &mut self.open {
            _ if number <= self.recorded => {}
            Some((open, _)) => *open = number.max(*open),
            None => {
                (self.open, self.heard) = (Some((number, now)), false);
                self.began = now;
            }
        }
    }

    pub(super) fn promised(&mut self, number: Generation) {
        self.heard |= self.open.is_some_and(|(open, _)| number >= open);
    }

    /// A new leader learns of a Pause from the workers that have promised it. It has heard no
    /// worker yet, so silence counts for it from now on.
    pub(super) fn led_anew(&mut self, now: Time) {
        self.open = self.open.filter(|_| self.heard).map(|(number, _)| (number, now));
    }

    pub(super) fn recorded(&mut self, now: Time, number: Generation) {
        self.recorded = number.max(self.recorded);
        if self.open.is_some_and(|(open, _)| number >= open) {
            self.open = None;
            self.longest = self.longest.max(now.since(self.began));
        }
    }

    /// The run is over. No Pause is open any more.
    pub(super) fn over(&mut self) {
        self.open = None;
    }

    /// Time passes. `able` says whether coordinator and members could go on with a change.
    pub(super) fn passes(&mut self, now: Time, able: bool) -> Result<(), Breach> {
        let Some((number, since)) = &mut self.open else { return Ok(()) };
        if !able {
            *since = now;
        }
        if now.since(*since) <= PAUSE_SERVED_WITHIN {
            return Ok(());
        }
        let seen = format!(
            "a Pause for generation {number} has led to nothing for {PAUSE_SERVED_WITHIN:?}"
        );
        Err((Invariant::I20, seen))
    }

    /// The longest time from a Pause to its record.
    pub(super) fn longest(&self) -> Duration {
        self.longest
    }
}

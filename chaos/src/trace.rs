//! The events of a simulation: as one number, and on request in words.
//!
//! Every event goes into the number as a few words of 64 bits, so that two runs can be compared at
//! no cost. A simulation makes text only after [`record`](Trace::record): one line an event.

use std::fmt;

use everstep_transport::time::Time;

use crate::random::mix;

/// The history of one simulation.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    events: u64,
    digest: u64,
    lines: Option<Vec<String>>,
}

impl Trace {
    /// From now on every event also leaves a line.
    pub fn record(&mut self) {
        self.lines.get_or_insert_default();
    }

    /// Counts an event, and takes it into the digest.
    pub fn mark(&mut self, now: Time, what: [u64; 3]) {
        self.events += 1;
        for word in [now.0, what[0], what[1], what[2]] {
            self.digest = mix(self.digest ^ word);
        }
    }

    /// Adds a line, if lines are kept.
    pub fn note(&mut self, now: Time, what: fmt::Arguments<'_>) {
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:>12.3} ms  {what}", now.0 as f64 / 1e6));
        }
    }

    /// How many events there were.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// A digest of all events. It is equal for equal histories.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// All lines, oldest first. None without [`Trace::record`].
    pub fn lines(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.lines.iter().flatten().map(String::as_str)
    }
}

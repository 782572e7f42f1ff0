//! What happened in a simulation, in words: every event with its time, one line each.
//!
//! All lines go into a digest, so that two runs can be compared; the newest are kept, so that a
//! failed one can be read.

use std::collections::VecDeque;
use std::fmt;

use everstep_transport::time::Time;

/// The lines that are kept.
const KEPT: usize = 100;

/// The history of one simulation.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    lines: u64,
    hasher: blake3::Hasher,
    newest: VecDeque<String>,
}

impl Trace {
    /// Adds a line.
    pub fn note(&mut self, now: Time, what: fmt::Arguments<'_>) {
        let line = format!("{:>12.3} ms  {what}", now.0 as f64 / 1e6);
        self.hasher.update(line.as_bytes()).update(b"\n");
        self.lines += 1;
        if self.newest.len() == KEPT {
            self.newest.pop_front();
        }
        self.newest.push_back(line);
    }

    /// How many lines there are.
    pub fn len(&self) -> u64 {
        self.lines
    }

    /// Whether nothing has happened yet.
    pub fn is_empty(&self) -> bool {
        self.lines == 0
    }

    /// BLAKE3 of all lines: equal for equal histories.
    pub fn digest(&self) -> [u8; 32] {
        *self.hasher.finalize().as_bytes()
    }

    /// The newest lines, oldest first; at most 100.
    pub fn newest(&self) -> impl Iterator<Item = &str> {
        self.newest.iter().map(String::as_str)
    }
}

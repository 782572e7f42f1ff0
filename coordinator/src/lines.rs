//! Metrics lines as a coordinator's file holds them.
//!
//! The file has one record a step, in order, so a record's place follows from its step. Each record
//! carries sums over all records up to it, so no reader has to begin at the file's beginning. This
//! module knows no file. The core decides which records to write, and the shell writes them.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use everstep_transport::protocol::{MetricsLine, Step};
use rkyv::{Archive, Deserialize, Serialize};

/// Sums over the lines of a file, from its beginning.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq)]
pub struct LineSums {
    /// Targets that the steps trained on.
    pub tokens: u64,
    /// Seconds that the steps took.
    pub seconds: f64,
    /// The longest time that training stood still at a change of generation, in milliseconds. 0 if
    /// it never did.
    pub longest_stall_ms: f64,
}

impl LineSums {
    /// The sums up to the next line. `stall_ms` is how long training stood still before that line.
    pub fn with(self, line: &MetricsLine, stall_ms: Option<f64>) -> Self {
        Self {
            tokens: self.tokens.saturating_add(line.tokens),
            seconds: self.seconds + line.seconds,
            longest_stall_ms: self.longest_stall_ms.max(stall_ms.unwrap_or(0.0)),
        }
    }
}

/// One record of the file.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct LineRecord {
    /// The line of the record's step.
    pub line: MetricsLine,
    /// The sums over this line and all before it.
    pub sums: LineSums,
}

/// The content of a file when the shell opens it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinesFound {
    /// The newest step with a line, or with a line that is known to be lost. 0 if the file is
    /// empty.
    pub reach: Step,
    /// The loss of the first step, if its line is there.
    pub first_loss: Option<f64>,
    /// The newest records, in order: at most [`RECENT`].
    pub recent: Vec<LineRecord>,
}

/// How many records at its end an opened file is verified by. The shell never writes more than this
/// before it makes them durable.
pub const UNSURE: u64 = 1 << 16;
/// How many of the newest records stay in memory. Figures and paces are averages over them.
pub const RECENT: usize = 20;
/// Most lines, or events, in one message to a watcher or another coordinator. They fit the control
/// lane.
pub const PAGE: usize = 200;

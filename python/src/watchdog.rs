//! Finds a script's thread that hangs in a pass: in a deadlock, or with a lock that it never
//! releases.
//!
//! In: how long passes took. Out: how long a pass may take. The end of the process is the cure: its
//! launcher reports it, so that the others go on at once, and starts a successor if the user wants
//! one. Only the time between a pass's parameters and its end counts. A script may load data, or do
//! anything else between its passes, for as long as it likes.

use std::time::Duration;

/// How many times as long as the longest pass so far a pass may take.
const MAX_PASS_RATIO: u32 = 3;

/// How long the passes of a process take.
#[derive(Debug)]
pub struct Watchdog {
    /// A pass that takes no longer does not hang.
    at_least: Duration,
    /// The longest pass so far. None before the first one, which may compile.
    longest: Option<Duration>,
}

impl Watchdog {
    /// A watchdog that has seen no pass. A pass of up to `at_least` never hangs.
    pub fn new(at_least: Duration) -> Self {
        Self { at_least, longest: None }
    }

    /// How long the next pass may take. None: as long as it likes.
    pub fn limit(&self) -> Option<Duration> {
        self.longest.map(|longest| (MAX_PASS_RATIO * longest).max(self.at_least))
    }

    /// A pass took so long.
    pub fn passed(&mut self, took: Duration) {
        self.longest = Some(self.longest.unwrap_or_default().max(took));
    }
}

/// Ends the process, even if a thread holds Python's lock. `faulthandler`, which the package has
/// enabled, then writes the stacks of all Python threads into the log. It needs no lock for that.
pub fn end_process(limit: Duration) -> ! {
    tracing::error!(
        seconds = limit.as_secs_f64(),
        "the script's main thread hangs: it computes a micro-batch for longer than any before"
    );
    std::process::abort()
}

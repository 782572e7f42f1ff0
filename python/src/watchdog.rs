//! Finds a script's thread that hangs: in a deadlock, or with a lock that it never releases.
//!
//! In: how long the thread has read, computed and evaluated. Out: how long it may. The end of the
//! process is the cure: its launcher reports it, so that the others go on at once, and starts a
//! successor if the user wants one. What a script does for the first time may compile, or open
//! files, and what it does between its turns is its own affair: both may take long, but not for
//! ever.

use std::time::Duration;

/// How many times as long as the longest time so far the same may take.
const MAX_RATIO: u32 = 3;
/// Data may come late, and an evaluation may read data. So both may take this many times as long as
/// the shortest pass that hangs.
const MAX_DATA_RATIO: u32 = 10;

/// How many times as long as the shortest pass that hangs something may take for the first time,
/// and the script between two turns: an hour, unless the run says otherwise.
const MAX_FIRST_RATIO: u32 = 60;

/// What a script's thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// It reads the samples of a micro-batch.
    Reading,
    /// It computes a micro-batch, from its parameters on.
    Computing,
    /// It evaluates held-out samples.
    Evaluating,
    /// It does something of its own, before it asks for a turn.
    BetweenTurns,
}

/// How long the activities of a process take.
#[derive(Debug)]
pub struct Watchdog {
    /// A pass that takes no longer does not hang.
    at_least: Duration,
    /// The longest of each so far. None before the first.
    reading: Option<Duration>,
    computing: Option<Duration>,
    evaluating: Option<Duration>,
}

impl Watchdog {
    /// A watchdog that has seen nothing. A pass of up to `at_least` never hangs.
    pub fn new(at_least: Duration) -> Self {
        Self { at_least, reading: None, computing: None, evaluating: None }
    }

    /// How long this may take now.
    pub fn limit(&self, activity: Activity) -> Duration {
        let (longest, ratio) = match activity {
            Activity::Reading => (self.reading, MAX_DATA_RATIO),
            Activity::Computing => (self.computing, 1),
            Activity::Evaluating => (self.evaluating, MAX_DATA_RATIO),
            Activity::BetweenTurns => (None, MAX_FIRST_RATIO),
        };
        match longest {
            Some(longest) => {
                longest.saturating_mul(MAX_RATIO).max(self.at_least.saturating_mul(ratio))
            }
            None => self.at_least.saturating_mul(MAX_FIRST_RATIO),
        }
    }

    /// This took so long.
    pub fn ended(&mut self, activity: Activity, took: Duration) {
        let longest = match activity {
            Activity::Reading => &mut self.reading,
            Activity::Computing => &mut self.computing,
            Activity::Evaluating => &mut self.evaluating,
            // Each time has the same limit.
            Activity::BetweenTurns => return,
        };
        *longest = Some(longest.unwrap_or_default().max(took));
    }
}

/// Ends the process, even if a thread holds Python's lock. `faulthandler`, which the package has
/// enabled, then writes the stacks of all Python threads into the log. It needs no lock for that.
pub fn end_process(activity: Activity, limit: Duration) -> ! {
    let what = match activity {
        Activity::Reading => "reads the samples of a micro-batch",
        Activity::Computing => "computes a micro-batch",
        Activity::Evaluating => "evaluates held-out samples",
        Activity::BetweenTurns => "has not asked for its next turn",
    };
    let seconds = limit.as_secs_f64();
    tracing::error!(seconds, "the script's main thread hangs: it {what} for longer than it may");
    std::process::abort()
}

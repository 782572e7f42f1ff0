//! Finds a script's thread that hangs in a turn: in a deadlock, or with a lock that it never
//! releases.
//!
//! In: how long the thread has read, computed and evaluated. Out: how long it may. The end of the
//! process is the cure: its launcher reports it, so that the others go on at once, and starts a
//! successor if the user wants one. What a script does between its turns may take as long as it
//! likes.

use std::time::Duration;

/// How many times as long as the longest time so far the same may take.
const MAX_RATIO: u32 = 3;
/// Data may come late, and an evaluation may read data. So both may take this many times as long as
/// the shortest pass that hangs.
const MAX_DATA_RATIO: u32 = 10;

/// What a script's thread does in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// It reads the samples of a micro-batch.
    Reading,
    /// It computes a micro-batch, from its parameters on.
    Computing,
    /// It evaluates held-out samples.
    Evaluating,
}

/// How long the activities of a process take.
#[derive(Debug)]
pub struct Watchdog {
    /// A pass that takes no longer does not hang.
    at_least: Duration,
    /// The longest of each so far. None before the first, which may compile, or open files.
    longest: [Option<Duration>; 3],
}

impl Watchdog {
    /// A watchdog that has seen nothing. A pass of up to `at_least` never hangs.
    pub fn new(at_least: Duration) -> Self {
        Self { at_least, longest: [None; 3] }
    }

    /// How long this may take now. None: as long as it likes.
    pub fn limit(&self, activity: Activity) -> Option<Duration> {
        let at_least = match activity {
            Activity::Computing => self.at_least,
            Activity::Reading | Activity::Evaluating => {
                self.at_least.saturating_mul(MAX_DATA_RATIO)
            }
        };
        self.longest[activity as usize].map(|longest| (MAX_RATIO * longest).max(at_least))
    }

    /// This took so long.
    pub fn ended(&mut self, activity: Activity, took: Duration) {
        let longest = &mut self.longest[activity as usize];
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
    };
    tracing::error!(
        seconds = limit.as_secs_f64(),
        "the script's main thread hangs: it {what} for longer than ever before"
    );
    std::process::abort()
}

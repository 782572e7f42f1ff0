//! How far a verb has read a checkpoint, on stderr.

use std::time::{Duration, Instant};

use crate::output;

/// The time between two lines, at least.
const READ_PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// The reading of something large.
pub(crate) struct ReadProgress {
    what: String,
    total: u64,
    done: u64,
    told_at: Instant,
}

impl ReadProgress {
    /// Reads `total` units of `what`.
    pub(crate) fn new(what: String, total: u64) -> Self {
        Self { what, total, done: 0, told_at: Instant::now() }
    }

    /// So many units more are read.
    pub(crate) fn add(&mut self, units: u64) {
        self.done += units;
        if self.told_at.elapsed() >= READ_PROGRESS_INTERVAL {
            self.told_at = Instant::now();
            output::say(format_args!("{}: {} %", self.what, percent(self.done, self.total)));
        }
    }
}

fn percent(done: u64, total: u64) -> u64 {
    (100.0 * done as f64 / total.max(1) as f64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percents_neither_overflow_nor_divide_by_nothing() {
        assert_eq!(percent(0, 0), 0);
        assert_eq!((percent(1, 3), percent(3, 3)), (33, 100));
        assert_eq!(percent(u64::MAX / 2, u64::MAX), 50);
    }
}

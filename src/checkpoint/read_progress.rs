//! How far a verb has read something large, on stderr: a bar on a terminal, and lines elsewhere.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output;

/// The time between two lines, at least.
const READ_PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// The reading of something large.
pub(crate) struct ReadProgress {
    what: String,
    total: u64,
    done: u64,
    printed_at: Instant,
    /// Hidden where stderr is no terminal.
    bar: ProgressBar,
}

impl ReadProgress {
    /// Reads `total` units of `what`.
    pub(crate) fn new(what: String, total: u64) -> Self {
        let bar = ProgressBar::new(total).with_message(what.clone());
        let style = "{msg} {bar:30} {percent} %, {eta} left";
        bar.set_style(ProgressStyle::with_template(style).expect("a valid template"));
        Self { what, total, done: 0, printed_at: Instant::now(), bar }
    }

    /// So many units more are read.
    pub(crate) fn add(&mut self, units: u64) {
        self.reach(self.done + units);
    }

    /// So many units are read by now.
    pub(crate) fn reach(&mut self, units: u64) {
        self.done = units;
        self.bar.set_position(units);
        if self.bar.is_hidden() && self.printed_at.elapsed() >= READ_PROGRESS_INTERVAL {
            self.printed_at = Instant::now();
            output::say(format_args!("{}: {} %", self.what, percent(self.done, self.total)));
        }
    }
}

impl Drop for ReadProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
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

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
    /// Whether the units are bytes. Then their number is told, too, and how long it took.
    in_bytes: bool,
    began: Instant,
    printed_at: Instant,
    /// Hidden where stderr is no terminal.
    bar: ProgressBar,
}

impl ReadProgress {
    /// Reads `total` units of `what`.
    pub(crate) fn new(what: String, total: u64) -> Self {
        Self::begin(what, total, false, "{msg} {bar:30} {percent} %, {eta} left")
    }

    /// Reads `total` bytes of `what`.
    pub(crate) fn of_bytes(what: String, total: u64) -> Self {
        let style = "{msg} {bar:30} {decimal_bytes} of {decimal_total_bytes} in {elapsed}";
        Self::begin(what, total, true, style)
    }

    fn begin(what: String, total: u64, in_bytes: bool, style: &str) -> Self {
        let bar = ProgressBar::new(total).with_message(what.clone());
        bar.set_style(ProgressStyle::with_template(style).expect("a valid template"));
        let now = Instant::now();
        Self { what, total, done: 0, in_bytes, began: now, printed_at: now, bar }
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
            output::say(self.line(self.began.elapsed()));
        }
    }
}

impl ReadProgress {
    /// How far it is after this time, in a line.
    fn line(&self, elapsed: Duration) -> String {
        let Self { what, total, done, in_bytes, .. } = self;
        let share = format!("{what}: {} %", percent(*done, *total));
        let [done, total] = [*done, *total].map(|bytes| bytes as f64 / 1e6);
        match in_bytes {
            true => format!("{share}, {done:.1} of {total:.1} MB in {} s", elapsed.as_secs()),
            false => share,
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
    fn a_line_has_the_bytes_and_the_seconds_where_bytes_are_read() {
        let mut progress = ReadProgress::of_bytes("step 5".into(), 40_000_000);
        progress.add(10_400_000);
        let line = progress.line(Duration::from_secs(7));
        assert_eq!(line, "step 5: 26 %, 10.4 of 40.0 MB in 7 s");
        let mut progress = ReadProgress::new("replay".into(), 4);
        progress.reach(1);
        assert_eq!(progress.line(Duration::from_secs(7)), "replay: 25 %");
    }

    #[test]
    fn percents_neither_overflow_nor_divide_by_nothing() {
        assert_eq!(percent(0, 0), 0);
        assert_eq!((percent(1, 3), percent(3, 3)), (33, 100));
        assert_eq!(percent(u64::MAX / 2, u64::MAX), 50);
    }
}

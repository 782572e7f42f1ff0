//! Sums up a run's events and lines: how often each event came, how long training stood still.
//!
//! In: every event and every recorded line, in order, each once, and the times at which entries
//! were proposed and applied. Out: figures for the watchers of a coordinator. The code is pure and
//! cheap, and its memory is bounded. It knows neither its readers nor the consequences.

mod generations;
mod histogram;
mod protection;
mod tally;

use std::collections::VecDeque;

use everstep_transport::protocol::outcome::{Event, EventKind};
use everstep_transport::protocol::{Generation, MetricsLine, Step};
use everstep_transport::time::Time;

pub use self::generations::{GenerationReport, Generations, WINDOW};
pub use self::histogram::Histogram;
pub use self::protection::{Lapse, Protection};
pub use self::tally::Tally;

/// The sums of a run's history.
#[derive(Debug, Default)]
pub struct HistorySummary {
    tally: Tally,
    generations: Generations,
    protection: Protection,
    /// The newest line. A line that is not newer is a repeat.
    newest: Option<(Generation, Step)>,
    /// When each entry was proposed that is not applied yet: at most as many as may wait for the
    /// disk.
    proposed: VecDeque<Time>,
}

impl HistorySummary {
    /// Another run begins: what the one before lacked is no matter any more, and the time between
    /// the two is no stall.
    pub fn begin(&mut self) {
        self.protection = Protection::default();
        self.generations.begin();
    }

    /// Takes the next event.
    pub fn event(&mut self, event: &Event) {
        self.tally.event(&event.kind);
        self.generations.event(&event.kind);
        if let EventKind::Generation { under_protected, .. } = &event.kind {
            self.protection.begin(under_protected, event.unix_ms);
            self.protection.forget_over();
        }
    }

    /// Takes lines of settled steps, and skips those that it has taken before.
    pub fn lines(&mut self, lines: &[MetricsLine]) {
        for line in lines {
            let place = Some((line.generation, line.step));
            if place > self.newest {
                self.newest = place;
                let stall = self.generations.line(line);
                self.tally.line(line, stall);
            }
        }
    }

    /// Takes lines that this process has just written.
    pub fn recorded(&mut self, lines: &[MetricsLine]) {
        self.tally.written += lines.len() as u64;
        self.lines(lines);
    }

    /// The last steps before generations without a known stall: the newest ones, at most `most`.
    pub fn unmeasured(&self, most: usize) -> Vec<Step> {
        self.generations.unmeasured(most)
    }

    /// Takes lines of before this process, only for the stalls of generations. The caller gives at
    /// most the newest [`WINDOW`] lines up to the first of a generation.
    pub fn recall(&mut self, lines: &[MetricsLine]) {
        self.generations.recall(lines);
    }

    /// This coordinator has proposed an entry.
    pub fn proposed(&mut self, now: Time) {
        self.tally.proposed += 1;
        self.proposed.push_back(now);
    }

    /// The oldest of the proposed entries is in the log, and holds.
    pub fn applied(&mut self, now: Time) {
        self.tally.applied += 1;
        if let Some(since) = self.proposed.pop_front() {
            self.tally.log_write.observe(now.since(since).as_secs_f64());
        }
    }

    /// The counts of events and steps.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The newest generations, in order: all, or at least the newest thousand.
    pub fn generations(&self) -> &[GenerationReport] {
        self.generations.reports()
    }

    /// The parameter shards that have too few owners now.
    pub fn under_protected(&self) -> Vec<Lapse> {
        self.protection.open()
    }
}

#[cfg(test)]
mod tests;

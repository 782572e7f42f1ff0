//! What a run's events and lines come to: how often what happened, how long training stood still.
//!
//! In: every event and every recorded line, in order, each once; and when entries were proposed and
//! applied. Out: figures that whoever watches a coordinator is shown. Pure, and cheap: what is kept
//! grows by one report a generation. It does not know who asks, nor what any of it leads to.

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

/// A run's history, summed up.
#[derive(Debug, Default)]
pub struct History {
    tally: Tally,
    generations: Generations,
    protection: Protection,
    /// The newest line: repeats are known by it.
    newest: Option<(Generation, Step)>,
    /// When each entry was proposed that is not applied yet: at most as many as may wait for the
    /// disk.
    proposed: VecDeque<Time>,
}

impl History {
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
        }
    }

    /// Takes lines of settled steps. Those that came before are known.
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

    /// Takes lines that were written just now.
    pub fn recorded(&mut self, lines: &[MetricsLine]) {
        self.tally.written += lines.len() as u64;
        self.lines(lines);
    }

    /// The last steps before generations whose stalls are not known: at most `most`, the newest.
    pub fn unmeasured(&self, most: usize) -> Vec<Step> {
        self.generations.unmeasured(most)
    }

    /// Takes lines of before this process, for the stalls of generations alone: the newest
    /// [`WINDOW`], at most, up to the first of a generation.
    pub fn recall(&mut self, lines: &[MetricsLine]) {
        self.generations.recall(lines);
    }

    /// An entry is on its way into the log.
    pub fn proposed(&mut self, now: Time) {
        self.tally.proposed += 1;
        self.proposed.push_back(now);
    }

    /// The oldest of these entries is in the log, and holds.
    pub fn applied(&mut self, now: Time) {
        self.tally.applied += 1;
        if let Some(since) = self.proposed.pop_front() {
            self.tally.log_write.observe(now.since(since).as_secs_f64());
        }
    }

    /// How often what happened.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The generations, in order.
    pub fn generations(&self) -> &[GenerationReport] {
        self.generations.reports()
    }

    /// The parameter shards that lack owners now.
    pub fn under_protected(&self) -> Vec<Lapse> {
        self.protection.open()
    }
}

#[cfg(test)]
mod tests;

//! What a report needs of a run's lines, as sums.
//!
//! In: the lines of settled steps, in order. A rollback takes lines back, and lines may come again
//! that came before. Out: sums over the lines that count, and over the time that all of them took.
//! Memory grows with the number of generations, not with that of steps.

use std::collections::BTreeMap;

use everstep_coordinator::history::{GenerationReport, Generations};
use everstep_transport::protocol::outcome::EventKind;
use everstep_transport::protocol::step::Decision;
use everstep_transport::protocol::{Generation, MetricsLine, Step};

use super::marks::Marks;

/// Sums over the lines of settled steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct SettledSums {
    /// How many lines there are.
    pub(super) steps: u64,
    /// Steps that changed nothing.
    pub(super) skipped: u64,
    /// The targets that the steps trained on.
    pub(super) tokens: u64,
    /// Samples of the plan that no committed partial sum contains.
    pub(super) samples_lost: u64,
    /// Samples that committed partial sums contain more often than planned.
    pub(super) samples_repeated: u64,
    /// The loss of the first line.
    pub(super) first_loss: Option<f64>,
    /// The loss of the last line.
    pub(super) last_loss: Option<f64>,
}

impl SettledSums {
    fn with(self, line: &MetricsLine) -> Self {
        Self {
            steps: self.steps + 1,
            skipped: self.skipped + u64::from(line.decision == Decision::Skip),
            tokens: self.tokens.saturating_add(line.tokens),
            samples_lost: self.samples_lost.saturating_add(line.samples_lost),
            samples_repeated: self.samples_repeated.saturating_add(line.samples_repeated),
            first_loss: self.first_loss.or(Some(line.loss)),
            last_loss: Some(line.loss),
        }
    }
}

/// The sums of a run.
#[derive(Clone, Debug)]
pub(crate) struct LineSums {
    settled: SettledSums,
    /// The sums up to some steps.
    marks: Marks<SettledSums>,
    /// The last step of which the coordinators have no line, with the sums up to it: those lines
    /// came from a store.
    base: (u64, SettledSums),
    /// The newest line that ever came. A line that is not newer comes again.
    newest: Option<(Generation, Step)>,
    /// Seconds that each generation's steps took, also those that a rollback took back.
    seconds: BTreeMap<Generation, f64>,
    generations: Generations,
}

impl Default for LineSums {
    fn default() -> Self {
        Self {
            settled: SettledSums::default(),
            marks: Marks::default(),
            base: Default::default(),
            newest: None,
            seconds: BTreeMap::new(),
            generations: Generations::with_room(usize::MAX),
        }
    }
}

impl LineSums {
    /// Takes the next line.
    pub(super) fn line(&mut self, line: &MetricsLine) {
        self.settled = self.settled.with(line);
        self.marks.push(line.step.0, self.settled);
        let place = Some((line.generation, line.step));
        if place > self.newest {
            self.newest = place;
            *self.seconds.entry(line.generation).or_default() += line.seconds;
            self.generations.line(line);
        }
    }

    /// Takes the next event.
    pub(super) fn event(&mut self, kind: &EventKind) {
        self.generations.event(kind);
    }

    /// The coordinators have only lines that come after those so far.
    pub(super) fn begin_here(&mut self, step: u64) {
        self.base = (step, self.settled);
    }

    /// Goes back to a step that is not far before this one, if not to it. Returns it: the lines
    /// after it come next.
    pub(super) fn back_to(&mut self, step: u64) -> u64 {
        let marked = self.marks.back_to(step).unwrap_or_default();
        let base = Some(self.base).filter(|(at, _)| (marked.0..=step).contains(at));
        let (at, settled) = base.unwrap_or(marked);
        self.settled = settled;
        at
    }

    /// The first step to which the lines can be read again from the coordinators.
    pub(super) fn base(&self) -> u64 {
        self.base.0
    }

    /// The sums over the lines that count.
    pub(super) fn settled(&self) -> SettledSums {
        self.settled
    }

    /// Seconds that the steps of each generation took, also those that a rollback took back.
    pub(super) fn seconds(&self) -> &BTreeMap<Generation, f64> {
        &self.seconds
    }

    /// All generations, including the first.
    pub(super) fn generations(&self) -> &[GenerationReport] {
        self.generations.reports()
    }
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::{Cause, WorkerId};

    use super::*;

    fn line(step: u64, generation: u64) -> MetricsLine {
        let (step, generation) = (Step(step), Generation(generation));
        let (seconds, tokens, loss) = (0.5, 3, step.0 as f64);
        MetricsLine { step, generation, seconds, tokens, loss, ..MetricsLine::default() }
    }

    #[test]
    fn lines_that_a_rollback_takes_back_count_for_the_time_that_they_took_alone() {
        let mut sums = LineSums::default();
        (1..=9).for_each(|step| sums.line(&line(step, 1)));
        assert_eq!(sums.back_to(4), 4);
        (5..=6).for_each(|step| sums.line(&line(step, 2)));
        let settled = sums.settled();
        assert_eq!((settled.steps, settled.tokens), (6, 18));
        assert_eq!((settled.first_loss, settled.last_loss), (Some(1.0), Some(6.0)));
        let seconds = [(Generation(1), 4.5), (Generation(2), 1.0)];
        assert_eq!(*sums.seconds(), BTreeMap::from(seconds));
    }

    #[test]
    fn lines_that_a_rollback_takes_back_count_for_the_time_that_it_cost() {
        let mut sums = LineSums::default();
        let at = |step, generation, unix_ms| MetricsLine {
            unix_ms,
            seconds: 0.010,
            ..line(step, generation)
        };
        [at(1, 1, 1_000), at(2, 1, 1_010), at(3, 4, 1_175)].iter().for_each(|it| sums.line(it));
        sums.back_to(0);
        sums.event(&EventKind::Generation {
            generation: Generation(5),
            cause: Cause::Rollback,
            workers: vec![WorkerId(8)],
            at_step: Step(0),
            redone: false,
            waiting: false,
            under_protected: Vec::new(),
        });
        sums.line(&at(1, 5, 3_185));
        let [report] = sums.generations() else { panic!("one generation") };
        assert_eq!(report.stall_ms, Some(2_000.0));
    }

    #[test]
    fn a_line_that_comes_again_counts_once() {
        let mut once = LineSums::default();
        (1..=9).for_each(|step| once.line(&line(step, 1)));
        let mut twice = once.clone();
        assert_eq!(twice.back_to(0), 0);
        (1..=9).for_each(|step| twice.line(&line(step, 1)));
        assert_eq!((twice.settled(), twice.seconds()), (once.settled(), once.seconds()));
    }

    #[test]
    fn lines_of_a_store_are_not_asked_for_again() {
        let mut sums = LineSums::default();
        (1..=20_001).for_each(|step| sums.line(&line(step, 1)));
        sums.begin_here(20_001);
        (20_002..=20_009).for_each(|step| sums.line(&line(step, 2)));
        assert_eq!(sums.back_to(20_007), 20_001, "the marks are eight steps apart by now");
        assert_eq!((sums.settled().steps, sums.base()), (20_001, 20_001));
    }
}

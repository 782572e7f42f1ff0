//! The metrics lines of settled steps: each step once, in order (I13).
//!
//! All are kept, since a watcher may ask from the beginning: about a hundred bytes a step. They are
//! not in the log, but for those that came with a change of generation; the shell keeps them in a
//! journal, and brings them back after a restart. The log is written first, so what it says of
//! lines may be missing in the journal.

use everstep_transport::protocol::{Generation, MetricsLine, Step};

use crate::state::Change;

#[derive(Debug, Default)]
pub(super) struct Lines {
    lines: Vec<MetricsLine>,
    /// What the log says, until the journal is there.
    logged: Logged,
    /// A planted bug: a repeat of the newest line counts.
    #[cfg(feature = "planted")]
    pub(super) twice: bool,
}

/// What the log says of lines.
#[derive(Debug, Default)]
struct Logged {
    /// The generations that went back, and the step to which.
    rollbacks: Vec<(Generation, Step)>,
    /// Lines that came with changes since the last of these.
    lines: Vec<MetricsLine>,
}

impl Lines {
    /// Takes the line of the step after the newest; every other is a repeat, or will be repeated.
    /// Returns whether it was taken.
    pub(super) fn accept(&mut self, line: &MetricsLine) -> bool {
        let wanted = self.lines.last().map_or(Step(1), |newest| newest.step.next());
        #[cfg(feature = "planted")]
        let wanted = if self.twice && line.step.next() == wanted { line.step } else { wanted };
        let fits = line.step == wanted;
        if fits {
            self.lines.push(line.clone());
        }
        fits
    }

    /// Takes what fits of these, and returns it.
    pub(super) fn extend(&mut self, lines: Vec<MetricsLine>) -> Vec<MetricsLine> {
        lines.into_iter().filter(|line| self.accept(line)).collect()
    }

    /// Forgets the lines after `step`.
    pub(super) fn go_back(&mut self, step: Step) {
        self.lines.retain(|line| line.step <= step);
    }

    /// The log is applied again after a restart: remembers what it says.
    pub(super) fn replay(&mut self, change: &Change) {
        if change.rollback.is_some() {
            self.logged.rollbacks.push((change.record.number, change.record.resume));
            self.logged.lines.clear();
        }
        self.logged.lines.extend(change.lines.iter().cloned());
    }

    /// Takes the journal. Returns from where on it is void, if it is somewhere, and what it lacks.
    pub(super) fn restore(
        &mut self,
        journal: Vec<MetricsLine>,
    ) -> (Option<Step>, Vec<MetricsLine>) {
        let logged = std::mem::take(&mut self.logged);
        let is_void = |line: &MetricsLine| {
            let before =
                |(number, to): &(Generation, Step)| line.generation < *number && line.step > *to;
            logged.rollbacks.iter().any(before)
        };
        let count = journal.len();
        let valid: Vec<_> = journal.into_iter().filter(|line| !is_void(line)).collect();
        let void = valid.len() < count;
        self.lines.clear();
        self.extend(valid);
        (void.then(|| self.written()), self.extend(logged.lines))
    }

    /// The newest step whose line is here; 0 for none.
    pub(super) fn written(&self) -> Step {
        Step(self.lines.len() as u64)
    }

    /// How long the newest step took, seconds; 0 if there is none.
    pub(super) fn pace(&self) -> f64 {
        self.lines.last().map_or(0.0, |line| line.seconds)
    }

    /// The lines after `step`, in order.
    pub(super) fn after(&self, step: Step) -> &[MetricsLine] {
        usize::try_from(step.0).ok().and_then(|step| self.lines.get(step..)).unwrap_or(&[])
    }
}

//! The metrics lines of settled steps: each step once, in order (I13).
//!
//! All are kept, since a watcher may ask from the beginning: about a hundred bytes a step.

use everstep_transport::protocol::{MetricsLine, Step};

#[derive(Debug, Default)]
pub(super) struct Lines {
    lines: Vec<MetricsLine>,
    /// A planted bug: a repeat of the newest line counts.
    #[cfg(feature = "planted")]
    pub(super) twice: bool,
}

impl Lines {
    /// Takes the line of the step after the newest; every other is a repeat, or will be repeated.
    pub(super) fn accept(&mut self, line: MetricsLine) {
        let wanted = self.lines.last().map_or(Step(1), |newest| newest.step.next());
        #[cfg(feature = "planted")]
        let wanted = if self.twice && line.step.next() == wanted { line.step } else { wanted };
        if line.step == wanted {
            self.lines.push(line);
        }
    }

    /// The newest step whose line is here; 0 for none.
    pub(super) fn written(&self) -> Step {
        Step(self.lines.len() as u64)
    }

    /// The lines after `step`, in order.
    pub(super) fn after(&self, step: Step) -> &[MetricsLine] {
        usize::try_from(step.0).ok().and_then(|step| self.lines.get(step..)).unwrap_or(&[])
    }
}

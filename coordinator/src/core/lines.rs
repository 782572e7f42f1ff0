//! The metrics lines of settled steps: each step once, in order (I13).
//!
//! All are kept, since a watcher may ask from the beginning: about a hundred bytes a step.

use everstep_transport::protocol::{MetricsLine, Step};

#[derive(Debug, Default)]
pub(super) struct Lines(Vec<MetricsLine>);

impl Lines {
    /// Takes the line of the step after the newest; every other is a repeat, or will be repeated.
    pub(super) fn accept(&mut self, line: MetricsLine) {
        if line.step == self.written().next() {
            self.0.push(line);
        }
    }

    /// The newest step whose line is here; 0 for none.
    pub(super) fn written(&self) -> Step {
        Step(self.0.len() as u64)
    }

    /// The lines after `step`, in order.
    pub(super) fn after(&self, step: Step) -> &[MetricsLine] {
        usize::try_from(step.0).ok().and_then(|step| self.0.get(step..)).unwrap_or(&[])
    }
}

//! I13: metrics and events are those of one history. Also I4 and I2, as far as a line shows them.

use everstep_transport::protocol::outcome::{Event, EventKind};
use everstep_transport::protocol::{Generation, MetricsLine, Step};

use super::commits::Commits;
use super::{Breach, Invariant};

#[derive(Debug, Default)]
pub(super) struct Lines {
    last: Step,
    event: u64,
    /// A watcher has heard of a rollback, but not yet of the generation that began with it.
    goes_back: bool,
    /// That generation. The rollback undoes lines of older ones, except those up to this step.
    since: (Generation, Step),
}

impl Lines {
    /// Another cluster has written the lines up to this step.
    pub(super) fn begin_after(&mut self, step: Step) {
        self.last = step;
    }

    /// A watcher has heard of an event. A rollback takes back the lines after its step.
    pub(super) fn told(&mut self, event: &Event) -> Result<(), Breach> {
        let last = std::mem::replace(&mut self.event, event.number);
        if let EventKind::Rollback { to, .. } = event.kind {
            self.last = self.last.min(to);
            (self.goes_back, self.since.1) = (true, to);
        }
        if let EventKind::Generation { generation, .. } = event.kind
            && std::mem::take(&mut self.goes_back)
        {
            self.since.0 = generation;
        }
        if let EventKind::LinesLost { from, to } = event.kind {
            return Err((Invariant::I13, format!("the lines of steps {from} to {to} are lost")));
        }
        if event.number == last + 1 {
            return Ok(());
        }
        Err((Invariant::I13, format!("event {} after event {last}: {event:?}", event.number)))
    }

    pub(super) fn written(&mut self, line: &MetricsLine, commits: &Commits) -> Result<(), Breach> {
        let (step, last) = (line.step, std::mem::replace(&mut self.last, line.step));
        if step != last.next() {
            return Err((Invariant::I13, format!("the line of step {step} after that of {last}")));
        }
        if line.generation < self.since.0 && step > self.since.1 {
            return Err((Invariant::I13, format!("{line:?}, which a rollback has undone")));
        }
        if !commits.was_settled(step) {
            return Err((Invariant::I13, format!("a line of step {step}, which is not settled")));
        }
        if commits.verdict(step).is_none_or(|verdict| !verdict.fits(line)) {
            return Err((Invariant::I13, format!("{line:?}, unlike the commit of its step")));
        }
        if (line.samples_lost, line.samples_repeated) != (0, 0) {
            return Err((Invariant::I4, format!("{line:?}")));
        }
        Ok(())
    }

    pub(super) fn conclude(&self, steps: Step) -> Result<(), Breach> {
        if self.last == steps {
            return Ok(());
        }
        let seen =
            format!("{steps} steps are complete, but the last line is of step {}", self.last);
        Err((Invariant::I13, seen))
    }
}

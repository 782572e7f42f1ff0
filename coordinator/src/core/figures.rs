//! How the run does, in figures: from the lines that this coordinator has, and sums of its events.

use everstep_transport::protocol::MetricsLine;
use everstep_transport::protocol::figures::{RunFigures, Trouble, validation};
use everstep_transport::protocol::outcome::{Event, EventKind, Outcome};

use super::Core;

impl Core {
    /// The run as it does now. The cost grows neither with its steps nor with its events.
    pub(super) fn figures(&self) -> RunFigures {
        let recent = || self.lines.recent();
        let steps = self.state.run().map_or(0, |run| run.steps);
        let last = recent().next_back();
        let left = steps.saturating_sub(last.map_or(0, |line| line.step.0));
        let (tokens, seconds) = (recent().map(|line| line.tokens).sum(), seconds(recent()));
        let pace = seconds / recent().count().max(1) as f64;
        let sums = self.history.sums();
        RunFigures {
            steps,
            world_size: self.state.record().map_or(0, |record| record.world_size()),
            first_loss: self.lines.first_loss(),
            loss: last.map(|line| line.loss),
            tokens_per_second: rate(tokens, seconds),
            eta_seconds: last.map(|_| left as f64 * pace),
            submitted_unix_ms: sums.submitted_unix_ms,
            generations: sums.generations,
            steps_redone: sums.redone,
            workers_lost: sums.lost,
            rollbacks: sums.rollbacks,
            trouble: sums.trouble.as_ref().map(|event| self.trouble(event)),
            ..RunFigures::default()
        }
    }

    /// The run at its end, with this outcome.
    pub(super) fn last_figures(&self, outcome: &Outcome) -> RunFigures {
        let sums = self.lines.sums();
        let (validation_loss, metric) = match outcome {
            Outcome::Complete(results) => validation(results),
            _ => (None, None),
        };
        let is_complete = matches!(outcome, Outcome::Complete(_));
        RunFigures {
            validation_loss,
            metric,
            tokens_per_second: rate(sums.tokens, sums.seconds),
            eta_seconds: None,
            model: self.completion.model.place().cloned().filter(|_| is_complete),
            longest_stall_ms: Some(sums.longest_stall_ms).filter(|stall| *stall > 0.0),
            ..self.figures()
        }
    }

    fn trouble(&self, event: &Event) -> Trouble {
        let named = event.kind.named_workers();
        let labels = named.into_iter().filter_map(|worker| self.state.label(worker)).collect();
        Trouble { unix_ms: event.unix_ms, kind: event.kind.clone(), labels }
    }
}

/// Sums of the events since the operator submitted the run.
#[derive(Clone, Debug, Default)]
pub(super) struct RunSums {
    submitted_unix_ms: Option<u64>,
    generations: u32,
    redone: u32,
    lost: u32,
    rollbacks: u32,
    /// The newest event that an operator wants to know about.
    trouble: Option<Event>,
}

impl RunSums {
    /// Takes the next event. The submission of a run begins new sums.
    pub(super) fn add(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Submitted { .. } => {
                *self = Self { submitted_unix_ms: Some(event.unix_ms), ..Self::default() };
            }
            EventKind::Generation { redone, .. } => {
                self.generations += 1;
                self.redone += u32::from(*redone);
            }
            EventKind::Lost { .. } => self.lost += 1,
            EventKind::Rollback { .. } => self.rollbacks += 1,
            _ => {}
        }
        if event.kind.is_trouble() {
            self.trouble = Some(event.clone());
        }
    }
}

fn seconds<'a>(lines: impl Iterator<Item = &'a MetricsLine>) -> f64 {
    lines.map(|line| line.seconds).sum()
}

fn rate(tokens: u64, seconds: f64) -> Option<f64> {
    (seconds > 0.0).then(|| tokens as f64 / seconds)
}

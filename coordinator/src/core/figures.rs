//! How the run does, in figures: from the lines and events that this coordinator has.

use everstep_transport::protocol::MetricsLine;
use everstep_transport::protocol::figures::{RunFigures, Trouble, validation};
use everstep_transport::protocol::outcome::{Event, EventKind, Outcome};

use super::Core;
use crate::event_sentences;

impl Core {
    /// The run as it does now. The cost grows with the number of the run's events, not of its
    /// steps.
    pub(super) fn figures(&self) -> RunFigures {
        let recent = || self.lines.recent();
        let steps = self.state.run().map_or(0, |run| run.steps);
        let last = recent().next_back();
        let left = steps.saturating_sub(last.map_or(0, |line| line.step.0));
        let (tokens, seconds) = (recent().map(|line| line.tokens).sum(), seconds(recent()));
        let pace = seconds / recent().count().max(1) as f64;
        let mut figures = RunFigures {
            steps,
            world_size: self.state.record().map_or(0, |record| record.world_size()),
            first_loss: self.lines.first_loss(),
            loss: last.map(|line| line.loss),
            tokens_per_second: rate(tokens, seconds),
            eta_seconds: last.map(|_| left as f64 * pace),
            ..RunFigures::default()
        };
        self.run_events().for_each(|event| self.count(&mut figures, event));
        figures
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

    /// The events since the operator submitted the run, in order.
    fn run_events(&self) -> impl Iterator<Item = &Event> {
        let all = self.history.events_after(0);
        let submitted = |event: &Event| matches!(event.kind, EventKind::Submitted { .. });
        all[all.iter().rposition(submitted).unwrap_or(0)..].iter()
    }

    fn count(&self, figures: &mut RunFigures, event: &Event) {
        match &event.kind {
            EventKind::Submitted { .. } => figures.submitted_unix_ms = Some(event.unix_ms),
            EventKind::Generation { redone, .. } => {
                figures.generations += 1;
                figures.steps_redone += u32::from(*redone);
            }
            EventKind::Lost { .. } => figures.workers_lost += 1,
            EventKind::Rollback { .. } => figures.rollbacks += 1,
            _ => {}
        }
        if event_sentences::is_trouble(&event.kind) {
            let words = event_sentences::sentence(&self.state, &event.kind);
            figures.trouble = Some(Trouble { unix_ms: event.unix_ms, words });
        }
    }
}

fn seconds<'a>(lines: impl Iterator<Item = &'a MetricsLine>) -> f64 {
    lines.map(|line| line.seconds).sum()
}

fn rate(tokens: u64, seconds: f64) -> Option<f64> {
    (seconds > 0.0).then(|| tokens as f64 / seconds)
}

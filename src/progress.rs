//! What a user sees of a run under way, on stderr, and at its end, on stdout.

use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

use everstep_transport::protocol::RunSpec;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::cluster::{Progress, Report};

/// Shows a run's progress: a bar on a terminal, plain lines elsewhere.
pub(crate) struct Display {
    bar: Option<ProgressBar>,
    steps: u64,
    shown: u64,
    shown_at: Instant,
    events: usize,
}

/// How often a plain line is printed, at most.
const PACE: Duration = Duration::from_secs(2);
/// Steps over which the throughput is averaged.
const RECENT: usize = 20;

impl Display {
    /// Announces the run.
    pub(crate) fn new(run: &RunSpec, workers: u32, dir: &Path) -> Self {
        let model = &run.model;
        eprintln!(
            "training \"{}\": {} with {} layers of width {}, {} steps of {} samples, {} workers",
            run.name,
            model.kind,
            model.layers,
            model.width,
            run.steps,
            run.batch.samples(),
            workers
        );
        eprintln!("files: {}", dir.display());
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(run.steps), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}");
            bar.set_style(style.expect("the template is well-formed"));
            bar.set_message("starting");
            bar
        });
        Self { bar, steps: run.steps, shown: 0, shown_at: Instant::now() - PACE, events: 0 }
    }

    /// Shows what is new.
    pub(crate) fn show(&mut self, progress: &Progress) {
        for event in &progress.events[self.events..] {
            tracing::debug!(?event, "event");
        }
        self.events = progress.events.len();
        let Some(last) = progress.lines.last() else { return };
        if last.step.0 == self.shown {
            return;
        }
        let recent = &progress.lines[progress.lines.len().saturating_sub(RECENT)..];
        let seconds: f64 = recent.iter().map(|line| line.seconds).sum();
        let tokens: u64 = recent.iter().map(|line| line.tokens).sum();
        let left = (self.steps - last.step.0) as f64 * seconds / recent.len() as f64;
        let message = format!(
            "loss {:.3}  {:.0} tokens/s  ETA {}",
            last.loss,
            tokens as f64 / seconds,
            clock(left)
        );
        if let Some(bar) = &self.bar {
            bar.set_position(last.step.0);
            bar.set_message(message);
        } else if self.shown_at.elapsed() >= PACE || last.step.0 == self.steps {
            eprintln!("step {}/{}  {message}", last.step, self.steps);
            self.shown_at = Instant::now();
        } else {
            return;
        }
        self.shown = last.step.0;
        if self.shown == self.steps {
            self.announce_end();
        }
    }

    /// The last step is done; what follows takes a moment.
    fn announce_end(&self) {
        let words = "validating, and writing the model";
        match &self.bar {
            Some(bar) => bar.set_message(words),
            None => eprintln!("{words}"),
        }
    }

    /// Leaves the last state on the screen.
    pub(crate) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.abandon();
        }
    }
}

/// What came out, for the user.
pub(crate) fn summary(run: &RunSpec, report: &Report, dir: &Path) {
    let loss = &report.loss;
    println!("trained {} steps in {}", report.steps, clock(report.wall_seconds));
    println!("  loss        {:.3} -> {:.3} nats", loss.first, loss.last);
    if let Some(validation) = loss.validation {
        let beside = match loss.bigram {
            Some(bigram) => format!(" (a bigram model: {bigram:.3})"),
            None => String::new(),
        };
        println!("  validation  {validation:.3} nats{beside}");
    }
    if let Some(metric) = report.metric {
        println!("  metric      {metric:.4}");
    }
    println!("  throughput  {:.0} tokens/s", report.tokens_per_second);
    println!("  state hash  {}", report.state_hash);
    if !report.bitwise {
        println!("  the workers' machines compute different bits: another run may differ");
    }
    println!("  model       {}", dir.join("model.safetensors").display());
    if matches!(run.model.kind.as_str(), "gpt" | "mlp") {
        let model = dir.join("model.safetensors");
        println!("  try         everstep generate --model {} --prompt \"fn \"", model.display());
    }
    println!();
}

/// Seconds as a person reads them.
fn clock(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::clock;

    #[test]
    fn durations_read_as_people_say_them() {
        for (seconds, text) in [(-1.0, "0 s"), (59.4, "59 s"), (61.0, "1 min 01 s")] {
            assert_eq!(clock(seconds), text);
        }
        assert_eq!(clock(7_260.0), "2 h 01 min");
    }
}

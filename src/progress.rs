//! The user's view of a run: under way on stderr, and at its end on stdout.

use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

use everstep_transport::protocol::run::{Precision, Units};
use everstep_transport::protocol::{Cause, RunSpec};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::cluster::{Progress, Report};
use crate::output::{plain, say};

mod story;
mod waiting;

pub(crate) use story::{apart, lacking, sentence};
use waiting::restoring;
pub(crate) use waiting::{WaitReports, paused};

/// Shows a run's progress: a bar on a terminal, plain lines elsewhere.
pub(crate) struct Display {
    bar: Option<ProgressBar>,
    waiting: WaitReports,
    steps: u64,
    units: Units,
    shown: u64,
    shown_at: Instant,
    /// The number of the newest event that the user has heard of.
    event: u64,
    /// Whether the user has seen how others join.
    has_shown_join: bool,
    /// Whether the user has seen that the workers leave.
    has_shown_leave: bool,
    /// Whether the first news are those of an earlier launcher, which has shown them.
    is_resumed: bool,
}

/// The time between two plain lines, at least.
const PROGRESS_LINE_INTERVAL: Duration = Duration::from_secs(2);
/// The answer to the first signal that asks a launcher to end.
const LEAVE: &str = "the workers save a checkpoint of this step and leave. A second Ctrl-C or \
                     SIGTERM ends them at once";
/// Steps over which the throughput is averaged.
const RECENT: usize = 20;

impl Display {
    /// Prints the size of the run, and where its files go.
    pub(crate) fn new(run: &RunSpec, workers: u32, dir: &Path) -> Self {
        opening(run, workers).into_iter().for_each(say);
        say(format_args!("files: {}", dir.display()));
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(run.steps), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}");
            bar.set_style(style.expect("the template is well-formed"));
            bar.set_message("starting");
            bar
        });
        let (waiting, shown_at) =
            (WaitReports::new(run, workers), Instant::now() - PROGRESS_LINE_INTERVAL);
        Self {
            bar,
            waiting,
            steps: run.steps,
            units: run.model.units(),
            shown: 0,
            shown_at,
            event: 0,
            has_shown_join: false,
            has_shown_leave: false,
            is_resumed: false,
        }
    }

    /// Tells no event of the first news.
    pub(crate) fn resumed(self) -> Self {
        Self { is_resumed: true, ..self }
    }

    /// Prints what is new since the last call.
    pub(crate) fn show(&mut self, progress: &Progress) {
        if !std::mem::replace(&mut self.has_shown_join, true) {
            self.tell(&format!("another worker joins with: {}", progress.join));
            if let Some(api) = &progress.api {
                self.tell(&format!("HTTP API: {api} (see {api}/api/v1/status)"));
            }
        }
        let newest = progress.events.last().map_or(self.event, |event| event.number);
        if std::mem::take(&mut self.is_resumed) {
            self.event = newest;
        }
        if progress.is_leaving && !std::mem::replace(&mut self.has_shown_leave, true) {
            self.tell(LEAVE);
        }
        for event in progress.events.iter().filter(|event| event.number > self.event) {
            tracing::debug!(?event, "event");
            if let Some(sentence) = sentence(event, progress) {
                self.tell(&sentence);
            }
        }
        self.event = newest;
        for sentence in self.waiting.sentences(progress) {
            self.tell(&sentence);
        }
        if let Some(words) = restoring(progress) {
            self.show_restore(words);
        }
        let Some(last) = progress.lines.last() else { return };
        if last.step.0 == self.shown {
            return;
        }
        let message = self.message(progress);
        if let Some(bar) = &self.bar {
            bar.set_position(last.step.0);
            bar.set_message(message);
        } else if self.shown_at.elapsed() >= PROGRESS_LINE_INTERVAL || last.step.0 == self.steps {
            say(format_args!("step {}/{}  {message}", last.step, self.steps));
            self.shown_at = Instant::now();
        } else {
            return;
        }
        self.shown = last.step.0;
        if self.shown == self.steps {
            self.announce_end();
        }
    }

    /// How far the workers have read a checkpoint: beside the bar, or now and then in a line.
    fn show_restore(&mut self, words: String) {
        if let Some(bar) = &self.bar {
            bar.set_message(words);
        } else if self.shown_at.elapsed() >= PROGRESS_LINE_INTERVAL {
            say(words);
            self.shown_at = Instant::now();
        }
    }

    /// The state of the run, by its newest lines.
    fn message(&self, progress: &Progress) -> String {
        let lines = &progress.lines[progress.lines.len().saturating_sub(RECENT)..];
        let seconds: f64 = lines.iter().map(|line| line.seconds).sum();
        let tokens: u64 = lines.iter().map(|line| line.tokens).sum();
        let left = (self.steps - progress.step().0) as f64 * seconds / lines.len() as f64;
        let loss = lines.last().map_or(f64::NAN, |line| line.loss);
        let rate = self.units.throughput(tokens as f64 / seconds);
        let lacking = lacking(progress).map_or(String::new(), |words| format!("  {words}"));
        format!("loss {}  {rate}  ETA {}{lacking}", shown_loss(loss), clock(left))
    }

    /// Prints a sentence, above the bar if there is one.
    fn tell(&self, sentence: &str) {
        match &self.bar {
            Some(bar) => bar.println(sentence),
            None => say(sentence),
        }
    }

    /// The last step is done. The next work takes a moment.
    fn announce_end(&self) {
        let words = "validating, and writing the model";
        match &self.bar {
            Some(bar) => bar.set_message(words),
            None => self.tell(words),
        }
    }

    /// Leaves the last state on the screen.
    pub(crate) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.abandon();
        }
    }
}

/// A description of the run that begins, in lines that a terminal of 80 columns has room for.
fn opening(run: &RunSpec, workers: u32) -> [String; 2] {
    let model = &run.model;
    let size = match model.kind.as_str() {
        "python" => String::new(), // its script alone knows
        _ => format!(" with {} of width {}", counted(model.layers.into(), "layer"), model.width),
    };
    let [name, kind] = [&run.name, &model.kind].map(|text| plain(text));
    let [steps, samples] = [(run.steps, "step"), (run.batch.samples(), "sample")]
        .map(|(count, what)| counted(count, what));
    let workers = counted(workers.into(), "worker");
    [
        format!("training \"{name}\": {steps} of {samples}, {workers}"),
        format!("model: {kind}{size}"),
    ]
}

/// A number of things: "1 layer", "2 layers".
fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// The results, for the user.
pub(crate) fn summary(run: &RunSpec, report: &Report, dir: &Path) -> String {
    let (loss, units) = (&report.loss, report.units);
    let last = units.loss(shown_loss(loss.last));
    let mut lines = vec![
        format!("trained {} steps in {}", report.steps, clock(report.wall_seconds)),
        format!("  loss        {} -> {last}", shown_loss(loss.first)),
    ];
    if let Some(validation) = loss.validation {
        let beside = loss.bigram.map(|bigram| format!(" (a bigram model: {})", shown_loss(bigram)));
        let beside = beside.unwrap_or_default();
        let validation = units.loss(shown_loss(validation));
        lines.push(format!("  validation  {validation}{beside}"));
    }
    lines.extend(report.metric.map(|metric| format!("  metric      {metric:.4}")));
    let throughput = units.throughput(report.tokens_per_second);
    lines.push(format!("  throughput  {throughput}{}", used(report)));
    lines.extend(faults(report).map(|faults| format!("  survived    {faults}")));
    lines.extend(warnings(run, report));
    // Without a hash the run is not complete, and there is no model.
    if report.state_hash.is_empty() {
        return lines.join("\n") + "\n";
    }
    lines.push(format!("  state hash  {}", report.state_hash));
    lines.extend(model_lines(run, stored_model(run, report), &dir.join("model.safetensors")));
    lines.join("\n") + "\n"
}

/// The utilization of the GPUs, if it is known.
fn used(report: &Report) -> String {
    let share = report.model_flops_utilization.map(|share| 100.0 * share);
    share.map_or(String::new(), |percent| {
        format!(", {percent:.1} % of what the GPUs can do at most (model FLOPs utilization)")
    })
}

/// The faults in the cluster. None if there were none.
fn faults(report: &Report) -> Option<String> {
    let of = |cause| report.generations.iter().filter(|g| g.cause == cause).count();
    let changes = report.generations.len().saturating_sub(1) as u64;
    if changes == 0 && report.coordinator_restarts == 0 {
        return None;
    }
    let stalls = report.generations.iter().filter_map(|generation| generation.stall_ms);
    let longest = stalls.fold(0.0, f64::max);
    let counted = [
        (of(Cause::Lost) as u64, "after losses"),
        (of(Cause::Join) as u64, "for joins"),
        (of(Cause::Leave) as u64, "for leaves"),
        (of(Cause::Rebalance) as u64, "to spread work and copies"),
        (of(Cause::Pause) as u64, "to pause"),
        (of(Cause::Resume) as u64, "to go on after a pause"),
        (of(Cause::Checkpoint) as u64, "to save a checkpoint"),
        (report.rollbacks.len() as u64, "rollbacks"),
    ];
    let counted = counted.into_iter().filter(|(count, _)| *count > 0);
    let counted: Vec<_> = counted.map(|(count, what)| format!("{count} {what}")).collect();
    let detail =
        if counted.is_empty() { String::new() } else { format!(" ({})", counted.join(", ")) };
    let restarts = match report.coordinator_restarts {
        0 => String::new(),
        restarts => format!(", starts of the coordinator after the first: {restarts}"),
    };
    Some(format!(
        "changes of generation: {changes}{detail}, the longest stall {longest:.0} ms{restarts}, \
         steps redone: {}, lost: {}",
        report.steps_redone, report.steps_lost
    ))
}

/// The model's place in the store of the run's checkpoints, if the run has one.
fn stored_model(run: &RunSpec, report: &Report) -> Option<String> {
    let path = report.model.as_ref().filter(|_| run.checkpoint.is_some())?;
    let host = report.model_host.as_ref().map(|host| format!("{host}:"));
    Some(plain(&format!("{}{path}", host.unwrap_or_default())))
}

/// The places of the model, and its next use. `stored` is the one in a store.
fn model_lines(run: &RunSpec, stored: Option<String>, model: &Path) -> Vec<String> {
    if !model.is_file() {
        if let Some(stored) = stored {
            return vec![format!("  model       {stored}")];
        }
        let words = "  model       not here: the worker of rank 0, which was started by hand, \
                     writes it to its own --dir, if it has one";
        return vec![words.into()];
    }
    let model = model.display();
    let mut lines = vec![format!("  model       {model}")];
    lines.extend(stored.map(|stored| format!("  stored      {stored}")));
    if matches!(&*run.model.kind, "gpt" | "mlp") && run.data.kind == "text" {
        lines.push(format!("  try         everstep generate --model {model} --prompt \"fn \""));
    }
    lines
}

fn warnings(run: &RunSpec, report: &Report) -> Vec<String> {
    let mut warnings = Vec::new();
    let (steps, skipped) = (report.steps, report.steps_skipped);
    if skipped > 0 {
        let advice = advice(run.model.precision);
        warnings.push(format!("  {skipped} of {steps} steps were skipped: {advice}"));
    }
    if let Some(reason) = &report.bitwise_reason {
        warnings.push(format!("  not bitwise: {reason}. Another run may have other bits"));
    }
    warnings
}

/// The cause of skipped steps, and the advice.
fn advice(precision: Precision) -> &'static str {
    match precision {
        Precision::F32 | Precision::Bf16 => "the gradient was not finite. Lower the learning rate",
        Precision::F16 => {
            "the gradient was not finite, and the loss scale was halved. In fp16 the first steps \
             do that, and one in 2,000. If others do, lower the learning rate, or take bf16"
        }
    }
}

/// A loss as a person reads it, without its unit.
pub(crate) fn shown_loss(loss: f64) -> String {
    match loss.abs() {
        ..1e4 => format!("{loss:.3}"),
        1e4..f64::INFINITY => format!("{loss:.1e}"),
        _ => "not finite".into(),
    }
}

/// Seconds as a person reads them.
pub(crate) fn clock(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::exemplars;

    use super::*;
    use crate::cli::Overrides;
    use crate::config;

    #[test]
    fn a_name_that_would_steer_a_terminal_is_said_escaped() {
        let run = RunSpec { name: "a\u{1b}]0;x\u{7}".into(), ..exemplars::run() };
        let [said, _] = opening(&run, 2);
        assert!(said.starts_with(r#"training "a\u{1b}]0;x\u{7}": 10 steps"#), "{said}");
    }

    #[test]
    fn one_of_a_kind_is_not_said_in_the_plural() {
        let mut run = exemplars::run();
        let said = |run: &RunSpec, workers| opening(run, workers).join("\n");
        let many = "training \"example\": 10 steps of 8 samples, 2 workers\n\
                    model: gpt with 1 layer of width 8";
        assert_eq!(said(&run, 2), many);
        (run.model.layers, run.steps) = (2, 1);
        let one = "training \"example\": 1 step of 8 samples, 1 worker\n\
                   model: gpt with 2 layers of width 8";
        assert_eq!(said(&run, 1), one);
    }

    #[test]
    fn the_first_lines_of_usual_runs_fit_a_terminal_of_80_columns() {
        let registry = everstep_worker::builtin::registry();
        let read = config::read(None, &Overrides::default(), &registry);
        let mut run = read.expect("the default run").run;
        let longest = |run: &RunSpec, workers| opening(run, workers).map(|it| it.chars().count());
        assert!(longest(&run, 2).into_iter().all(|columns| columns <= 80));
        run.steps = 1_000_000;
        (run.batch.data_shards, run.model.layers, run.model.width) = (512, 96, 12_288);
        assert!(longest(&run, 256).into_iter().all(|columns| columns <= 80));
    }

    #[test]
    fn losses_are_short_whatever_they_are() {
        for (loss, text) in [
            (5.5451, "5.545"),
            (-0.25, "-0.250"),
            (6.3e38, "6.3e38"),
            (-1e4, "-1.0e4"),
            (f64::NAN, "not finite"),
            (f64::NEG_INFINITY, "not finite"),
        ] {
            assert_eq!(shown_loss(loss), text);
        }
    }

    #[test]
    fn skipped_steps_are_no_fault_of_the_learning_rate_where_a_loss_scale_is_found() {
        assert!(advice(Precision::Bf16).contains("not finite. Lower the learning rate"));
        assert!(advice(Precision::F16).contains("the first steps do that"));
    }

    #[test]
    fn a_model_that_is_not_there_is_not_promised() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let run = exemplars::run();
        let there = model_lines(&run, None, file.path());
        assert!(there[1].contains("everstep generate --model /"), "{there:?}");
        for (kind, data) in [("rings", "text"), ("gpt", "tokens")] {
            let mut run = run.clone();
            (run.model.kind, run.data.kind) = (kind.into(), data.into());
            assert_eq!(model_lines(&run, None, file.path()).len(), 1, "it continues no text");
        }
        let missing = model_lines(&run, None, Path::new("/no/such/model"));
        assert!(missing.len() == 1 && missing[0].contains("not here"), "{missing:?}");
        let place = || Some("s3://bucket/run/model.safetensors".to_string());
        let stored = model_lines(&run, place(), Path::new("/no/such/model"));
        assert_eq!(stored, ["  model       s3://bucket/run/model.safetensors"]);
        let both = model_lines(&run, place(), file.path());
        assert_eq!(both[1], "  stored      s3://bucket/run/model.safetensors");
    }

    #[test]
    fn durations_read_as_people_say_them() {
        for (seconds, text) in [(-1.0, "0 s"), (59.4, "59 s"), (61.0, "1 min 01 s")] {
            assert_eq!(clock(seconds), text);
        }
        assert_eq!(clock(7_260.0), "2 h 01 min");
    }
}

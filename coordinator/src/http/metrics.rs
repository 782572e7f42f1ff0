//! `/metrics`: the figures of a coordinator as Prometheus reads them.
//!
//! The text exposition format, version 0.0.4, in base units. Labels have a few values each. None is
//! a worker's id or name, except in the figures of a worker's device. Only the info of the run has
//! the run's name. A pure function.

use std::fmt::Write;
use std::time::Duration;

use everstep_transport::protocol::outcome::{PausedBy, WorkerState, WorkerView};
use everstep_transport::protocol::{Accelerator, Device, Telemetry};

use super::Overview;
use super::process::ProcessFigures;
use crate::core::ClusterView;
use crate::history::Histogram;

/// All figures, in the exposition format.
pub(super) fn text(overview: &Overview) -> String {
    let mut page = MetricsText::default();
    coordinator(&mut page, overview);
    run(&mut page, overview);
    workers(&mut page, overview);
    devices(&mut page, overview);
    if overview.cluster.leads.is_some() {
        history(&mut page, overview);
    }
    log(&mut page, overview);
    page.0
}

/// The figures of the process, under the names that all programs give them.
pub(super) fn process_text(figures: &ProcessFigures) -> String {
    let mut page = MetricsText::default();
    let help = "Seconds of all cores together that the process took, in user and system mode.";
    page.head("process_cpu_seconds_total", "counter", help);
    page.sample("process_cpu_seconds_total", "", figures.cpu_seconds);
    let help = "When the process started, seconds of Unix time.";
    page.gauge("process_start_time_seconds", help, figures.start_seconds);
    let help = "Memory of the process that is in RAM.";
    page.gauge("process_resident_memory_bytes", help, figures.resident_bytes as f64);
    let help = "Address space of the process.";
    page.gauge("process_virtual_memory_bytes", help, figures.virtual_bytes as f64);
    page.gauge("process_open_fds", "Open files and sockets.", figures.open_files as f64);
    page.0
}

fn coordinator(page: &mut MetricsText, Overview { cluster, links, .. }: &Overview) {
    let version = [("version", env!("CARGO_PKG_VERSION"), 1.0)];
    page.labelled("everstep_build_info", "gauge", "The version that runs.", &version);
    let leads = f64::from(u8::from(cluster.leads.is_some()));
    page.gauge("everstep_leader", "Whether this coordinator leads.", leads);
    let term = cluster.leads.map_or(0, |term| term.0);
    page.gauge("everstep_term", "The term in which it leads, or 0 if it does not.", term as f64);
    let roles = links.iter().map(|(role, count)| ("role", *role, *count as f64));
    let help = "Links to peers, by what they are.";
    page.labelled("everstep_links", "gauge", help, &roles.collect::<Vec<_>>());
    let help = "Messages ignored: their sender may not send them, or not then.";
    page.counter("everstep_messages_ignored_total", help, cluster.ignored);
}

fn run(page: &mut MetricsText, Overview { cluster, runs, under_protected, .. }: &Overview) {
    let run = cluster.run.as_ref();
    if let Some(view) = runs.last().filter(|_| run.is_some()) {
        let help = "The newest run, and its state.";
        page.head("everstep_run_info", "gauge", help);
        let (name, id, state) = (label(&view.name), view.id, &view.state);
        let labels = format!("{{run=\"{name}\",id=\"{id}\",state=\"{state}\"}}");
        page.sample("everstep_run_info", &labels, 1.0);
    }
    let flag = |set: bool| f64::from(u8::from(set));
    page.gauge("everstep_step", "The newest settled step.", cluster.step().0 as f64);
    let steps = run.map_or(0, |run| run.steps);
    page.gauge("everstep_steps", "How many steps the run has, or 0 without a run.", steps as f64);
    let generation = cluster.generation.0 as f64;
    page.gauge("everstep_generation", "The current generation, or 0 before the first.", generation);
    let world_size = f64::from(cluster.world_size);
    page.gauge("everstep_world_size", "Members of the current generation.", world_size);
    let min = run.map_or(0, |run| run.min_workers);
    page.gauge("everstep_min_workers", "Below so many members the run waits.", f64::from(min));
    let waits = cluster.waits();
    let is_waiting = waits.iter().any(|(_, span)| span.is_some());
    page.gauge("everstep_waiting", "Whether the run waits for anything.", flag(is_waiting));
    let help = "How long the run has waited: for workers, for silent owners of parameter shards, \
                for a store that takes the model or gives a checkpoint, for devices that get on, \
                or for a network that reaches workers. It is 0 where the run does not wait.";
    let seconds = |span: Option<Duration>| span.unwrap_or_default().as_secs_f64();
    let spans = waits.map(|(what, span)| ("what", what, seconds(span)));
    page.labelled("everstep_waiting_seconds", "gauge", help, &spans);
    let by = |by| flag(cluster.paused.as_ref().is_some_and(|paused| paused.by == by));
    let paused = [
        ("by", "operator", by(PausedBy::Operator)),
        ("by", "failed_checkpoint", by(PausedBy::FailedCheckpoint)),
    ];
    page.labelled("everstep_paused", "gauge", "Whether the run is paused, and by what.", &paused);
    checkpoints(page, cluster);
    let help = "Whether a change of generation is under way.";
    page.gauge("everstep_changing", help, flag(cluster.changing));
    let help = "Pairs of members that cannot reach each other, and cannot be left out.";
    page.gauge("everstep_unreachable_pairs", help, cluster.unreachable.len() as f64);
    let lacking: u64 = under_protected.iter().map(|lapse| u64::from(lapse.count)).sum();
    let help = "Parameter shards with fewer owners than the run asks for.";
    page.gauge("everstep_under_protected_shards", help, lacking as f64);
    let help = "Whether the run's bits are those of any other run of its specification.";
    page.gauge("everstep_bitwise", help, flag(cluster.divergence.is_none()));
    if let Some(line) = &cluster.line {
        let help = "Mean training loss of the newest step, in nats or the model's own unit.";
        page.gauge("everstep_loss", help, line.loss);
        let help = "Norm of the newest step's gradient, before clipping.";
        page.gauge("everstep_gradient_norm", help, line.grad_norm);
        let help = "What the newest step's loss was multiplied by. It is 1 but for fp16.";
        page.gauge("everstep_loss_scale", help, f64::from(line.loss_scale));
        page.gauge("everstep_learning_rate", "Of the newest step.", line.learning_rate);
        page.gauge("everstep_step_seconds", "How long the newest step took.", line.seconds);
    }
}

/// A run without checkpoints has none of these figures: an alert on their age would fire.
fn checkpoints(page: &mut MetricsText, cluster: &ClusterView) {
    if cluster.run.as_ref().is_none_or(|run| run.checkpoint.is_none()) {
        return;
    }
    let help = "The step of the newest checkpoint that can be restored, or 0 before the first.";
    page.gauge("everstep_checkpoint_step", help, cluster.checkpoint.0 as f64);
    let age = cluster.step().0.saturating_sub(cluster.checkpoint.0);
    let help = "Settled steps since then: a loss of all workers would undo so many.";
    page.gauge("everstep_checkpoint_age_steps", help, age as f64);
}

fn workers(page: &mut MetricsText, Overview { cluster, .. }: &Overview) {
    let count = |state| cluster.workers.iter().filter(|view| view.state == state).count();
    let idle = |state| if state == WorkerState::Waiting { cluster.idle } else { 0 };
    let states = STATES.map(|(state, name)| ("state", name, (count(state) + idle(state)) as f64));
    let states = [states.as_slice(), &[("state", "building", cluster.building as f64)]].concat();
    let help = "Workers that are there, by what they do.";
    page.labelled("everstep_workers", "gauge", help, &states);
}

/// The states of present workers, each with its name. Other figures count workers that are gone as
/// lost, or as having left. Here the coordinator would forget them some day.
const STATES: [(WorkerState, &str); 6] = [
    (WorkerState::Waiting, "waiting"),
    (WorkerState::Learning, "learning"),
    (WorkerState::Training, "training"),
    (WorkerState::Suspected, "suspected"),
    (WorkerState::Leaving, "leaving"),
    (WorkerState::Finished, "finished"),
];

/// The devices of present workers. A worker that is gone has no series any more.
fn devices(page: &mut MetricsText, Overview { cluster, .. }: &Overview) {
    let here = |view: &&WorkerView| STATES.iter().any(|(state, _)| *state == view.state);
    let here: Vec<&WorkerView> = cluster.workers.iter().filter(here).collect();
    if here.is_empty() {
        return;
    }
    page.head("everstep_worker_device_info", "gauge", "What a worker computes on.");
    for view in &here {
        page.sample("everstep_worker_device_info", &device_labels(view), 1.0);
    }
    for (name, help, figure) in FIGURES {
        let told = here.iter().filter_map(|view| Some((view, figure(view.telemetry.as_ref()?)?)));
        let told: Vec<_> = told.collect();
        if !told.is_empty() {
            page.head(name, "gauge", help);
        }
        for (view, value) in told {
            page.sample(name, &format!("{{worker=\"{}\"}}", view.worker), value);
        }
    }
}

fn device_labels(view: &WorkerView) -> String {
    let Device { name, precision, accelerator } = &view.device;
    let mut labels = format!("{{worker=\"{}\",device=\"{name}\"", view.worker);
    labels += &format!(",precision=\"{}\"", precision.name());
    if let Some(accelerator) = accelerator {
        let (Accelerator { number, capability, .. }, uuid) = (accelerator, accelerator.uuid());
        labels += &format!(",number=\"{number}\",capability=\"{capability}\",uuid=\"{uuid}\"");
    }
    labels + "}"
}

/// A figure of a GPU, its help, and how to read it, if the worker tells it.
type Figure = (&'static str, &'static str, fn(&Telemetry) -> Option<f64>);

const FIGURES: [Figure; 6] = [
    (
        "everstep_gpu_utilization_ratio",
        "The share of the last moments in which a worker's GPU computed.",
        |told| told.utilization_percent.map(|percent| f64::from(percent) / 100.0),
    ),
    (
        "everstep_gpu_memory_utilization_ratio",
        "The share of the last moments in which its memory was read or written.",
        |told| told.memory_utilization_percent.map(|percent| f64::from(percent) / 100.0),
    ),
    ("everstep_gpu_memory_used_bytes", "Memory of the GPU in use, by any process.", |told| {
        told.memory_used_bytes.map(|bytes| bytes as f64)
    }),
    ("everstep_gpu_memory_total_bytes", "All memory of the GPU.", |told| {
        told.memory_total_bytes.map(|bytes| bytes as f64)
    }),
    ("everstep_gpu_power_watts", "What the GPU draws.", |told| {
        told.power_milliwatts.map(|milliwatts| f64::from(milliwatts) / 1e3)
    }),
    ("everstep_gpu_temperature_celsius", "How hot the GPU is.", |told| {
        told.temperature_celsius.map(f64::from)
    }),
];

/// The counts that are equal on every coordinator, since all have one history. The leader alone
/// tells them, so that a sum over all coordinators counts everything once.
fn history(page: &mut MetricsText, Overview { tally, .. }: &Overview) {
    let help = "Workers that registered.";
    page.counter("everstep_registrations_total", help, tally.registrations);
    let help = "Workers that were refused.";
    page.counter("everstep_refusals_total", help, tally.refusals);
    let help = "Workers that became members of a run under way.";
    page.counter("everstep_joins_total", help, tally.joins);
    let help = "Workers that left in good order.";
    page.counter("everstep_leaves_total", help, tally.leaves);
    let losses = tally.losses.iter().map(|(cause, count)| ("cause", *cause, *count as f64));
    let help = "Workers that were lost, by what they were lost by.";
    page.labelled("everstep_losses_total", "counter", help, &losses.collect::<Vec<_>>());
    let causes = tally.generations.iter().map(|(cause, count)| ("cause", *cause, *count as f64));
    let help = "Generations, by their cause.";
    page.labelled("everstep_generations_total", "counter", help, &causes.collect::<Vec<_>>());
    let help = "Steps that were computed again, one at most for each change of generation.";
    page.counter("everstep_steps_redone_total", help, tally.redone);
    let help = "Times at which the run went back to an earlier step.";
    page.counter("everstep_rollbacks_total", help, tally.rollbacks);
    let help = "Checkpoints that were due or asked for, and failed.";
    page.counter("everstep_checkpoint_failures_total", help, tally.failed_checkpoints);
    let help = "Settled steps, those that a rollback took back included.";
    page.counter("everstep_steps_committed_total", help, tally.steps);
    let help = "Settled steps that changed nothing: their gradient was not finite.";
    page.counter("everstep_steps_skipped_total", help, tally.skipped);
    let help = "Targets that settled steps trained on.";
    page.counter("everstep_tokens_total", help, tally.tokens);
    let help = "How long training stood still at a change of generation, beyond a step's time.";
    page.histogram("everstep_stall_seconds", help, &tally.stalls);
    let help = "How long settled steps took, those that a rollback took back included.";
    page.histogram("everstep_step_duration_seconds", help, &tally.step_times);
}

fn log(page: &mut MetricsText, Overview { tally, .. }: &Overview) {
    let help = "Metrics lines that this process has written.";
    page.counter("everstep_lines_written_total", help, tally.written);
    let help = "Entries that this process has proposed.";
    page.counter("everstep_log_entries_proposed_total", help, tally.proposed);
    let help = "Entries of its own that this process has applied.";
    page.counter("everstep_log_entries_applied_total", help, tally.applied);
    let help = "From an entry's proposal until it was durable and applied.";
    page.histogram("everstep_log_write_seconds", help, &tally.log_write);
}

/// A text of a user as the value of a label.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The text so far.
#[derive(Default)]
struct MetricsText(String);

impl MetricsText {
    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, "gauge", help);
        self.sample(name, "", value);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "counter", help);
        self.sample(name, "", value as f64);
    }

    /// Samples that differ in the value of one label.
    fn labelled(&mut self, name: &str, kind: &str, help: &str, samples: &[(&str, &str, f64)]) {
        self.head(name, kind, help);
        for (label, is, value) in samples {
            self.sample(name, &format!("{{{label}=\"{is}\"}}"), *value);
        }
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        let bucket = format!("{name}_bucket");
        for (bound, count) in histogram.buckets() {
            self.sample(&bucket, &format!("{{le=\"{bound}\"}}"), count as f64);
        }
        self.sample(&bucket, "{le=\"+Inf\"}", histogram.count() as f64);
        self.sample(&format!("{name}_sum"), "", histogram.sum());
        self.sample(&format!("{name}_count"), "", histogram.count() as f64);
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        self.write(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    fn sample(&mut self, name: &str, labels: &str, value: f64) {
        // Rust writes infinity in a way that not every reader takes.
        match value.is_infinite() {
            true => {
                let sign = if value > 0.0 { '+' } else { '-' };
                self.write(format_args!("{name}{labels} {sign}Inf\n"));
            }
            false => self.write(format_args!("{name}{labels} {value}\n")),
        }
    }

    fn write(&mut self, text: std::fmt::Arguments<'_>) {
        self.0.write_fmt(text).expect("a string takes everything");
    }
}

#[cfg(test)]
mod tests;

//! `everstep bench stages`: how a step spends its time, from the traces of all workers.
//!
//! A stage's time is its own: a wait for parameters within the forward pass counts as `all_gather`
//! alone. The rest of a step has no span. Most of it is the device's thread between two jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;

use everstep_transport::protocol::{MetricsLine, RunSpec};
use everstep_worker::registry::Registry;
use serde::Deserialize;
use serde_json::json;

use super::{configured_run, quantile, sorted, train_in};
use crate::cli::{Overrides, StagesFlags};
use crate::cluster::{ClusterOptions, Directory, Report};
use crate::failure::{Exit, Failure};
use crate::output;

/// Steps before the measured ones.
const WARM_UP: u64 = 3;
/// The stages in their order, with a description of each.
const STAGES: [(&str, &str); 8] = [
    ("load", "waiting for a batch"),
    ("all_gather", "waiting for parameters"),
    ("forward", "computing"),
    ("backward", "computing"),
    ("data_shard", "adding up, and what else belongs to a data shard"),
    ("reduce_scatter", "waiting for reduced gradients"),
    ("commit", "waiting for votes and the commit"),
    ("update", "computing"),
];
/// The stages in which a device waits for other members.
const EXPOSED: [&str; 3] = ["all_gather", "reduce_scatter", "commit"];

/// An event of a trace, in microseconds.
#[derive(Clone, Debug, Deserialize)]
struct TraceEvent {
    name: String,
    ph: char,
    #[serde(default)]
    tid: u32,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    #[serde(default)]
    args: Arguments,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct Arguments {
    step: Option<u64>,
}

/// Milliseconds by step and stage.
pub(super) type StageTimes = BTreeMap<(u64, String), f64>;

pub(super) fn run(flags: &StagesFlags, registry: &Registry) -> Result<(), Failure> {
    let overrides = Overrides {
        workers: Some(flags.workers),
        start_workers: Some(flags.workers),
        steps: Some(u64::from(flags.steps) + WARM_UP),
        ..Overrides::default()
    };
    let (run, folder) = configured_run(flags.config.as_deref(), &overrides, registry)?;
    let (wait, device) = (flags.wait, flags.device.clone());
    let devices = registry.devices().clone();
    let options = ClusterOptions { wait, device, devices, ..ClusterOptions::new(flags.workers) };
    let (_, lines, workers) = train_traced(folder.path(), &run, options)?;

    let counted = WARM_UP + 1..=WARM_UP + u64::from(flags.steps);
    let stages = STAGES.map(|(stage, _)| median(&workers, &counted, stage));
    let rest = rest(&workers, &lines, &counted);
    let steps = sorted(lines[WARM_UP as usize..].iter().map(|line| line.seconds * 1e3));
    let model = registry.build_model_on_host(&run).expect("the workers have built it");
    print(flags, model.layout().count(), quantile(&steps, 0.5), rest, stages)
}

/// Trains `run` in a new directory below `folder`, with a trace of each worker.
pub(super) fn train_traced(
    folder: &Path,
    run: &RunSpec,
    options: ClusterOptions,
) -> Result<(Report, Vec<MetricsLine>, Vec<StageTimes>), Failure> {
    let options = ClusterOptions { trace: true, ..options };
    let directory = Directory::claim_new(folder, run)?;
    let traces: Result<Vec<_>, _> =
        (1..=options.workers).map(|worker| directory.trace(worker)).collect();
    let (report, lines) = train_in(directory, run, &options)?;
    let workers: Result<Vec<StageTimes>, _> = traces?.iter().map(|trace| read(trace)).collect();
    Ok((report, lines, workers?))
}

fn read(path: &Path) -> Result<StageTimes, Failure> {
    let unreadable = |why: String| {
        Failure::new(Exit::Failed, "a worker's trace cannot be read")
            .at(path.display())
            .because(why)
            .next("look at the worker's log beside it")
    };
    let text = fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
    let events: Vec<TraceEvent> =
        serde_json::from_str(&text).map_err(|error| unreadable(error.to_string()))?;
    Ok(own_times(events))
}

/// The part of each step that no stage takes.
fn rest(workers: &[StageTimes], lines: &[MetricsLine], steps: &RangeInclusive<u64>) -> f64 {
    without(&STAGES.map(|(stage, _)| stage), workers, lines, steps)
}

/// The median step without these stages, milliseconds. The update of a step comes after its commit,
/// so it counts in the time of the next step.
pub(super) fn without(
    stages: &[&str],
    workers: &[StageTimes],
    lines: &[MetricsLine],
    steps: &RangeInclusive<u64>,
) -> f64 {
    let taken = |step: u64| {
        let stages = stages.iter().map(|stage| match *stage {
            "update" => mean(workers, step - 1, stage),
            stage => mean(workers, step, stage),
        });
        stages.sum::<f64>()
    };
    let counted = lines.iter().filter(|line| steps.contains(&line.step.0));
    let rests = counted.map(|line| line.seconds * 1e3 - taken(line.step.0));
    quantile(&sorted(rests), 0.5)
}

/// The own time of each stage in each step, without the stages within it.
fn own_times(mut spans: Vec<TraceEvent>) -> StageTimes {
    spans.retain(|event| event.ph == 'X');
    // Of two spans that begin at the same moment, the longer one is the outer one.
    let place = |span: &TraceEvent| (span.tid, span.ts, -span.dur);
    spans.sort_by(|a, b| place(a).partial_cmp(&place(b)).expect("times are numbers"));
    let mut times = StageTimes::new();
    let mut around: Vec<TraceEvent> = Vec::new();
    for span in spans {
        around.retain(|it| it.tid == span.tid && span.ts < it.ts + it.dur);
        if let Some(outer) = around.last()
            && let Some(step) = outer.args.step
        {
            *times.entry((step, outer.name.clone())).or_default() -= span.dur / 1e3;
        }
        if let Some(step) = span.args.step {
            *times.entry((step, span.name.clone())).or_default() += span.dur / 1e3;
        }
        around.push(span);
    }
    times
}

/// The median over steps of the mean over workers.
pub(super) fn median(workers: &[StageTimes], steps: &RangeInclusive<u64>, stage: &str) -> f64 {
    quantile(&sorted(steps.clone().map(|step| mean(workers, step, stage))), 0.5)
}

fn mean(workers: &[StageTimes], step: u64, stage: &str) -> f64 {
    let took = workers.iter().filter_map(|times| times.get(&(step, stage.to_string())));
    took.fold(0.0, |sum, took| sum + took) / workers.len() as f64
}

fn print(
    flags: &StagesFlags,
    parameters: usize,
    step_ms: f64,
    rest: f64,
    stages: [f64; STAGES.len()],
) -> Result<(), Failure> {
    let exposed: BTreeSet<_> = EXPOSED.into();
    let named = || STAGES.iter().zip(stages);
    let exposed_ms: f64 =
        named().filter(|((stage, _), _)| exposed.contains(stage)).map(|(_, took)| took).sum();
    if flags.json {
        let stages: BTreeMap<_, _> = named().map(|((stage, _), took)| (*stage, took)).collect();
        return output::print(json!({
            "workers": flags.workers, "parameters": parameters, "steps": flags.steps,
            "step_ms": step_ms, "stages_ms": stages, "rest_ms": rest, "exposed_ms": exposed_ms,
        }));
    }
    let row = |stage: &str, took: f64, what: &str| {
        let share = format!("{:4.1} %", 100.0 * took / step_ms);
        [format!("  {stage}"), format!("{took:8.2} ms"), share, what.to_string()]
    };
    let mut rows: Vec<_> = named().map(|((stage, what), took)| row(stage, took, what)).collect();
    rows.push(row("rest", rest, "of no stage"));
    rows.push(row("step", step_ms, ""));
    rows.push(row("exposed", exposed_ms, "of the step: all_gather, reduce_scatter, commit"));
    let StagesFlags { workers, steps, .. } = flags;
    output::print(format_args!(
        "{workers} workers, {parameters} parameters, medians of {steps} steps\n{}",
        output::table(&rows)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(tid: u32, name: &str, (ts, dur): (f64, f64), step: Option<u64>) -> TraceEvent {
        TraceEvent { name: name.into(), ph: 'X', tid, ts, dur, args: Arguments { step } }
    }

    #[test]
    fn a_stages_time_is_without_what_lies_within_it() {
        let times = own_times(vec![
            span(1, "all_gather", (2_000.0, 3_000.0), Some(4)),
            span(1, "update", (3_000.0, 1_000.0), Some(3)),
            span(1, "forward", (1_000.0, 6_000.0), Some(4)),
            span(1, "forward", (9_000.0, 500.0), Some(4)),
            span(2, "commit", (1_500.0, 9_000.0), Some(3)),
        ]);
        let expected = [
            ((3, "commit"), 9.0),
            ((3, "update"), 1.0),
            ((4, "all_gather"), 2.0),
            ((4, "forward"), 3.5),
        ];
        let expected = expected.map(|((step, stage), took)| ((step, stage.to_string()), took));
        assert_eq!(times, expected.into());
    }
}

//! `everstep bench overlap`: the time that overlapping communication with compute saves.

use std::path::Path;

use everstep_transport::protocol::RunSpec;
use everstep_worker::registry::Registry;
use serde_json::json;

use super::{configured_run, quantile, sorted, train};
use crate::cli::{OverlapFlags, Overrides};
use crate::cluster::{ClusterOptions, Report};
use crate::failure::Failure;
use crate::output;

/// Steps of a run before the measured ones.
const WARM_UP: usize = 3;

/// The figures of one run.
struct OverlapFigures {
    step_ms: f64,
    exposed_ms: f64,
}

pub(super) fn run(flags: &OverlapFlags, registry: &Registry) -> Result<(), Failure> {
    let overrides = Overrides {
        workers: Some(flags.workers),
        start_workers: Some(flags.workers),
        steps: Some(u64::from(flags.steps) + WARM_UP as u64),
        copies: Some(1),
        ..Overrides::default()
    };
    let (run, folder) = configured_run(flags.config.as_deref(), &overrides, registry)?;
    let wait = flags.wait;
    let options = |overlap| ClusterOptions { wait, overlap, ..ClusterOptions::new(flags.workers) };
    let mut pairs = Vec::new();
    for pair in 0..flags.pairs {
        // The order alternates, so that a drift of the machine favours neither.
        let first = pair % 2 == 0;
        let one = measure(folder.path(), &run, &options(first))?;
        let other = measure(folder.path(), &run, &options(!first))?;
        pairs.push(if first { (one, other) } else { (other, one) });
    }
    print(flags, &pairs)
}

fn measure(
    folder: &Path,
    run: &RunSpec,
    options: &ClusterOptions,
) -> Result<OverlapFigures, Failure> {
    let (report, lines) = train(folder, run, options)?;
    let seconds = sorted(lines[WARM_UP..].iter().map(|line| line.seconds));
    Ok(OverlapFigures { step_ms: 1e3 * quantile(&seconds, 0.5), exposed_ms: exposed_ms(&report) })
}

/// For each step, the waiting time of the device that waited longest.
fn exposed_ms(report: &Report) -> f64 {
    let waiting = report.workers.iter().map(|worker| worker.exposed_communication_seconds);
    1e3 * waiting.fold(0.0, f64::max) / report.steps as f64
}

fn print(flags: &OverlapFlags, pairs: &[(OverlapFigures, OverlapFigures)]) -> Result<(), Failure> {
    let median = |value: &dyn Fn(&(OverlapFigures, OverlapFigures)) -> f64| {
        quantile(&sorted(pairs.iter().map(value)), 0.5)
    };
    let (with, without) = (median(&|pair| pair.0.step_ms), median(&|pair| pair.1.step_ms));
    let ratio = median(&|pair| pair.0.step_ms / pair.1.step_ms);
    let exposed = (median(&|pair| pair.0.exposed_ms), median(&|pair| pair.1.exposed_ms));
    if flags.json {
        let result = json!({
            "workers": flags.workers, "pairs": pairs.len(), "step_ratio": ratio,
            "overlapped": { "step_ms": with, "exposed_ms": exposed.0 },
            "not_overlapped": { "step_ms": without, "exposed_ms": exposed.1 },
        });
        return output::print(result);
    }
    let (workers, pairs, (one, other)) = (flags.workers, pairs.len(), exposed);
    output::print(format_args!(
        "{workers} workers, medians of {pairs} pairs of runs\n  \
           overlapped      {with:.1} ms a step, {one:.1} ms of it waiting\n  \
           not overlapped  {without:.1} ms a step, {other:.1} ms of it waiting\n  \
           ratio           {ratio:.3}"
    ))
}

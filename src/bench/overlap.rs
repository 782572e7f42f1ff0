//! `everstep bench overlap`: what it saves to communicate while computing.

use serde_json::json;

use super::{Scratch, quantile, sorted};
use crate::cli::{OverlapFlags, Overrides};
use crate::cluster::{Options, Report};
use crate::config;
use crate::failure::Failure;
use crate::text::RunText;
use everstep_transport::protocol::RunSpec;
use everstep_worker::registry::Registry;

/// Steps of a run before those that count.
const WARM_UP: usize = 3;

/// The figures of one run.
struct Figures {
    step_ms: f64,
    exposed_ms: f64,
}

pub(super) fn run(flags: &OverlapFlags, registry: &Registry) -> Result<(), Failure> {
    let overrides = Overrides {
        workers: Some(flags.workers),
        steps: Some(u64::from(flags.steps) + WARM_UP as u64),
        copies: Some(1),
        ..Overrides::default()
    };
    let mut resolved = config::read(flags.config.as_deref(), &overrides, registry)?;
    let scratch = Scratch::new()?;
    resolved.run.data.path = RunText::find(&resolved)?.listed_in(&scratch.0)?;
    let mut pairs = Vec::new();
    for pair in 0..flags.pairs {
        // The order alternates, so that what drifts favours neither.
        let first = pair % 2 == 0;
        let one = measure(&scratch, &resolved.run, flags.workers, first)?;
        let other = measure(&scratch, &resolved.run, flags.workers, !first)?;
        pairs.push(if first { (one, other) } else { (other, one) });
    }
    print(flags, &pairs);
    Ok(())
}

fn measure(
    scratch: &Scratch,
    run: &RunSpec,
    workers: u32,
    overlap: bool,
) -> Result<Figures, Failure> {
    let (report, progress) = scratch.train(run, &Options { workers, overlap })?;
    let seconds = sorted(progress.lines[WARM_UP..].iter().map(|line| line.seconds));
    Ok(Figures { step_ms: 1e3 * quantile(&seconds, 0.5), exposed_ms: exposed_ms(&report) })
}

/// Waiting of the device that waited longest, for each step.
fn exposed_ms(report: &Report) -> f64 {
    let waiting = report.workers.iter().map(|worker| worker.exposed_communication_seconds);
    1e3 * waiting.fold(0.0, f64::max) / report.steps as f64
}

fn print(flags: &OverlapFlags, pairs: &[(Figures, Figures)]) {
    let median = |value: &dyn Fn(&(Figures, Figures)) -> f64| {
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
        println!("{result}");
    } else {
        println!("{} workers, medians of {} pairs of runs", flags.workers, pairs.len());
        println!("  overlapped      {with:.1} ms a step, {:.1} ms of it waiting", exposed.0);
        println!("  not overlapped  {without:.1} ms a step, {:.1} ms of it waiting", exposed.1);
        println!("  ratio           {ratio:.3}");
    }
}

//! `everstep bench all-reduce`: the time of a whole step that computes nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use everstep_transport::protocol::run::{
    BatchSpec, DataSpec, LossUnit, ModelSpec, OptimizerSpec, OptionMap, Precision, ScheduleKind,
    TargetUnit,
};
use everstep_transport::protocol::{Encoding, MetricsLine, Rounding, RunSpec};
use serde_json::json;

use super::stages::{self, StageTimes, train_traced, without};
use super::vector::{NAME, UNIT};
use super::{quantile, sorted, train};
use crate::cli::AllReduceFlags;
use crate::cluster::{ClusterOptions, Report};
use crate::failure::Failure;
use crate::{output, scratch};

/// Steps before the measured ones.
const WARM_UP: usize = 3;

/// Stages of a step that an all-reduce does not have: votes, commits and updates.
const BEYOND: [&str; 2] = ["commit", "update"];
/// The measured stages. Stages that compute take no time here.
const STAGES: [&str; 5] = ["data_shard", "reduce_scatter", "commit", "update", "all_gather"];

/// The stages of a step, medians, milliseconds.
struct Stages {
    /// The rest of a step without [`BEYOND`].
    exchange_ms: f64,
    each_ms: [f64; STAGES.len()],
}

pub(super) fn run(flags: &AllReduceFlags) -> Result<(), Failure> {
    let folder = scratch::folder()?;
    let wait = flags.wait;
    let shares_memory = !flags.network;
    let options = ClusterOptions { wait, shares_memory, ..ClusterOptions::new(flags.workers) };
    let (report, lines, stages) = if flags.stages {
        let (report, lines, workers) = train_traced(folder.path(), &spec(flags), options)?;
        let stages = Stages::of(&workers, &lines);
        (report, lines, Some(stages))
    } else {
        let (report, lines) = train(folder.path(), &spec(flags), &options)?;
        (report, lines, None)
    };
    let seconds = sorted(lines[WARM_UP..].iter().map(|line| line.seconds));
    let median = quantile(&seconds, 0.5);
    let bytes = f64::from(flags.mb) * 1e6;
    let (median_ms, p99_ms) = (median * 1e3, quantile(&seconds, 0.99) * 1e3);
    let gib_per_s = bytes / median / f64::from(1 << 30);
    let cpu = cpu_seconds_per_gb(&report);
    if flags.json {
        let mut result = json!({
            "workers": flags.workers, "mb": flags.mb, "network": flags.network,
            "iterations": seconds.len(),
            "median_ms": median_ms, "p99_ms": p99_ms, "gib_per_s": gib_per_s,
            "cpu_seconds_per_gb": cpu,
        });
        if let Some(Stages { exchange_ms, each_ms }) = stages {
            let each: BTreeMap<_, _> = STAGES.into_iter().zip(each_ms).collect();
            result["exchange_ms"] = json!(exchange_ms);
            result["stages_ms"] = json!(each);
        }
        return output::print(result);
    }
    let AllReduceFlags { mb, workers, .. } = flags;
    output::print(format_args!(
        "{mb} MB over {workers} workers, {} times, each a whole step\n  \
           median  {median_ms:.1} ms  ({gib_per_s:.2} GiB/s)\n  \
           p99     {p99_ms:.1} ms\n  \
           CPU     {cpu:.2} s for each GB sent{}",
        seconds.len(),
        stages.map(|stages| stages.words()).unwrap_or_default()
    ))
}

impl Stages {
    fn of(workers: &[StageTimes], lines: &[MetricsLine]) -> Self {
        let steps = WARM_UP as u64 + 1..=lines.len() as u64;
        Self {
            exchange_ms: without(&BEYOND, workers, lines, &steps),
            each_ms: STAGES.map(|stage| stages::median(workers, &steps, stage)),
        }
    }

    /// Updates overlap other stages. So an exchange without updates takes somewhat longer than a
    /// step less its updates.
    fn words(&self) -> String {
        let each = STAGES.into_iter().zip(self.each_ms);
        let each: Vec<_> = each.map(|(stage, took)| format!("{stage} {took:.1}")).collect();
        format!(
            "\nof which\n  \
               without updates, votes and commits, at least {:.1} ms\n  \
               {} ms",
            self.exchange_ms,
            each.join(", ")
        )
    }
}

/// The smallest possible run.
pub(super) fn smallest_run() -> RunSpec {
    let (stages, network, json) = (false, false, false);
    let wait = Duration::from_secs(1);
    spec(&AllReduceFlags { workers: 1, mb: 1, iterations: 1, stages, network, wait, json })
}

/// A run with the vector as its gradient, one data shard a worker and one owner a shard.
fn spec(flags: &AllReduceFlags) -> RunSpec {
    let units = (u64::from(flags.mb) * 1_000_000).div_ceil(4 * UNIT as u64) as u32;
    RunSpec {
        name: "all-reduce".into(),
        seed: 1,
        steps: u64::from(flags.iterations) + WARM_UP as u64,
        min_workers: 1,
        start_workers: flags.workers,
        model: ModelSpec {
            kind: NAME.into(),
            layers: 1,
            heads: 1,
            width: 1,
            context: units,
            vocabulary: ModelSpec::VOCABULARY,
            precision: Precision::F32,
            recompute: false,
            init: None,
            unit: TargetUnit::default(),
            loss_unit: LossUnit::default(),
            options: OptionMap::default(),
        },
        data: DataSpec {
            kind: NAME.into(),
            path: String::new(),
            validation: 0.0,
            dtype: None,
            validation_every: 0,
        },
        batch: BatchSpec { data_shards: flags.workers, micro_batch: 1, accumulate: 1 },
        optimizer: OptimizerSpec {
            kind: "sgd".into(),
            learning_rate: 0.0,
            warmup_steps: 0,
            schedule: ScheduleKind::Constant,
            floor: OptimizerSpec::FLOOR,
            weight_decay: 0.0,
            clip_norm: None,
            betas: None,
            epsilon: None,
            momentum: None,
            options: OptionMap::default(),
        },
        all_gather: Encoding::F32,
        rounding: Rounding::Nearest,
        copies: 1,
        give_up_after_ms: None,
        hang_after_ms: RunSpec::HANG_AFTER_MS,
        checkpoint: None,
    }
}

/// CPU of all workers, over what they have sent. All of their steps count, the first ones too.
fn cpu_seconds_per_gb(report: &Report) -> f64 {
    let cpu: f64 = report.workers.iter().map(|worker| worker.cpu_seconds).sum();
    let sent: u64 = report.workers.iter().map(|worker| worker.bytes_sent).sum();
    if sent == 0 { 0.0 } else { cpu / (sent as f64 / 1e9) }
}

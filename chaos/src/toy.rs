//! A run so small that a simulation takes milliseconds: an MLP of seven parameter shards that
//! learns to add two digits.

use std::sync::Arc;

use everstep_kernels::compute::Batch;
use everstep_transport::protocol::Encoding;
use everstep_transport::protocol::run::{
    BatchSpec, DataSpec, ModelSpec, OptimizerKind, OptimizerSpec, RunSpec, ScheduleKind,
};
use everstep_worker::builtin;
use everstep_worker::data::Dataset;
use everstep_worker::registry::Registry;

/// The data set's name in [`registry`].
pub const DATASET: &str = "sums";
/// Samples to train on: all sums of two numbers below ten.
pub const SAMPLES: u64 = 100;

/// What every program has, and [`Sums`].
pub fn registry() -> Registry {
    builtin::registry().dataset(DATASET, |_| Ok(Arc::new(Sums)))
}

/// Six steps of eight data shards, two samples each: almost an epoch.
pub fn run() -> RunSpec {
    RunSpec {
        name: "toy".into(),
        seed: 1,
        steps: 6,
        min_workers: 1,
        start_workers: 1,
        model: ModelSpec { kind: "mlp".into(), layers: 1, heads: 1, width: 8, context: 2 },
        data: DataSpec { kind: DATASET.into(), path: "none".into(), validation: 0.05 },
        batch: BatchSpec { data_shards: 8, micro_batch: 2, accumulate: 1 },
        optimizer: OptimizerSpec {
            kind: OptimizerKind::Adamw,
            learning_rate: 1e-2,
            warmup_steps: 2,
            schedule: ScheduleKind::Cosine,
            weight_decay: 0.1,
            clip_norm: Some(1.0),
        },
        all_gather: Encoding::F32,
        copies: 2,
    }
}

/// Two digits a row, and their sum as the one target. The held-out samples are the same sums.
#[derive(Clone, Copy, Debug)]
pub struct Sums;

impl Dataset for Sums {
    fn len(&self) -> u64 {
        SAMPLES
    }

    fn fingerprint(&self) -> [u8; 32] {
        *b"sums of two digits, version one."
    }

    fn fill(&self, index: u64, batch: &mut Batch) {
        let (a, b) = (index as u32 / 10, index as u32 % 10);
        batch.tokens.extend([a, b]);
        batch.targets.push(a + b);
        batch.rows += 1;
    }

    fn validation_len(&self) -> u64 {
        SAMPLES / 10
    }

    fn fill_validation(&self, index: u64, batch: &mut Batch) {
        self.fill(index, batch);
    }
}

//! Runs so small that a simulation takes milliseconds: a model learns to add two digits. [`run`]
//! trains an MLP of seven parameter shards. [`long_run`] trains a [`Line`] of four. In fp16 that
//! overflows as it would on a GPU.

use std::sync::{Arc, LazyLock};

use everstep_kernels::compute::{Batch, Evaluation, HostModel, OnHost};
use everstep_kernels::layout::{Init, Layout};
use everstep_transport::protocol::exemplars;
use everstep_transport::protocol::run::{Precision, RunSpec};
use everstep_worker::builtin;
use everstep_worker::data::{DataError, Dataset};
use everstep_worker::registry::Registry;

use crate::random::mix;

/// The data set's name in [`registry`].
pub const DATASET: &str = "sums";
/// Samples to train on: all sums of two numbers below ten.
pub const SAMPLES: u64 = 100;

/// The model's name in [`registry`].
pub const MODEL: &str = "line";
/// Good steps in a row after which fp16's loss scale doubles.
pub const GROWTH_INTERVAL: u32 = 3;
/// Kept sums are added up shard by shard, as a large model adds its sums in portions.
pub const MERGE_BYTES: usize = 1;
/// The greatest number of fp16.
const GREATEST: f32 = 65_504.0;

/// The registry of every program, with [`SumsDataset`] and [`Line`]. Two threads share the updates,
/// so devices make several at once.
pub fn registry() -> Registry {
    let mut registry = builtin::registry().dataset(DATASET, |_| Ok(Arc::new(SumsDataset)));
    registry.set_threads(2);
    registry.model(MODEL, |run, _| Ok(Box::new(OnHost::new(Line::of(run)))))
}

/// Six steps of eight data shards, two samples each: almost an epoch.
pub fn run() -> RunSpec {
    let mut run = RunSpec { name: "toy".into(), steps: 6, start_workers: 1, ..exemplars::run() };
    (run.model.kind, run.model.heads, run.model.context) = ("mlp".into(), 1, 2);
    (run.data.kind, run.data.path) = (DATASET.into(), "none".into());
    run.batch.data_shards = 8;
    run.optimizer.learning_rate = 1e-2;
    run
}

/// The same, of twenty steps. It takes some seconds of virtual time, so that faults meet its
/// beginning, its middle and its end.
pub fn long_run() -> RunSpec {
    let mut run = RunSpec { steps: 20, ..run() };
    run.model.kind = MODEL.into();
    run
}

/// The same in fp16.
pub fn scaled_run() -> RunSpec {
    let mut run = long_run();
    run.model.precision = Precision::F16;
    run
}

/// A line through the origin of many dimensions, in which each sum has its own direction. It is
/// cheap, and every parameter matters to every sample.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// A derivative beyond this is infinite.
    greatest: f32,
}

/// The parameters of a [`Line`]: three parameter shards and a part of one.
const PARAMETERS: usize = 3_500;
/// Sums that are made side by side, so that a compiler may vectorise them.
const LANES: usize = 8;

/// Numbers between -0.02 and 0.02. A sample's direction is a window of them.
static NUMBERS: LazyLock<Vec<f32>> = LazyLock::new(|| {
    let number = |index: u64| (mix(index) >> 40) as f32 / (1u64 << 24) as f32;
    (0..2 * PARAMETERS as u64).map(|index| (number(index) - 0.5) / 25.0).collect()
});

impl Line {
    fn of(run: &RunSpec) -> Self {
        let half = run.model.precision == Precision::F16;
        Self { greatest: if half { GREATEST } else { f32::INFINITY } }
    }

    fn direction(batch: &Batch, row: usize) -> &'static [f32] {
        let (a, b) = (batch.tokens[2 * row] as usize, batch.tokens[2 * row + 1] as usize);
        &NUMBERS[17 * a + 311 * b..][..PARAMETERS]
    }

    /// The line's result less the true sum.
    fn error(parameters: &[f32], batch: &Batch, row: usize) -> f32 {
        let mut sums = [0.0f32; LANES];
        let direction = Self::direction(batch, row).chunks(LANES);
        for (weights, numbers) in parameters.chunks(LANES).zip(direction) {
            for ((sum, weight), number) in sums.iter_mut().zip(weights).zip(numbers) {
                *sum += weight * number;
            }
        }
        sums.iter().sum::<f32>() - batch.targets[row] as f32
    }
}

impl HostModel for Line {
    fn layout(&self) -> Layout {
        let mut layout = Layout::new();
        layout.push("slope", &[PARAMETERS], Init::Constant(0.1));
        layout
    }

    fn gradient(
        &mut self,
        parameters: &[f32],
        batch: &Batch,
        scale: f32,
        gradient: &mut [f32],
    ) -> f64 {
        let mut loss = 0.0;
        for row in 0..batch.rows {
            let error = Self::error(parameters, batch, row);
            loss += f64::from(error * error) / batch.rows as f64;
            let slope = 2.0 * error * scale / batch.rows as f32;
            let slope = if slope.abs() > self.greatest { f32::INFINITY } else { slope };
            for (sum, number) in gradient.iter_mut().zip(Self::direction(batch, row)) {
                *sum += slope * number;
            }
        }
        loss
    }

    fn evaluate(&mut self, parameters: &[f32], batch: &Batch) -> Evaluation {
        let squares = (0..batch.rows).map(|row| Self::error(parameters, batch, row).powi(2));
        let loss = squares.map(f64::from).sum::<f64>() / batch.rows as f64;
        Evaluation { loss, metric: None }
    }
}

/// Two digits a row, and their sum as the one target. The held-out samples are the same sums.
#[derive(Clone, Copy, Debug)]
pub struct SumsDataset;

impl Dataset for SumsDataset {
    fn len(&self) -> u64 {
        SAMPLES
    }

    fn fingerprint(&self) -> [u8; 32] {
        *b"sums of two digits, version one."
    }

    fn fill(&self, index: u64, batch: &mut Batch) -> Result<(), DataError> {
        let (a, b) = (index as u32 / 10, index as u32 % 10);
        batch.tokens.extend([a, b]);
        batch.targets.push(a + b);
        batch.rows += 1;
        Ok(())
    }

    fn validation_len(&self) -> u64 {
        SAMPLES / 10
    }

    fn fill_validation(&self, index: u64, batch: &mut Batch) -> Result<(), DataError> {
        self.fill(index, batch)
    }
}

//! A model and a data set of one's own: points of a square, told apart by the ring they lie in.
//!
//! ```text
//! cargo run --release --example own_model
//! cargo run --release --example own_model -- train --config examples/own_model.toml --workers 3
//! ```
//!
//! With arguments this is the program `everstep`, with "rings" to train. Without, it trains them on
//! one worker, then on three: over 95 % of the held-out points are told right, by the same bits.
//! The model has an option of its own, `leak`, in the configuration's `[model.options]`.
//!
//! They are the same on any machine: of std, training calls only `max` and `sqrt`, which are exact.
//! `exp`, `sin` and their like are each platform's own: use them, and bits repeat only on its kind.

use std::{path::Path, process::ExitCode, sync::Arc};

use everstep::cli::Overrides;
use everstep::cluster::{self, ClusterOptions, Directory};
use everstep::{
    Batch, DataError, Dataset, Evaluation, HostModel, Init, Layout, OnHost, Philox, Registry,
};

fn main() -> anyhow::Result<ExitCode> {
    let registry = Registry::new()
        .model("rings", |run, _device| {
            let leak = run.model.options.number("leak")?.unwrap_or(0.0) as f32;
            Ok(Box::new(OnHost::new(Net { width: run.model.width, leak })))
        })
        // Errors of these rules show the user the line of the configuration.
        .model_rules("rings", |run| {
            run.model.options.only(&["leak"]).map_err(|error| error.of("model.options"))
        })
        .dataset("rings", |_run| Ok(Arc::new(Rings)));
    // Coordinator and workers are this very program, started with arguments.
    if std::env::args().len() > 1 {
        return Ok(everstep::program(registry));
    }
    for workers in [1, 3] {
        let file = (Path::new("own_model.toml"), include_str!("own_model.toml"));
        let flags = Overrides { workers: Some(workers), ..Overrides::default() };
        let run = everstep::config::resolve(Some(file), &flags, &registry)?.run;
        let directory = Directory::claim_new(Path::new("runs"), &run)?;
        let report =
            cluster::train(&run, directory, &ClusterOptions::new(workers), |_progress| {})?;
        let accuracy = report.metric.unwrap_or_default();
        println!("workers {workers}  accuracy {accuracy:.3}  state hash {}", report.state_hash);
        anyhow::ensure!(accuracy >= 0.95, "the model has not learned the rings");
    }
    Ok(ExitCode::SUCCESS)
}

/// Random points around the origin. Neighbouring rings are on different sides.
struct Rings;

/// Points to learn from. As many more are held out.
const SAMPLES: u64 = 4096;

impl Dataset for Rings {
    fn len(&self) -> u64 {
        SAMPLES
    }

    fn fingerprint(&self) -> [u8; 32] {
        *b"rings of width 1/2, version one."
    }

    /// A pure function of the index. Any worker may ask for any point, again and again.
    fn fill(&self, index: u64, batch: &mut Batch) -> Result<(), DataError> {
        let random = Philox::new(1, Philox::USER, index);
        let [x, y] = [0, 1].map(|axis| 2.0 * random.unit(axis) - 1.0);
        let ring = (2.0 * (x * x + y * y).sqrt()) as usize;
        batch.features.extend([x, y, [-1.0, 1.0][ring % 2]]);
        batch.rows += 1;
        Ok(())
    }

    fn validation_len(&self) -> u64 {
        SAMPLES
    }

    fn fill_validation(&self, index: u64, batch: &mut Batch) -> Result<(), DataError> {
        self.fill(SAMPLES + index, batch)
    }
}

/// A hidden layer of rectified units, which leak a little. The sign of their weighted sum is the
/// side. The loss is the squared hinge: the square of the sum's distance to 1 on the right side.
struct Net {
    width: u32,
    /// The slope of a unit below zero.
    leak: f32,
}

impl HostModel for Net {
    /// A row for each unit: its weights of x and y, its bias, its weight in the sum.
    fn layout(&self) -> Layout {
        let mut layout = Layout::new();
        layout.push("units", &[self.width as usize, 4], Init::Normal { deviation: 0.5 });
        layout
    }

    fn gradient(&mut self, units: &[f32], batch: &Batch, scale: f32, gradient: &mut [f32]) -> f64 {
        let mut loss = 0.0;
        for &[x, y, side] in batch.features.as_chunks().0 {
            let lack = self.lack(units, [x, y, side]);
            loss += f64::from(lack * lack) / batch.rows as f64;
            let d_sum = -2.0 * side * lack * scale / batch.rows as f32;
            for (unit, d_unit) in units.chunks_exact(4).zip(gradient.chunks_exact_mut(4)) {
                let output = self.output(unit, x, y);
                let d_output = d_sum * unit[3] * if output > 0.0 { 1.0 } else { self.leak };
                let d = [d_output * x, d_output * y, d_output, d_sum * output];
                d_unit.iter_mut().zip(d).for_each(|(total, d)| *total += d);
            }
        }
        loss
    }

    fn evaluate(&mut self, units: &[f32], batch: &Batch) -> Evaluation {
        let loss = self.gradient(units, batch, 0.0, &mut vec![0.0; units.len()]);
        let points = batch.features.as_chunks().0.iter();
        let right = points.filter(|point| self.lack(units, **point) < 1.0).count();
        Evaluation { loss, metric: Some(right as f64 / batch.rows as f64) } // the accuracy
    }
}

impl Net {
    fn lack(&self, units: &[f32], [x, y, side]: [f32; 3]) -> f32 {
        let sum: f32 = units.chunks_exact(4).map(|unit| unit[3] * self.output(unit, x, y)).sum();
        (1.0 - side * sum).max(0.0)
    }

    fn output(&self, unit: &[f32], x: f32, y: f32) -> f32 {
        let sum = unit[0] * x + unit[1] * y + unit[2];
        if sum > 0.0 { sum } else { self.leak * sum }
    }
}

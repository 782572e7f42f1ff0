//! An optimizer of one's own: every weight moves by the sign of a running mean of gradients.
//!
//! ```text
//! cargo run --release --example own_optimizer
//! cargo run --release --example own_optimizer -- train --config examples/own_optimizer.toml
//! ```
//!
//! With arguments this is the program `everstep`, with one optimizer more. Without, it trains a
//! small GPT on this file, on one worker and then on three: the loss falls, and the bits are equal.
//!
//! Signum: Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems", ICML 2018.

use std::{path::Path, process::ExitCode, sync::Arc};

use everstep::cli::Overrides;
use everstep::cluster::{self, ClusterOptions, Directory};
use everstep::{UpdateBlock, UpdateInputs, UpdateRule, builtin};

fn main() -> anyhow::Result<ExitCode> {
    let registry = builtin::registry().optimizer("signum", |run| {
        let spec = &run.optimizer;
        // Settings that this rule does not have are errors, and do not pass unnoticed.
        spec.only(&["momentum"]).map_err(|error| error.to_string())?;
        spec.options.only(&["dead_zone"])?;
        let dead_zone = spec.options.number("dead_zone")?.unwrap_or(0.0) as f32;
        Ok(Arc::new(Signum { momentum: spec.momentum.unwrap_or(0.9) as f32, dead_zone }))
    });
    // Coordinator and workers are this very program, started with arguments.
    if std::env::args().len() > 1 {
        return Ok(everstep::program(registry));
    }
    for workers in [1, 3] {
        let file = (Path::new("own_optimizer.toml"), include_str!("own_optimizer.toml"));
        let text = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/own_optimizer.rs");
        let flags =
            Overrides { workers: Some(workers), data: Some(text.into()), ..Overrides::default() };
        let run = everstep::config::resolve(Some(file), &flags, &registry)?.run;
        let directory = Directory::claim_new(Path::new("runs"), &run)?;
        let report =
            cluster::train(&run, directory, &ClusterOptions::new(workers), |_progress| {})?;
        let (first, last) = (report.loss.first, report.loss.last);
        println!(
            "workers {workers}  loss {first:.2} to {last:.2}  state hash {}",
            report.state_hash
        );
        anyhow::ensure!(last < first - 1.0, "the model has not learned");
    }
    Ok(ExitCode::SUCCESS)
}

/// The rule. `momentum` is the share of the mean that is kept at each step.
#[derive(Debug)]
struct Signum {
    momentum: f32,
    /// A mean that is not greater than this moves no weight.
    dead_zone: f32,
}

impl UpdateRule for Signum {
    fn moments(&self) -> usize {
        1
    }

    /// Elementwise: a weight's change follows from its own mean and gradient alone. So it has the
    /// same bits wherever a shard is cut. Weight decay and clipping are done by now.
    fn update(&self, block: UpdateBlock<'_>, inputs: &UpdateInputs<'_>) {
        let [mean] = block.moments else { unreachable!("`moments` asks for one") };
        for ((weight, mean), slope) in block.weights.iter_mut().zip(&mut **mean).zip(block.gradient)
        {
            *mean = self.momentum * *mean + (1.0 - self.momentum) * slope;
            if mean.abs() > self.dead_zone {
                *weight -= inputs.learning_rate.copysign(*mean);
            }
        }
    }
}

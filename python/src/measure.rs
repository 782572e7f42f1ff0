//! What a script needs, found out without a cluster: for `everstep launch --dry-run`.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use everstep::script::Measured;
use everstep_kernels::compute::{ComputeError, GradientSink, ParameterSource, Pass, PassPlace};
use everstep_kernels::optimizer::UpdateRule;
use everstep_transport::protocol::{DataShard, RunSpec, Step};
use everstep_worker::data::Sampler;
use everstep_worker::free_memory::peak_rss_bytes;

use crate::model::WorkerScript;
use crate::probe::PASSES;
use crate::rendezvous::{Ended, Turn};
use crate::watchdog::Watchdog;

/// Serves the script's thread as a worker of its own does at first. Writes what that has taken into
/// the file, and ends the worker.
pub fn measure(mut script: WorkerScript, file: &Path) {
    let rendezvous = script.rendezvous.clone();
    let measured = compute(&mut script).map_err(|error| error.to_string()).and_then(|()| {
        let run = script.stated;
        let parameters = script.layout.count() as u64;
        let measured = Measured {
            tensors: script.layout.tensors().len(),
            samples: script.samples,
            held_out: script.held_out,
            parameters,
            bytes_per_parameter: (size_of::<f32>() * (1 + script.rule.moments())) as u64,
            process_bytes: peak_rss_bytes(),
            gpu_bytes: None, // the script's thread knows
            run,
        };
        measured.write(file).map_err(|error| format!("{}: {error}", file.display()))
    });
    rendezvous.end(match measured {
        Ok(()) => Ended { code: 0, words: String::new() },
        Err(words) => Ended { code: 1, words: format!("error: {words}") },
    });
}

/// Computes micro-batches as those of the first data shard, and some held-out samples.
fn compute(script: &mut WorkerScript) -> Result<(), ComputeError> {
    let RunSpec { seed, batch, .. } = script.stated;
    let sampler = Sampler::new(seed, script.samples, batch);
    let (step, data_shard) = (Step(1), DataShard(0));
    let mut watchdog = Watchdog::new(Duration::MAX);
    // With two of them, gradients lie beside the activations of the second.
    let passes = batch.accumulate.min(2);
    for number in 0..passes {
        let scale = 1.0 / (batch.data_shards * batch.accumulate) as f32;
        let place = PassPlace { step: step.0, data_shard: data_shard.0, micro_batch: number };
        let pass = Pass::new(place, passes, scale);
        let rows = 0..batch.micro_batch;
        let index = |row| sampler.sample(step, data_shard, number, row).index;
        let turn = Turn::Training(pass, rows.map(index).collect());
        // The script's thread expects the first micro-batch as often as a worker probes it.
        for _ in 0..if number == 0 { PASSES } else { 1 } {
            let (flat, rendezvous) = (&mut script.flat, &script.rendezvous);
            rendezvous.compute(turn.clone(), flat, &mut Nowhere, &mut watchdog)?;
        }
    }
    let held_out = script.held_out.min(batch.micro_batch.into());
    if held_out > 0 {
        script.rendezvous.evaluate((0..held_out).collect(), &mut watchdog)?;
    }
    Ok(())
}

/// A sink that drops all gradients. The initial parameters are there already.
struct Nowhere;

impl ParameterSource for Nowhere {
    fn await_parameters(&mut self, _range: Range<usize>, _write: &mut dyn FnMut(usize, &[f32])) {}
}

impl GradientSink for Nowhere {
    fn publish_gradient(&mut self, _range: Range<usize>, _gradient: &[f32]) {}
}

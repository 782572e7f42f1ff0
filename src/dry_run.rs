//! `everstep train --dry-run`: what a run would need, without running it.

use everstep_kernels::reduce;
use everstep_worker::memory::Memory;
use everstep_worker::registry::Registry;

use crate::config::Resolved;
use crate::failure::{Exit, Failure};
use crate::output;

/// Prints parameters, shards and memory.
pub(crate) fn run(resolved: &Resolved, registry: &Registry) -> Result<(), Failure> {
    let run = &resolved.run;
    let failed = |error: &dyn std::fmt::Display| {
        Failure::new(Exit::Usage, "the run cannot be built").because(error)
    };
    let compute = registry.build_model_on_host(run).map_err(|error| failed(&error))?;
    let dataset = registry.build_dataset(run).map_err(|error| failed(&error))?;
    let parameters = compute.layout().count();
    let tensors = compute.layout().tensors().len();
    let memory = Memory::of_worker(run, compute.as_ref(), resolved.workers)
        .map_err(|error| failed(&error))?;
    let mut lines = vec![
        format!("run             {}", run.name),
        format!("model           {} ({tensors} tensors)", run.model.kind),
        format!("parameters      {parameters}"),
        format!(
            "shards          {} of {} parameters, {} owners each",
            reduce::shard_count(parameters),
            reduce::shard_length(parameters),
            run.copies.min(resolved.workers)
        ),
        format!(
            "data shards     {}, {} samples each",
            run.batch.data_shards,
            run.batch.shard_samples()
        ),
        format!("samples         {} ({} held out)", dataset.len(), dataset.validation_len()),
        format!("steps           {} ({:.2} epochs)", run.steps, epochs(resolved, dataset.len())),
        format!("memory          of each of {} workers, without the data:", resolved.workers),
    ];
    let megabytes = |what, bytes| format!("  {what:<22}{:>9.1} MB", bytes as f64 / 1e6);
    lines.extend(memory.parts().into_iter().map(|(what, bytes)| megabytes(what, bytes)));
    lines.push(megabytes("together, about", memory.total()));
    output::print(lines.join("\n"))
}

fn epochs(resolved: &Resolved, samples: u64) -> f64 {
    (resolved.run.steps * resolved.run.batch.samples()) as f64 / samples as f64
}

//! `everstep train --dry-run`: what a run would need, without running it.

use everstep_kernels::reduce;
use everstep_worker::memory::Memory;
use everstep_worker::registry::Registry;

use crate::config::Resolved;
use crate::failure::{Exit, Failure};

/// Prints parameters, shards and memory.
pub(crate) fn run(resolved: &Resolved, registry: &Registry) -> Result<(), Failure> {
    let run = &resolved.run;
    let failed = |error: &dyn std::fmt::Display| {
        Failure::new(Exit::Usage, "the run cannot be built").because(error)
    };
    let compute = registry.build_model(run).map_err(|error| failed(&error))?;
    let dataset = registry.build_dataset(run).map_err(|error| failed(&error))?;
    let parameters = compute.layout().count();
    let memory = Memory::of_worker(run, compute.as_ref(), resolved.workers)
        .map_err(|error| failed(&error))?;
    println!("run             {}", run.name);
    println!("model           {} ({} tensors)", run.model.kind, compute.layout().tensors().len());
    println!("parameters      {parameters}");
    println!(
        "shards          {} of {} parameters, {} owners each",
        reduce::shard_count(parameters),
        reduce::shard_length(parameters),
        run.copies.min(resolved.workers)
    );
    println!(
        "data shards     {}, {} samples each",
        run.batch.data_shards,
        run.batch.shard_samples()
    );
    println!("samples         {} ({} held out)", dataset.len(), dataset.validation_len());
    println!("steps           {} ({:.2} epochs)", run.steps, epochs(resolved, dataset.len()));
    println!("memory          of each of {} workers, without the data:", resolved.workers);
    for (what, bytes) in memory.parts() {
        println!("  {what:<22}{:>9.1} MB", bytes as f64 / 1e6);
    }
    println!("  {:<22}{:>9.1} MB", "together, about", memory.total() as f64 / 1e6);
    Ok(())
}

fn epochs(resolved: &Resolved, samples: u64) -> f64 {
    (resolved.run.steps * resolved.run.batch.samples()) as f64 / samples as f64
}

//! `--dry-run`: the needs of a run, without the run itself, and without its GPU.

use everstep_kernels::device::{DeviceChoice, DeviceProvider};
use everstep_kernels::precision::Precision;
use everstep_kernels::reduce;
use everstep_transport::protocol::RunSpec;
use everstep_transport::protocol::checkpoint::{CheckpointSpec, OnFailure};
use everstep_worker::builtin;
use everstep_worker::free_memory::free_bytes;
use everstep_worker::memory::{ModelNeeds, WorkerMemory};
use everstep_worker::registry::Registry;

use crate::cli::LocalFlags;
use crate::cluster::threads_of_worker;
use crate::config::{self, Resolved};
use crate::failure::{Exit, Failure};
use crate::output;
use crate::script::Measured;

/// Prints parameters, shards and memory of a run with a model of the program.
pub(crate) fn run(
    resolved: &Resolved,
    local: &LocalFlags,
    registry: &Registry,
) -> Result<(), Failure> {
    let run = &resolved.run;
    let failed = |error: &dyn std::fmt::Display| {
        Failure::new(Exit::Usage, "the run cannot be built").because(error)
    };
    let plan = registry.plan_model(run).map_err(|error| failed(&error))?;
    let dataset = registry.build_dataset(run).map_err(|error| failed(&error))?;
    if dataset.is_empty() {
        return Err(failed(&"the data set is empty"));
    }
    let optimizer = registry.build_optimizer(run).map_err(|error| failed(&error))?;
    let threads = threads_of_worker(local.threads, resolved.workers);
    let needs = Needs {
        run,
        workers: resolved.workers,
        source: ("model", &run.model.kind),
        tensors: plan.layout.tensors().len(),
        samples: (dataset.len(), dataset.validation_len()),
        model: ModelNeeds::on_cpu(&plan, &optimizer, threads as usize),
    };
    let precision = builtin::precision(run);
    let provider = provider(registry, &local.device(), precision);
    let on_gpu = match (provider, plan.sizes) {
        (Some(provider), Some(sizes)) => provider.memory(sizes, precision),
        _ => Vec::new(),
    };
    let provider = provider.filter(|_| !on_gpu.is_empty());
    let memory = WorkerMemory::of_worker(run, needs.model, needs.workers);
    let memory = match provider {
        Some(provider) => memory.beside_device(provider.host_bytes()),
        None => memory,
    };
    let mut lines = needs.heading();
    lines.extend(memory_of_worker(&memory, "model and activations"));
    if let Some(provider) = provider {
        let driver = provider.driver();
        lines.push(format!("on its GPU      in {precision}, without what {driver} itself takes:"));
        lines.extend(on_gpu.iter().map(|(what, bytes)| megabytes(what, *bytes as u64)));
        let together: usize = on_gpu.iter().map(|(_, bytes)| bytes).sum();
        lines.push(megabytes("together", together as u64));
    }
    lines.extend(needs.checkpoints());
    output::print(lines.join("\n"))
}

/// Prints parameters, shards and memory of a script's run, of which a process has computed a
/// micro-batch. `run` has what the launcher adds to it.
pub(crate) fn of_script(
    measured: &Measured,
    run: &RunSpec,
    workers: u32,
    script: &str,
) -> Result<(), Failure> {
    let Measured { tensors, samples, held_out, .. } = *measured;
    let (source, model) = (("script", script), measured.model());
    let needs = Needs { run, workers, source, tensors, samples: (samples, held_out), model };
    let mut lines = needs.heading();
    let memory = WorkerMemory::of_worker(run, needs.model, workers);
    lines.extend(memory_of_worker(&memory, "the script, measured"));
    if let Some(bytes) = measured.gpu_bytes {
        lines.push("on its GPU      without what CUDA and its libraries take:".into());
        lines.push(megabytes("tensors, measured", bytes));
    }
    lines.extend(needs.checkpoints());
    output::print(lines.join("\n"))
}

/// The needs of a run, with a model of the program or of a script.
struct Needs<'a> {
    run: &'a RunSpec,
    workers: u32,
    /// What has the model, and its name.
    source: (&'static str, &'a str),
    tensors: usize,
    /// The numbers of samples and of held-out samples.
    samples: (u64, u64),
    model: ModelNeeds,
}

impl Needs<'_> {
    /// The lines on model, data and steps.
    fn heading(&self) -> Vec<String> {
        let Self { run, workers, source, tensors, samples, model } = self;
        let (count, held_out) = samples;
        let parameters = model.parameters as usize;
        let epochs = (run.steps * run.batch.samples()) as f64 / *count as f64;
        vec![
            format!("run             {}", output::plain(&run.name)),
            format!("{:<16}{} ({tensors} tensors)", source.0, output::plain(source.1)),
            format!("parameters      {parameters}"),
            format!(
                "shards          {} of {} parameters, {} owners each",
                reduce::shard_count(parameters),
                reduce::shard_length(parameters),
                run.copies.min(*workers)
            ),
            format!(
                "data shards     {}, {} samples each",
                run.batch.data_shards,
                run.batch.shard_samples()
            ),
            format!("samples         {count} ({held_out} held out)"),
            format!("steps           {} ({epochs:.2} epochs)", run.steps),
            format!("memory          of each of {workers} workers, without the data:"),
        ]
    }

    /// The lines on the run's checkpoints, if it has any.
    fn checkpoints(&self) -> Vec<String> {
        let ModelNeeds { parameters, bytes_per_parameter, .. } = self.model;
        let Some(checkpoint) = &self.run.checkpoint else { return Vec::new() };
        let (checkpoint_bytes, model_bytes) =
            (parameters * bytes_per_parameter, parameters * WEIGHT_BYTES);
        checkpoints(checkpoint, Disk { checkpoint_bytes, model_bytes, steps: self.run.steps })
    }
}

/// The lines on the memory of a worker. `computing` names what computes there.
fn memory_of_worker(memory: &WorkerMemory, computing: &'static str) -> Vec<String> {
    let [(_, bytes), rest @ ..] = memory.parts();
    let parts = [(computing, bytes)].into_iter().chain(rest).filter(|(_, bytes)| *bytes > 0);
    let mut lines: Vec<_> = parts.map(|(what, bytes)| megabytes(what, bytes)).collect();
    lines.push(megabytes("together, about", memory.total()));
    lines.push("memory          on top of that, for a while and at most:".into());
    let passing = memory.passing().into_iter().filter(|(_, bytes)| *bytes > 0);
    lines.extend(passing.map(|(what, bytes)| megabytes(what, bytes)));
    lines.extend(free_memory());
    lines
}

/// The bytes of a parameter in the model's file, which has f32.
const WEIGHT_BYTES: u64 = 4;

/// What a run with checkpoints writes.
#[derive(Clone, Copy)]
struct Disk {
    checkpoint_bytes: u64,
    model_bytes: u64,
    steps: u64,
}

impl Disk {
    /// The most bytes of checkpoints that the store has at a time: a new one is written before an
    /// old one is deleted.
    fn checkpoints(&self, spec: &CheckpointSpec) -> u64 {
        let forever = self.steps.checked_div(spec.keep_every).unwrap_or(0);
        let kept = spec.keep.saturating_add(1).saturating_add(forever);
        self.checkpoint_bytes.saturating_mul(kept.min(self.steps.div_ceil(spec.every)))
    }
}

/// The checkpoints of a run, and the disk that they take together with the model.
fn checkpoints(spec: &CheckpointSpec, disk: Disk) -> Vec<String> {
    let CheckpointSpec { path, every, keep, keep_every, on_failure } = spec;
    let place = match config::is_elsewhere(spec) {
        Some(_) => format!("DIR/{path}"),
        None => output::plain(path),
    };
    let forever = match keep_every {
        0 => String::new(),
        number => format!(", and for ever those of each step that {number} divides"),
    };
    let failure = match on_failure {
        OnFailure::Continue => "the run trains on",
        OnFailure::Pause => "the run pauses",
    };
    vec![
        format!("checkpoints     every {every} steps and after the last one, to {place}"),
        format!(
            "                the newest {keep} are kept{forever}, and where one fails {failure}"
        ),
        megabytes("each of them", disk.checkpoint_bytes),
        megabytes("the model's file", disk.model_bytes),
    ]
    .into_iter()
    .chain(totals(spec, disk))
    .collect()
}

/// What it comes to where. The model is in the run's directory, and a copy of it in the store.
fn totals(spec: &CheckpointSpec, disk: Disk) -> Vec<String> {
    let stored = disk.checkpoints(spec).saturating_add(disk.model_bytes);
    match spec.is_url() {
        true => vec![
            megabytes("in the store, at most", stored),
            megabytes("on disk, at most", disk.model_bytes),
        ],
        false => vec![megabytes("on disk, at most", stored.saturating_add(disk.model_bytes))],
    }
}

/// The kind of device that would compute, whether or not this machine has one. None for the CPU.
fn provider<'a>(
    registry: &'a Registry,
    device: &DeviceChoice,
    precision: Precision,
) -> Option<&'a dyn DeviceProvider> {
    let devices = registry.devices();
    let chosen = match device {
        DeviceChoice::Auto(_) if devices.usable(device).is_empty() => None,
        _ => devices.provider(device).ok().flatten(),
    };
    // In 16 bits only a GPU can compute, on any machine.
    chosen.or_else(|| devices.providers().next().filter(|_| precision != Precision::F32))
}

/// The memory of this machine. None where the system does not tell.
fn free_memory() -> Option<String> {
    let free = free_bytes()? as f64 / 1e6;
    Some(format!("this machine    has {free:.1} MB free, for all of its workers"))
}

fn megabytes(what: &str, bytes: u64) -> String {
    format!("  {what:<22}{:>9.1} MB", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_are_told_with_what_they_take() {
        let (path, on_failure) = (config::DEFAULT_FOLDER.to_string(), OnFailure::Continue);
        let mut spec = CheckpointSpec { path, every: 50, keep: 3, keep_every: 0, on_failure };
        let disk = Disk { checkpoint_bytes: 12_000_000, model_bytes: 4_000_000, steps: 1_000 };
        let told = checkpoints(&spec, disk).join("\n");
        for words in [
            "every 50 steps and after the last one, to DIR/checkpoints",
            "the newest 3 are kept, and where one fails the run trains on",
            "each of them               12.0 MB",
            "the model's file            4.0 MB",
            "on disk, at most           56.0 MB",
        ] {
            assert!(told.contains(words), "{told}");
        }
        let short = checkpoints(&spec, Disk { steps: 60, ..disk }).join("\n");
        assert!(short.contains("on disk, at most           32.0 MB"), "two of them: {short}");
        (spec.path, spec.keep_every) = ("gs://bucket/a".into(), 500);
        spec.on_failure = OnFailure::Pause;
        let told = checkpoints(&spec, disk).join("\n");
        assert!(told.contains("in the store, at most      76.0 MB"), "{told}");
        assert!(told.contains("on disk, at most            4.0 MB"), "{told}");
        spec.keep = u64::MAX;
        let told = checkpoints(&spec, disk).join("\n");
        assert!(told.contains("in the store, at most     244.0 MB"), "all twenty: {told}");
        assert!(told.contains("to gs://bucket/a\n"), "{told}");
        assert!(told.contains("kept, and for ever those of each step that 500 divides"), "{told}");
        assert!(told.contains("where one fails the run pauses"), "{told}");
    }
}

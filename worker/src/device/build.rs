//! Builds a run's model and data, and states their properties.

use std::any::Any;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use everstep_kernels::buffer::Pool;
use everstep_kernels::compute::{Batch, Compute, Pass, PassPlace};
use everstep_kernels::device::DeviceChoice;
use everstep_kernels::layout::{Init, Layout, Statistic, Tensor};
use everstep_kernels::optimizer::Optimizer;
use everstep_kernels::reduce;
use everstep_kernels::threads::Threads;
use everstep_transport::protocol::message::{Fingerprint, Registration};
use everstep_transport::protocol::run::{DataSpec, InitSpec};
use everstep_transport::protocol::{
    self, Accelerator, DataShard, DeviceKind, DeviceName, HostName, MachineId, ModelPlace, RunSpec,
    Step, Zone,
};

use super::coverage::GradientCoverage;
use super::directory::Directory;
use super::initial::InitialParameters;
use super::model_file::ModelFile;
use super::model_path::{model_path, passing_path, run_digest};
use super::rounding::Rounding;
use super::{Device, DeviceParts};
use crate::builtin;
use crate::data::Dataset;
use crate::data::loader::{LoadError, Loader};
use crate::data::row::{self, RowError, SampleIndex};
use crate::data::sampler::Sampler;
use crate::free_memory::free_bytes;
use crate::memory::{ModelNeeds, WorkerMemory};
use crate::registry::{BuildError, Registry};
use crate::step::event::Built;

/// How long the build waits for the memory that it needs.
const FREE_MEMORY_TIMEOUT: Duration = Duration::from_secs(2);

/// A worker's own address, machine and settings.
#[derive(Clone, Debug)]
pub struct BuildContext {
    /// A number drawn for each incarnation.
    pub incarnation: u64,
    /// The address on which the worker listens.
    pub address: SocketAddr,
    /// The id of the machine. None if the system does not tell.
    pub machine: Option<MachineId>,
    /// What the machine may fail together with. None if the operator named nothing.
    pub zone: Option<Zone>,
    /// Where the model goes. None if this worker cannot write it.
    pub dir: Option<Directory>,
    /// The device that the model computes on.
    pub device: DeviceChoice,
    /// Whether gradients leave during the backward pass: see [`DeviceParts::overlap`].
    pub overlap: bool,
    /// Data shards that the loader fills ahead. See [`Loader::new`].
    pub prefetch: usize,
    /// Initial weights that the worker's last device could not read. A build of the same run reads
    /// them before the worker registers.
    pub lacked: Option<InitSpec>,
}

/// The most threads beside the device's own that take norms and digests: they are as fast as the
/// memory. The device's run code of users, for which the network thread must not wait.
const CORE_THREADS: usize = 4;

/// Builds the device of a run.
pub fn build(
    registry: &Registry,
    run: &RunSpec,
    context: &BuildContext,
    pool: Pool,
) -> Result<(Device, Built), BuildError> {
    registry.validate(run)?;
    let optimizer = registry.build_optimizer(run)?;
    check_memory(registry, run, &optimizer, &context.device)?;
    let mut compute = registry.build_model(run, &context.device)?;
    let dataset = registry.build_dataset(run)?;
    if dataset.is_empty() {
        let reason = "the data set is empty: there is nothing to train on";
        return Err(BuildError::Run(reason.into()));
    }
    let layout = compute.layout().clone();
    if layout.count() == 0 {
        return Err(BuildError::Run("the model has no parameters".into()));
    }
    let initial = load_initial(run, context, compute.as_mut())?;
    let sampler = Sampler::new(run.seed, dataset.len(), run.batch);
    let batch = first_batch(run, &sampler, dataset.as_ref())?;
    let fingerprint = fingerprint(run, &layout, dataset.as_ref());
    let probe = probe(compute.as_mut(), &batch)?;
    let digest = run_digest(run, &fingerprint, probe);
    let path = find_model_path(context, &digest)?;
    let gathered =
        path.clone().or_else(|| run.checkpoint.as_ref().map(|_| passing_path(context.incarnation)));
    let registration = Registration {
        incarnation: context.incarnation,
        address: context.address,
        fingerprint,
        probe,
        zone: context.zone.clone(),
        device: described(run, compute.as_ref())?,
        model: path.as_deref().map(stated),
        host: HostName::of(&node_name()),
        machine: context.machine,
    };
    let targets = batch.targets.len().max(batch.rows) as u64;
    let batches = u64::from(run.batch.data_shards) * u64::from(run.batch.accumulate);
    let state_parts = optimizer.state_vectors();
    let (rates, trained) = (optimizer.rates(), layout.trained());
    let tokens_per_step = targets * batches;
    let threads = match registration.device.accelerator {
        Some(_) => Threads::new(registry.devices().threads().count().min(CORE_THREADS)),
        None => Threads::default(),
    };
    let built = Built { registration, tokens_per_step, trained, state_parts, rates, threads };
    let file = gathered
        .map(|path| ModelFile::new(&path, context.incarnation, &layout, &run.model, &digest));
    let parts = DeviceParts {
        run: run.clone(),
        model_file: file,
        compute,
        optimizer,
        initial,
        loader: Loader::new(dataset.clone(), sampler, context.prefetch),
        dataset,
        pool,
        overlap: context.overlap,
        threads: registry.devices().threads().clone(),
    };
    Ok((Device::new(parts), built))
}

/// Where the model of the run with this digest goes. None if this worker has no directory.
fn find_model_path(context: &BuildContext, digest: &str) -> Result<Option<PathBuf>, BuildError> {
    let Some(directory) = &context.dir else { return Ok(None) };
    let digest = digest.to_string();
    directory.attempt(move |path| model_path(path, &digest)).map(Some)
}

/// The content of a run's data, for a build of the same data. See [`Dataset::reusable`].
pub struct DataContent {
    /// The specification of the data.
    pub data: DataSpec,
    _content: Arc<dyn Any + Send + Sync>,
}

impl DataContent {
    /// The content of a device's data. None if there is no use in keeping it.
    pub fn of(device: &Device) -> Option<Self> {
        let DeviceParts { run, dataset, .. } = &device.parts;
        Some(Self { _content: dataset.reusable()?, data: run.data.clone() })
    }
}

/// Refuses a model that does not fit into this machine's free memory. Waits first, since another
/// process may be about to free its memory.
fn check_memory(
    registry: &Registry,
    run: &RunSpec,
    optimizer: &Optimizer,
    device: &DeviceChoice,
) -> Result<(), BuildError> {
    let on_host = match device {
        DeviceChoice::Cpu => true,
        DeviceChoice::Auto(_) => registry.devices().usable(device).is_empty(),
        DeviceChoice::Kind(..) => false,
    };
    let Some(plan) = registry.known_plan(run).filter(|_| on_host) else { return Ok(()) };
    let plan = plan?;
    let threads = registry.devices().threads().count();
    let model = ModelNeeds::on_cpu(&plan, optimizer, threads);
    let needed = WorkerMemory::of_worker(run, model, run.start_workers).total();
    let began = Instant::now();
    loop {
        let Some(free) = free_bytes().filter(|free| *free < needed) else { return Ok(()) };
        if began.elapsed() > FREE_MEMORY_TIMEOUT {
            let [needed, free] = [needed, free].map(|bytes| bytes.div_ceil(1 << 20));
            return Err(BuildError::Place(format!(
                "a worker of this run needs {needed} MiB of memory, and this machine has {free} \
                 MiB free. Free some, lower model.layers, model.width or batch.micro_batch, or \
                 start more workers"
            )));
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// The place of the model's file, in words for other machines.
fn stated(path: &Path) -> ModelPlace {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let shown = |c: char| if c.is_control() { '?' } else { c };
    ModelPlace {
        host: node_name().chars().map(shown).collect(),
        path: absolute.display().to_string().chars().map(shown).collect(),
    }
}

fn node_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The device that the model computes on, in words for other machines.
fn described(run: &RunSpec, compute: &dyn Compute) -> Result<protocol::Device, BuildError> {
    let precision = run.model.precision;
    let report = compute.report();
    let Some(info) = report.device else {
        let name = report.processor.map_or_else(DeviceName::cpu, |name| DeviceName::of(&name));
        return Ok(protocol::Device { name, precision, ..protocol::Device::default() });
    };
    let kind = DeviceKind::parse(&info.kind).ok_or_else(|| {
        let kind = &info.kind;
        BuildError::Run(format!(
            "the kind of device is \"{kind}\", but must have 1 to 16 lower-case letters and digits"
        ))
    })?;
    let accelerator = Accelerator {
        kind,
        number: info.index as u32,
        capability: DeviceName::of(&info.capability),
        uuid: info.uuid,
        peak_flops: info.peak_flops.of(builtin::precision(run)),
    };
    let name = DeviceName::of(&info.name);
    Ok(protocol::Device { name, precision, accelerator: Some(accelerator) })
}

/// Loads the initial parameters, rounded as all later ones. In the place of weights that may be
/// gone it loads those that follow from the seed: the first micro-batch is computed with the same
/// ones on every worker, and the device loads others before the first step.
fn load_initial(
    run: &RunSpec,
    context: &BuildContext,
    compute: &mut dyn Compute,
) -> Result<InitialParameters, BuildError> {
    let layout = compute.layout().clone();
    let initial = InitialParameters::of(run, compute)?;
    let loaded = match initial.is_at_hand() {
        true => initial.clone(),
        false => {
            if context.lacked == run.model.init {
                let read = initial.read_all(&layout, &mut |_, _| {});
                read.map_err(|error| BuildError::Place(error.to_string()))?;
            }
            InitialParameters::Seed(run.seed)
        }
    };
    let read = loaded.read_all(&layout, &mut |start, values| {
        Rounding::of(run).round(start, values);
        compute.load(start, values);
    });
    read.map_err(|error| BuildError::Run(error.to_string()))?;
    Ok(initial)
}

/// The first micro-batch of the run. Waits for samples that cannot be read yet.
fn first_batch(
    run: &RunSpec,
    sampler: &Sampler,
    dataset: &dyn Dataset,
) -> Result<Batch, BuildError> {
    let mut batch = Batch::default();
    let samples = sampler.shard_samples(Step(1), DataShard(0));
    for index in samples.take(run.batch.micro_batch as usize) {
        let row = row::append(dataset, SampleIndex::Training(index), &mut batch, &mut || true);
        if let Err(RowError::Refused(message)) = row {
            return Err(BuildError::Run(LoadError::Fill { index, message }.to_string()));
        }
    }
    Ok(batch)
}

fn fingerprint(run: &RunSpec, layout: &Layout, dataset: &dyn Dataset) -> Fingerprint {
    let mut model = blake3::Hasher::new();
    model.update(run.model.kind.as_bytes());
    for tensor in layout.tensors() {
        model.update(tensor.name.as_bytes());
        model.update(&[0, role(tensor)]);
        for size in &tensor.shape {
            model.update(&(*size as u64).to_le_bytes());
        }
        match tensor.init {
            Init::Constant(value) => model.update(&[1]).update(&value.to_le_bytes()),
            Init::Normal { deviation } => model.update(&[2]).update(&deviation.to_le_bytes()),
        };
    }
    Fingerprint {
        model: *model.finalize().as_bytes(),
        data: dataset.fingerprint(),
        parameters: layout.count() as u64,
        shards: reduce::shard_count(layout.count()) as u32,
        samples: dataset.len(),
    }
}

/// What a step does to a tensor, as a byte.
fn role(tensor: &Tensor) -> u8 {
    match tensor.statistic {
        None => u8::from(tensor.decay),
        Some(Statistic::Mean) => 2,
        Some(Statistic::Count) => 3,
        Some(Statistic::First) => 4,
    }
}

/// A digest of the first micro-batch's loss and gradient. The run assumes that machines with equal
/// bits here get equal bits in every step.
fn probe(compute: &mut dyn Compute, batch: &Batch) -> Result<u64, BuildError> {
    let mut coverage = GradientCoverage::default();
    let pass = Pass { first: true, last: true, scale: 1.0, place: PassPlace::FIRST };
    let loss = compute
        .gradient(batch, pass, &mut coverage)
        .map_err(|error| BuildError::Run(format!("the first micro-batch fails: {error}")))?;
    coverage.check(compute.layout())?;
    let collect = coverage.collect;
    let mut hasher = blake3::Hasher::new();
    hasher.update(&loss.to_le_bytes());
    for values in collect.gradient.chunks(4096) {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        hasher.update(&bytes);
    }
    let digest = hasher.finalize();
    Ok(u64::from_le_bytes(digest.as_bytes()[..8].try_into().expect("eight bytes")))
}

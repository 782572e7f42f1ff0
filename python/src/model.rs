//! The script's model and data, as the worker sees them.
//!
//! The model is a [`Compute`] that leaves its gradients to the script's thread. The data set knows
//! only how many samples there are: the script reads them.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use everstep::script::KIND;
use everstep::{Batch, Compute, DataError, Dataset, Evaluation, Init, Layout, Registry};
use everstep_kernels::compute::{ComputeError, ComputeReport, GradientSink, Pass};
use everstep_kernels::device::DeviceInfo;
use everstep_kernels::layout::Statistic;
use everstep_transport::protocol::RunSpec;
use everstep_worker::registry::BuildError;

use crate::memory::TensorMemory;
use crate::optimizer::TorchRule;
use crate::probe::probe;
use crate::rendezvous::{Rendezvous, Turn};
use crate::statement::{OPTIMIZER, contradiction};
use crate::watchdog::Watchdog;

/// What the worker needs of its script.
pub struct WorkerScript {
    /// Where the threads meet.
    pub rendezvous: Arc<Rendezvous>,
    /// The run that the script states.
    pub stated: RunSpec,
    /// The run of the cluster, once the worker has it.
    pub trained: Arc<OnceLock<RunSpec>>,
    /// The trained parameters, in the order of the flat vector.
    pub layout: Layout,
    /// The flat vector, which the model computes with.
    pub flat: TensorMemory,
    /// The file with the initial weights.
    pub weights: PathBuf,
    /// The number of samples.
    pub samples: u64,
    /// The number of held-out samples.
    pub held_out: u64,
    /// A digest of the data set.
    pub data: [u8; 32],
    /// How the optimizer changes the weights.
    pub rule: TorchRule,
    /// Whether the process ends if the script hangs.
    pub watched: bool,
    /// The kind of CPU, and the instructions that PyTorch uses there.
    pub processor: String,
    /// The GPU, if it computes on one.
    pub device: Option<DeviceInfo>,
    /// The threads that share the updates of parameter shards.
    pub update_threads: usize,
}

/// The model, the data set and the optimizer of a script, under their names.
pub fn registry(script: WorkerScript) -> Registry {
    let WorkerScript { rendezvous, stated, trained, layout, flat, weights, .. } = script;
    let WorkerScript { samples, held_out, data, rule, watched, processor, .. } = script;
    let (device, update_threads) = (script.device, script.update_threads);
    let (flat, rule) = (Arc::new(Mutex::new(flat)), Arc::new(rule));
    let build = move |run: &RunSpec, _: everstep::ChosenDevice<'_>| {
        let (rendezvous, layout) = (rendezvous.clone(), layout.clone());
        let (flat, weights) = (flat.clone(), weights.clone());
        let (processor, device) = (processor.clone(), device.clone());
        let hang_after = Duration::from_millis(run.hang_after_ms);
        let watchdog = Watchdog::new(if watched { hang_after } else { Duration::MAX });
        let is_probed = false;
        let model = ScriptModel {
            rendezvous,
            layout,
            flat,
            weights,
            watchdog,
            processor,
            device,
            is_probed,
        };
        Ok(Box::new(model) as Box<dyn Compute>)
    };
    let mut registry = Registry::new();
    registry.set_threads(update_threads);
    registry
        .model(KIND, build)
        .placed_dataset(KIND, move |run| match contradiction(&stated, run) {
            // Another script of the run may be right: the run goes on.
            Some(words) => Err(BuildError::Place(words)),
            None => {
                let _ = trained.set(run.clone()); // a process has one run
                Ok(Arc::new(ScriptData { samples, held_out, data }))
            }
        })
        .optimizer(OPTIMIZER, move |_| Ok(rule.clone()))
}

/// A model that runs on the script's thread.
struct ScriptModel {
    rendezvous: Arc<Rendezvous>,
    layout: Layout,
    /// The device's thread alone writes it, and only while the script's thread waits.
    flat: Arc<Mutex<TensorMemory>>,
    weights: PathBuf,
    watchdog: Watchdog,
    processor: String,
    device: Option<DeviceInfo>,
    /// The first pass has been computed several times, with one result.
    is_probed: bool,
}

impl Compute for ScriptModel {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn load(&mut self, offset: usize, values: &[f32]) {
        let mut flat = self.flat.lock().unwrap_or_else(PoisonError::into_inner);
        self.rendezvous.write(|| flat.write(offset, values), &self.watchdog);
    }

    fn gradient(
        &mut self,
        batch: &Batch,
        pass: Pass,
        sink: &mut dyn GradientSink,
    ) -> Result<f64, ComputeError> {
        let turn = Turn::Training(pass, samples_of(batch));
        let mut flat = self.flat.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut self.is_probed, true) {
            return probe(&self.rendezvous, &turn, &mut flat, &mut self.watchdog, sink);
        }
        self.rendezvous.compute(turn, &mut flat, sink, &mut self.watchdog)
    }

    fn evaluate(&mut self, batch: &Batch) -> Result<Evaluation, ComputeError> {
        self.rendezvous.evaluate(samples_of(batch), &mut self.watchdog)
    }

    fn device_bytes(&self) -> usize {
        2 * size_of::<f32>() * self.layout.count()
    }

    fn report(&self) -> ComputeReport {
        let (processor, device) = (Some(self.processor.clone()), self.device.clone());
        ComputeReport { processor, device, ..ComputeReport::default() }
    }

    fn initial_weights(&self) -> Option<PathBuf> {
        Some(self.weights.clone())
    }
}

/// Numbers of samples. Each fills two tokens, since it may have 64 bits.
struct ScriptData {
    samples: u64,
    held_out: u64,
    data: [u8; 32],
}

impl Dataset for ScriptData {
    fn len(&self) -> u64 {
        self.samples
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.data
    }

    fn fill(&self, index: u64, batch: &mut Batch) -> Result<(), DataError> {
        append(index, batch);
        Ok(())
    }

    fn validation_len(&self) -> u64 {
        self.held_out
    }

    fn fill_validation(&self, index: u64, batch: &mut Batch) -> Result<(), DataError> {
        append(index, batch);
        Ok(())
    }
}

/// Appends the number of a sample.
fn append(index: u64, batch: &mut Batch) {
    batch.tokens.extend([index as u32, (index >> 32) as u32]);
    batch.rows += 1;
}

/// The numbers of the samples of a batch.
fn samples_of(batch: &Batch) -> Vec<u64> {
    batch.tokens.chunks(2).map(joined).collect()
}

/// The number of a sample.
fn joined(halves: &[u32]) -> u64 {
    halves.iter().rev().fold(0, |number, half| number << 32 | u64::from(*half))
}

/// A script names a kind of statistic that this build does not know.
#[derive(Debug, thiserror::Error)]
#[error("{name}: there is no statistic of the kind {kind}")]
pub struct UnknownStatistic {
    name: String,
    kind: String,
}

/// The layout of tensors with these names and shapes, and then of statistics, each with its kind.
/// Their values come from the script.
///
/// # Errors
/// If there is no such kind of statistic.
pub fn layout(
    tensors: Vec<(String, Vec<usize>)>,
    statistics: Vec<(String, Vec<usize>, String)>,
) -> Result<Layout, UnknownStatistic> {
    let (mut layout, init) = (Layout::new(), Init::Constant(0.0));
    for (name, shape) in tensors {
        layout.push(name, &shape, init);
    }
    for (name, shape, kind) in statistics {
        let known = match kind.as_str() {
            "mean" => Statistic::Mean,
            "count" => Statistic::Count,
            "first" => Statistic::First,
            _ => return Err(UnknownStatistic { name, kind }),
        };
        layout.push_statistic(name, &shape, init, known);
    }
    Ok(layout)
}

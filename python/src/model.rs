//! The script's model and data, as the worker sees them.
//!
//! The model is a [`Compute`] that leaves its gradients to the script's thread. The data set knows
//! only how many samples there are: the script reads them.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use everstep::{Batch, Compute, DataError, Dataset, Evaluation, Init, Layout, Registry};
use everstep_kernels::compute::{ComputeError, GradientSink, Pass};
use everstep_transport::protocol::RunSpec;
use everstep_worker::registry::BuildError;

use crate::memory::TensorMemory;
use crate::optimizer::TorchRule;
use crate::rendezvous::{Rendezvous, Turn};
use crate::statement::{KIND, OPTIMIZER, contradiction};

/// What the worker needs of its script.
pub struct WorkerScript {
    /// Where the threads meet.
    pub rendezvous: Arc<Rendezvous>,
    /// The run that the script states.
    pub stated: RunSpec,
    /// The trained parameters, in the order of the flat vector.
    pub layout: Layout,
    /// The flat vector, which the model computes with.
    pub flat: TensorMemory,
    /// The file with the initial weights.
    pub weights: PathBuf,
    /// The number of samples.
    pub samples: u64,
    /// A digest of the data set.
    pub data: [u8; 32],
    /// The optimizer.
    pub rule: TorchRule,
}

/// The model, the data set and the optimizer of a script, under their names.
pub fn registry(script: WorkerScript) -> Registry {
    let WorkerScript { rendezvous, stated, layout, flat, weights, samples, data, rule } = script;
    let (flat, rule) = (Arc::new(Mutex::new(flat)), Arc::new(rule));
    let build = move |_: &RunSpec, _: everstep::ChosenDevice<'_>| {
        let (rendezvous, layout) = (rendezvous.clone(), layout.clone());
        let (flat, weights) = (flat.clone(), weights.clone());
        Ok(Box::new(ScriptModel { rendezvous, layout, flat, weights }) as Box<dyn Compute>)
    };
    Registry::new()
        .model(KIND, build)
        .placed_dataset(KIND, move |run| match contradiction(&stated, run) {
            // Another script of the run may be right: the run goes on.
            Some(words) => Err(BuildError::Place(words)),
            None => Ok(Arc::new(ScriptData { samples, data })),
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
}

impl Compute for ScriptModel {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn load(&mut self, offset: usize, values: &[f32]) {
        self.flat.lock().unwrap_or_else(PoisonError::into_inner).write(offset, values);
    }

    fn gradient(
        &mut self,
        batch: &Batch,
        pass: Pass,
        sink: &mut dyn GradientSink,
    ) -> Result<f64, ComputeError> {
        let turn = Turn { pass, samples: batch.tokens.chunks(2).map(joined).collect() };
        let mut flat = self.flat.lock().unwrap_or_else(PoisonError::into_inner);
        self.rendezvous.compute(turn, &mut flat, self.layout.count(), sink)
    }

    fn evaluate(&mut self, _batch: &Batch) -> Result<Evaluation, ComputeError> {
        Err(ComputeError::Batch("a script has no held-out samples".into()))
    }

    fn device_bytes(&self) -> usize {
        2 * size_of::<f32>() * self.layout.count()
    }

    fn initial_weights(&self) -> Option<PathBuf> {
        Some(self.weights.clone())
    }
}

/// Numbers of samples. Each fills two tokens, since it may have 64 bits.
struct ScriptData {
    samples: u64,
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
        batch.tokens.extend([index as u32, (index >> 32) as u32]);
        batch.rows += 1;
        Ok(())
    }

    fn validation_len(&self) -> u64 {
        0
    }

    fn fill_validation(&self, index: u64, _batch: &mut Batch) -> Result<(), DataError> {
        Err(DataError::Refuse(format!("a script has no held-out sample {index}")))
    }
}

/// The number of a sample.
fn joined(halves: &[u32]) -> u64 {
    halves.iter().rev().fold(0, |number, half| number << 32 | u64::from(*half))
}

/// The layout of tensors with these names and shapes. Their values come from the script.
pub fn layout(tensors: Vec<(String, Vec<usize>)>) -> Layout {
    let mut layout = Layout::new();
    for (name, shape) in tensors {
        layout.push(name, &shape, Init::Constant(0.0));
    }
    layout
}

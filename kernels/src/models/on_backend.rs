//! A model on a backend, as a worker sees it.

use std::ops::Range;

use tracing::trace_span;

use super::{BatchShape, Model, ModelConfigError, ModelPlan, Sequences};
use crate::backend::{Arena, Backend, Cpu, DeviceError, Fetched, Indices, Sizes, View};
use crate::compute::{
    Batch, Compute, ComputeError, ComputeReport, Evaluation, GradientSink, Pass, STAGES,
};
use crate::device::DeviceInfo;
use crate::layers::{CrossEntropy, MemoryPlan};
use crate::layout::Layout;

/// A model `M` with its memory on a backend.
///
/// The loss is the mean over the targets of a batch, nats.
pub struct OnBackend<M> {
    model: M,
    device: Box<dyn Backend>,
    plan: MemoryPlan,
    tokens: Indices,
    targets: Indices,
    loss: CrossEntropy,
    info: Option<DeviceInfo>,
}

impl<M: Model> OnBackend<M> {
    /// The model's layout and sizes on the CPU. It does not allocate that memory.
    pub fn plan(config: M::Config) -> Result<ModelPlan, ModelConfigError> {
        let (_, plan, ..) = Self::planned(config)?;
        let sizes = plan.sizes();
        let device_bytes = Cpu::bytes_of(sizes);
        Ok(ModelPlan { layout: plan.layout().clone(), sizes: Some(sizes), device_bytes })
    }

    /// Plans the model and makes a device with the memory that it needs. All parameters are zero
    /// until they are loaded.
    pub fn new<B: Backend + 'static>(
        config: M::Config,
        open: impl FnOnce(Sizes) -> B,
    ) -> Result<Self, ModelConfigError> {
        Self::open(config, |sizes| Ok(open(sizes)))
    }

    /// As [`OnBackend::new`], with a device that may be missing, or lack the memory.
    pub fn open<B: Backend + 'static>(
        config: M::Config,
        open: impl FnOnce(Sizes) -> Result<B, DeviceError>,
    ) -> Result<Self, ModelConfigError> {
        Self::on(config, |sizes| {
            let device: Box<dyn Backend> = Box::new(open(sizes)?);
            Ok((device, None))
        })
    }

    /// As [`OnBackend::open`], with a device that its provider describes.
    pub(crate) fn on(
        config: M::Config,
        open: impl FnOnce(Sizes) -> Result<(Box<dyn Backend>, Option<DeviceInfo>), DeviceError>,
    ) -> Result<Self, ModelConfigError> {
        let (model, plan, [tokens, targets], loss) = Self::planned(config)?;
        let (device, info) = open(plan.sizes())?;
        Ok(Self { model, device, plan, tokens, targets, loss, info })
    }

    /// The model, its plan, the places of tokens and targets, and the loss.
    fn planned(
        config: M::Config,
    ) -> Result<(M, MemoryPlan, [Indices; 2], CrossEntropy), ModelConfigError> {
        let mut plan = MemoryPlan::default();
        let model = M::new(&mut plan, config)?;
        let shape = model.shape();
        let tokens = plan.indices(shape.rows * shape.context);
        let targets = plan.indices(shape.rows * shape.targets);
        let loss = CrossEntropy::new(&mut plan, shape.rows * shape.targets);
        Ok((model, plan, [tokens, targets], loss))
    }

    /// Copies tokens and targets to the device.
    fn upload(&mut self, batch: &Batch) -> Result<Sequences, ComputeError> {
        let shape = self.model.shape();
        shape.check(batch)?;
        self.device.write_indices(self.targets.first(batch.targets.len()), &batch.targets);
        Ok(self.upload_tokens(&batch.tokens, shape.context))
    }

    fn upload_tokens(&mut self, tokens: &[u32], length: usize) -> Sequences {
        let on_device = self.tokens.first(tokens.len());
        self.device.write_indices(on_device, tokens);
        Sequences { tokens: on_device, length }
    }

    /// Computes the losses and returns them. The logits become their gradient, in place.
    fn loss(&mut self, logits: View, scale: f64) -> View {
        let targets = self.targets.first(logits.rows());
        self.loss.forward_backward(&mut *self.device, logits, targets, scale / targets.len as f64)
    }

    fn mean(&mut self, losses: View) -> Result<f64, ComputeError> {
        Ok(self.device.total(losses)? / losses.rows() as f64)
    }

    fn zero_gradients(&mut self) {
        let all = 0..self.plan.layout().count();
        self.device.zero(View::row(Arena::Gradients, all));
    }
}

impl<M: Model> Compute for OnBackend<M> {
    fn layout(&self) -> &Layout {
        self.plan.layout()
    }

    fn load(&mut self, offset: usize, values: &[f32]) {
        write_parameters(&mut *self.device, offset, values);
    }

    fn gradient(
        &mut self,
        batch: &Batch,
        pass: Pass,
        sink: &mut dyn GradientSink,
    ) -> Result<f64, ComputeError> {
        let input = self.upload(batch)?;
        if pass.first {
            self.zero_gradients();
        }
        let mut await_parameters = |device: &mut dyn Backend, range: Range<usize>| {
            sink.await_parameters(range, &mut |offset, values| {
                write_parameters(device, offset, values)
            });
        };
        let forward = trace_span!(target: STAGES, "forward").entered();
        let logits = self.model.forward(&mut *self.device, input, &mut await_parameters);
        drop(forward);
        let _backward = trace_span!(target: STAGES, "backward").entered();
        let losses = self.loss(logits, f64::from(pass.scale));
        let mut publish_gradient = |device: &mut dyn Backend, range: Range<usize>| {
            if pass.last {
                device.fetch(range);
                // A failed device stays failed, and reports that below.
                let _ = announce(device, sink, false);
            }
        };
        self.model.backward(&mut *self.device, input, logits, &mut publish_gradient);
        announce(&mut *self.device, sink, true)?;
        self.mean(losses)
    }

    fn evaluate(&mut self, batch: &Batch) -> Result<Evaluation, ComputeError> {
        let input = self.upload(batch)?;
        let logits = self.model.forward(&mut *self.device, input, &mut |_, _| {});
        let losses = self.loss(logits, 0.0);
        Ok(Evaluation { loss: self.mean(losses)?, metric: None })
    }

    /// `None` without tokens to go on from, for tokens outside the vocabulary, and after a failure
    /// of the device.
    fn next_logits(&mut self, tokens: &[u32]) -> Option<Vec<f32>> {
        let vocabulary = self.model.shape().vocabulary;
        if tokens.is_empty() || tokens.iter().any(|token| *token as usize >= vocabulary) {
            return None;
        }
        let window = self.model.window(tokens);
        let input = self.upload_tokens(&window, window.len());
        let logits = self.model.forward(&mut *self.device, input, &mut |_, _| {});
        let logits = self.device.read_back(logits).ok()?;
        Some(logits[logits.len() - vocabulary..].to_vec())
    }

    /// Includes the parameters, the tokens and all that the backend keeps beside them.
    fn device_bytes(&self) -> usize {
        self.device.bytes()
    }

    fn report(&self) -> ComputeReport {
        ComputeReport {
            device: self.info.clone(),
            sizes: Some(self.plan.sizes()),
            flops_per_sample: Some(self.model.flops_per_sample()),
            processor: None,
        }
    }
}

/// Announces the parts of the gradient that have come. With `wait`, all requested parts.
fn announce(
    device: &mut dyn Backend,
    sink: &mut dyn GradientSink,
    wait: bool,
) -> Result<(), DeviceError> {
    while let Some(Fetched { range, gradient }) = device.fetched(wait)? {
        sink.publish_gradient(range, &gradient);
    }
    Ok(())
}

fn write_parameters(device: &mut dyn Backend, offset: usize, values: &[f32]) {
    device.write(View::row(Arena::Parameters, offset..offset + values.len()), values);
}

impl BatchShape {
    fn check(&self, batch: &Batch) -> Result<(), ComputeError> {
        let Self { rows, context, targets, vocabulary } = *self;
        let error = |text: String| Err(ComputeError::Batch(text));
        if batch.rows == 0 || batch.rows > rows {
            return error(format!("{} rows where 1 to {rows} fit", batch.rows));
        }
        if !batch.features.is_empty() {
            return error("it has real inputs, but the model takes tokens".into());
        }
        let parts = [("tokens", &batch.tokens, context), ("targets", &batch.targets, targets)];
        for (name, values, per_row) in parts {
            let (found, wanted) = (values.len(), batch.rows * per_row);
            if found != wanted {
                return error(format!("{found} {name} where {wanted} belong"));
            }
            if let Some(value) = values.iter().find(|value| **value as usize >= vocabulary) {
                return error(format!("{value} among the {name} of a vocabulary of {vocabulary}"));
            }
        }
        Ok(())
    }
}

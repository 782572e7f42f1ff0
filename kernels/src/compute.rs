//! The seam between a worker and the code that computes gradients.
//!
//! A worker hands a [`Compute`] the micro-batches of its data shards and a [`GradientSink`].
//! Parameters come from it, and gradients go to it. The worker knows nothing else about models or
//! devices. A [`Compute`] knows no ranks or networks. It may know where in the run a micro-batch
//! stands, so that its random numbers depend on nothing else.

use std::ops::Range;
use std::path::PathBuf;

use crate::backend::{DeviceError, Sizes};
use crate::device::DeviceInfo;
use crate::layout::Layout;

/// The target of the `tracing` spans `forward` and `backward`, and of the spans that a worker makes
/// for the other stages of a step. A model of your own may have such spans, too.
pub const STAGES: &str = "everstep::stage";

/// A micro-batch: `rows` samples, each appended by a data set's `fill`.
///
/// Every row of one run has the same number of `tokens`, `targets` and `features`. The data set and
/// the model agree on which of the three to use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// The number of samples.
    pub rows: usize,
    /// Integer inputs, row after row (`rows * context` for text).
    pub tokens: Vec<u32>,
    /// Integer targets, row after row: the classes or next tokens.
    pub targets: Vec<u32>,
    /// Real inputs, row after row.
    pub features: Vec<f32>,
}

impl Batch {
    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.rows = 0;
        self.tokens.clear();
        self.targets.clear();
        self.features.clear();
    }
}

/// Which micro-batch of a data shard a pass computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pass {
    /// The first micro-batch starts from a zero gradient. Later ones add to it.
    pub first: bool,
    /// After the last micro-batch the gradient is final: its ranges are announced.
    pub last: bool,
    /// The factor for the gradient of the micro-batch's *mean* loss.
    pub scale: f32,
    /// Where the micro-batch stands in the run.
    pub place: PassPlace,
}

impl Pass {
    /// The pass of the micro-batch at `place`, in a data shard of `micro_batches`.
    pub fn new(place: PassPlace, micro_batches: u32, scale: f32) -> Self {
        let number = place.micro_batch;
        Self { first: number == 0, last: number + 1 == micro_batches, scale, place }
    }
}

/// The place of a micro-batch in its run, the same on whichever worker computes it. It keys the
/// random numbers of a model that draws any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassPlace {
    /// The step, from 1.
    pub step: u64,
    /// The data shard, from 0.
    pub data_shard: u32,
    /// The micro-batch of the data shard, from 0.
    pub micro_batch: u32,
}

impl PassPlace {
    /// The first micro-batch of a run.
    pub const FIRST: Self = Self { step: 1, data_shard: 0, micro_batch: 0 };
}

/// The source of the parameters of a pass.
pub trait ParameterSource {
    /// Returns once every parameter in `range` is of the version that this pass computes with.
    /// Passes all parameters that arrived since the last call to `write(offset, values)`.
    fn await_parameters(&mut self, range: Range<usize>, write: &mut dyn FnMut(usize, &[f32]));
}

/// The receiver of the gradients of a pass. It is the source of its parameters, too: a pass may
/// read the parameters of one layer while the gradients of another layer leave.
pub trait GradientSink: ParameterSource {
    /// The gradient in `range` is final. Ranges come in any order, without overlap, and cover the
    /// whole vector by the end of a last pass.
    fn publish_gradient(&mut self, range: Range<usize>, gradient: &[f32]);

    /// The micro-batch of this pass has this weight in the mean over its step, finite and at least
    /// 0. Without a call it is 1. The model multiplies loss and gradient by the weight, and the
    /// owners divide by the mean weight of the step, which is known only after its last pass.
    fn publish_weight(&mut self, _weight: f64) {}

    /// The micro-batch of this pass has this value of a scalar. The step's line has the mean, in
    /// which each micro-batch counts by its weight. A name has at most 32 letters, digits and `_`,
    /// `-`, `.` and `/`, and a step has at most 16 of them: others do not count.
    fn publish_scalar(&mut self, _name: &str, _value: f64) {}
}

/// The sink of a single process: all parameters are there, and it collects the gradients.
#[derive(Debug, Default)]
pub struct GradientCollector {
    /// The gradient, filled range by range.
    pub gradient: Vec<f32>,
}

impl ParameterSource for GradientCollector {
    fn await_parameters(&mut self, _range: Range<usize>, _write: &mut dyn FnMut(usize, &[f32])) {}
}

impl GradientSink for GradientCollector {
    fn publish_gradient(&mut self, range: Range<usize>, gradient: &[f32]) {
        if self.gradient.len() < range.end {
            self.gradient.resize(range.end, 0.0);
        }
        self.gradient[range].copy_from_slice(gradient);
    }
}

/// The result of a model on a batch that it was not trained on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// Mean loss over the batch, nats.
    pub loss: f64,
    /// Mean of the model's own metric over the batch (accuracy, say), if it has one.
    pub metric: Option<f64>,
}

/// A device could not compute.
#[derive(Debug, thiserror::Error)]
pub enum ComputeError {
    /// The batch does not have the shape that the model was built for.
    #[error("the batch does not fit the model: {0}")]
    Batch(String),
    /// The device cannot go on, for this reason of its driver.
    #[error("the device failed: {0}")]
    Device(String),
    /// The model's own program failed, in its own words. It would fail again on every worker.
    #[error("{0}")]
    Program(String),
}

impl From<DeviceError> for ComputeError {
    fn from(error: DeviceError) -> Self {
        Self::Device(error.to_string())
    }
}

/// A model on a device: parameters in, loss and gradient out.
///
/// The same parameters and batch must give the same bits on every call and in every process on one
/// kind of machine. Everstep's equality of runs rests on it. A pass may have any number of rows up
/// to the micro-batch that the model was built for.
pub trait Compute: Send {
    /// The flat parameter vector.
    fn layout(&self) -> &Layout;

    /// Overwrites the computing parameters from `offset` on.
    fn load(&mut self, offset: usize, values: &[f32]);

    /// Forward and backward of one micro-batch. Returns its mean loss, nats, times its weight, if
    /// it has one ([`GradientSink::publish_weight`]). Calls
    /// [`ParameterSource::await_parameters`] before it reads a parameter, and on a last pass
    /// [`GradientSink::publish_gradient`] as gradient ranges become final.
    fn gradient(
        &mut self,
        batch: &Batch,
        pass: Pass,
        sink: &mut dyn GradientSink,
    ) -> Result<f64, ComputeError>;

    /// Loss and metric of a batch, forward only, with the parameters as they are.
    fn evaluate(&mut self, batch: &Batch) -> Result<Evaluation, ComputeError>;

    /// The logits that follow `tokens`, for models that generate text.
    fn next_logits(&mut self, _tokens: &[u32]) -> Option<Vec<f32>> {
        None
    }

    /// The bytes that the device holds for parameters, gradient and activations: a term of the
    /// memory formula.
    fn device_bytes(&self) -> usize;

    /// The file on this machine that has the initial weights, for a model that brings its own. The
    /// run then states their digest alone. `None`: the run says where they are, if anywhere.
    fn initial_weights(&self) -> Option<PathBuf> {
        None
    }

    /// What is known of the model and its device, for reports. Training does not depend on it.
    fn report(&self) -> ComputeReport {
        ComputeReport::default()
    }
}

/// What a [`Compute`] tells of itself. Each part may be unknown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ComputeReport {
    /// The device that it computes on. `None` for the CPU.
    pub device: Option<DeviceInfo>,
    /// The kind of CPU and the set of instructions in words, if bits depend on them. `None`: all
    /// CPUs have the same bits.
    pub processor: Option<String>,
    /// The memory that the model has planned, on any [`Backend`](crate::backend::Backend). `None`
    /// if it is not for a backend.
    pub sizes: Option<Sizes>,
    /// The floating-point operations that training on one sample takes at least, forward and
    /// backward, for the report's model FLOPs utilization.
    pub flops_per_sample: Option<u64>,
}

/// A model written with plain slices, as a user's own model usually is.
///
/// [`OnHost`] makes it a [`Compute`].
pub trait HostModel: Send {
    /// Names, shapes and initial values of the parameters.
    fn layout(&self) -> Layout;

    /// Adds the gradient of the batch's mean loss, times `scale`, to `gradient`. Returns the mean
    /// loss, nats.
    fn gradient(
        &mut self,
        parameters: &[f32],
        batch: &Batch,
        scale: f32,
        gradient: &mut [f32],
    ) -> f64;

    /// Loss and metric of a batch.
    fn evaluate(&mut self, parameters: &[f32], batch: &Batch) -> Evaluation;
}

/// A [`HostModel`] as a [`Compute`]: it waits for all parameters first and announces one range.
pub struct OnHost<M> {
    model: M,
    layout: Layout,
    parameters: Vec<f32>,
    gradient: Vec<f32>,
}

impl<M: HostModel> OnHost<M> {
    /// Allocates parameters and gradient for `model`.
    pub fn new(model: M) -> Self {
        let layout = model.layout();
        let count = layout.count();
        Self { model, layout, parameters: vec![0.0; count], gradient: vec![0.0; count] }
    }
}

impl<M: HostModel> Compute for OnHost<M> {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn load(&mut self, offset: usize, values: &[f32]) {
        self.parameters[offset..offset + values.len()].copy_from_slice(values);
    }

    fn gradient(
        &mut self,
        batch: &Batch,
        pass: Pass,
        sink: &mut dyn GradientSink,
    ) -> Result<f64, ComputeError> {
        let parameters = &mut self.parameters;
        sink.await_parameters(0..self.layout.count(), &mut |offset, values: &[f32]| {
            parameters[offset..offset + values.len()].copy_from_slice(values);
        });
        if pass.first {
            self.gradient.fill(0.0);
        }
        let loss = self.model.gradient(parameters, batch, pass.scale, &mut self.gradient);
        if pass.last {
            sink.publish_gradient(0..self.layout.count(), &self.gradient);
        }
        Ok(loss)
    }

    fn evaluate(&mut self, batch: &Batch) -> Result<Evaluation, ComputeError> {
        Ok(self.model.evaluate(&self.parameters, batch))
    }

    fn device_bytes(&self) -> usize {
        4 * (self.parameters.len() + self.gradient.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_shard_s_passes_have_one_first_and_one_last_and_their_places() {
        let place = |micro_batch| PassPlace { step: 7, data_shard: 3, micro_batch };
        let passes = [0, 1, 2].map(|number| Pass::new(place(number), 3, 0.5));
        assert_eq!(
            passes.map(|pass| (pass.first, pass.last)),
            [(true, false), (false, false), (false, true)]
        );
        let places =
            passes.map(|pass| (pass.place.step, pass.place.data_shard, pass.place.micro_batch));
        assert_eq!(places, [(7, 3, 0), (7, 3, 1), (7, 3, 2)]);
        let only = Pass::new(PassPlace::FIRST, 1, 1.0);
        assert_eq!((only.first, only.last, only.place), (true, true, PassPlace::FIRST));
    }
}

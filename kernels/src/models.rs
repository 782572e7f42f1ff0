//! Models: GPT and MLP, written once over the backend, and [`OnBackend`], which makes any of them a
//! [`Compute`].
//!
//! A model plans its memory once, then runs forward and backward over the part of it that a batch
//! fills. It announces which parameters it is about to read and which gradients are final. It does
//! not know the effect of that.

use std::ops::Range;

use crate::backend::{Backend, Cpu, DeviceError, Indices, Sizes, View};
use crate::compute::Compute;
use crate::layers::MemoryPlan;
use crate::layout::Layout;

mod gpt;
mod mlp;
mod on_backend;

pub use gpt::{Gpt, GptConfig};
pub use mlp::{Mlp, MlpConfig};
pub use on_backend::OnBackend;

/// What a model calls with a range of the flat parameter vector, between two layers.
pub type LayerHook<'a> = dyn FnMut(&mut dyn Backend, Range<usize>) + 'a;

/// A model that turns tokens into logits.
pub trait Model: Send + Sized {
    /// The sizes of the model.
    type Config;

    /// Plans parameters and activations.
    fn new(plan: &mut MemoryPlan, config: Self::Config) -> Result<Self, ModelConfigError>;

    /// The shape of a batch.
    fn shape(&self) -> BatchShape;

    /// Computes logits, one row for each target. Calls `await_parameters` before it reads
    /// parameters that it has not requested yet.
    fn forward(
        &self,
        device: &mut dyn Backend,
        input: Sequences,
        await_parameters: &mut LayerHook<'_>,
    ) -> View;

    /// The backward pass to the forward pass just done. It adds to all gradients. It calls
    /// `publish_gradient` as soon as nothing more will be added to a range, last layers first. The
    /// ranges cover the parameters exactly.
    fn backward(
        &self,
        device: &mut dyn Backend,
        input: Sequences,
        d_logits: View,
        publish_gradient: &mut LayerHook<'_>,
    );

    /// The floating-point operations that training on one sample takes at least, forward and
    /// backward: 6 for each parameter and product that it takes part in (a multiplication and an
    /// addition, thrice), and those of attention (Chowdhery et al., "PaLM", appendix B).
    fn flops_per_sample(&self) -> u64;

    /// The one sequence from which the last row of logits predicts what follows `tokens`.
    fn window(&self, tokens: &[u32]) -> Vec<u32>;
}

/// The tokens of a batch on the device: sequences one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Sequences {
    /// The tokens of all sequences.
    pub tokens: Indices,
    /// The tokens of one sequence.
    pub length: usize,
}

/// The memory that a model would take, known without building it.
#[derive(Clone, Debug)]
pub struct ModelPlan {
    /// The flat parameter vector.
    pub layout: Layout,
    /// The sizes of the arenas, if the model has any.
    pub sizes: Option<Sizes>,
    /// Bytes for parameters, gradient and activations on the CPU, with one thread.
    pub device_bytes: usize,
}

impl ModelPlan {
    /// Bytes for parameters, gradient and activations on the CPU, with so many threads.
    pub fn bytes_on(&self, threads: usize) -> usize {
        let of_thread = self.sizes.map_or(0, Cpu::bytes_of_thread);
        self.device_bytes + (threads - 1) * of_thread
    }

    /// The plan of a model that is already built, and computes with one thread.
    pub fn of(compute: &dyn Compute) -> Self {
        let (sizes, device_bytes) = (compute.report().sizes, compute.device_bytes());
        Self { layout: compute.layout().clone(), sizes, device_bytes }
    }
}

/// The shape of the batches that a model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchShape {
    /// The most rows of a batch.
    pub rows: usize,
    /// The tokens of a row.
    pub context: usize,
    /// The targets of a row.
    pub targets: usize,
    /// Tokens and targets are smaller than this.
    pub vocabulary: usize,
}

/// A model cannot be built as configured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelConfigError {
    /// A count that must be at least 1 is zero.
    #[error("a model needs at least one of: {0}")]
    Zero(&'static str),
    /// Heads share the width equally.
    #[error("a width of {width} cannot be divided among {heads} heads")]
    Heads {
        /// The width of the model.
        width: usize,
        /// The number of heads.
        heads: usize,
    },
    /// The device cannot hold the model.
    #[error("the model has no device: {0}")]
    Device(#[from] DeviceError),
}

/// The first of several named counts that is zero is an error.
fn all_positive(counts: &[(&'static str, usize)]) -> Result<(), ModelConfigError> {
    let zero = counts.iter().find(|(_, count)| *count == 0);
    zero.map_or(Ok(()), |(name, _)| Err(ModelConfigError::Zero(name)))
}

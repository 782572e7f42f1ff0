//! A model that computes nothing: its gradient is a fixed vector, so a step is only the exchange.

use std::sync::Arc;

use everstep_kernels::compute::{Batch, Compute, ComputeError, Evaluation, GradientSink, Pass};
use everstep_kernels::layout::{Init, Layout};
use everstep_transport::protocol::RunSpec;
use everstep_worker::data::{DataError, Dataset};
use everstep_worker::registry::Registry;

/// The name under which every program knows the model and its data. Users do not see it.
pub(super) const NAME: &str = ".bench-vector";
/// Elements for each unit of the specification's `model.context`.
pub(super) const UNIT: usize = 250_000;

/// Adds the model and its data set, so that the daemons know them.
pub(crate) fn register(registry: Registry) -> Registry {
    registry
        .model(NAME, |run, _| Ok(Box::new(Vector::new(run))))
        .dataset(NAME, |_| Ok(Arc::new(Nothing)))
}

struct Vector {
    layout: Layout,
    gradient: Vec<f32>,
}

impl Vector {
    fn new(run: &RunSpec) -> Self {
        let mut layout = Layout::new();
        layout.push("vector", &[run.model.context as usize * UNIT], Init::Constant(0.0));
        let gradient = (0..layout.count()).map(|index| (index % 1_000) as f32 - 500.0).collect();
        Self { layout, gradient }
    }
}

impl Compute for Vector {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The values do not matter. Only their arrival does.
    fn load(&mut self, _offset: usize, _values: &[f32]) {}

    fn gradient(
        &mut self,
        _batch: &Batch,
        pass: Pass,
        exchange: &mut dyn GradientSink,
    ) -> Result<f64, ComputeError> {
        let all = 0..self.layout.count();
        exchange.await_parameters(all.clone(), &mut |_, _| {});
        if pass.last {
            exchange.publish_gradient(all, &self.gradient);
        }
        Ok(0.0)
    }

    fn evaluate(&mut self, _batch: &Batch) -> Result<Evaluation, ComputeError> {
        Ok(Evaluation::default())
    }

    fn device_bytes(&self) -> usize {
        4 * self.gradient.len()
    }
}

struct Nothing;

impl Dataset for Nothing {
    fn len(&self) -> u64 {
        1 << 32
    }

    fn fingerprint(&self) -> [u8; 32] {
        [0; 32]
    }

    fn fill(&self, _index: u64, batch: &mut Batch) -> Result<(), DataError> {
        batch.rows += 1;
        Ok(())
    }

    fn validation_len(&self) -> u64 {
        0
    }

    fn fill_validation(&self, _index: u64, _batch: &mut Batch) -> Result<(), DataError> {
        Ok(())
    }
}

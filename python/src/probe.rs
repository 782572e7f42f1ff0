//! Whether a script's model repeats: the first micro-batch is computed several times.
//!
//! A model with a hidden state, or an operation whose bits depend on chance, gives other gradients
//! each time. Then no two workers would agree, and no run could be repeated. So such a model is
//! refused, and a last pass finds out why.

use std::ops::Range;

use everstep_kernels::compute::{ComputeError, GradientCollector, GradientSink, ParameterSource};

use crate::engine::digest_of;
use crate::memory::TensorMemory;
use crate::rendezvous::{Rendezvous, Turn};
use crate::watchdog::Watchdog;

/// How often the first micro-batch is computed.
pub const PASSES: usize = 3;

/// Computes a turn several times, and returns the loss. The first pass awaits the parameters of
/// `sink`, the others have the same, and the gradient of the last one goes to `sink`.
///
/// # Errors
/// If the results differ: the words are those of the script's thread, which has looked for the
/// cause.
pub fn probe(
    rendezvous: &Rendezvous,
    turn: &Turn,
    flat: &mut TensorMemory,
    watchdog: &mut Watchdog,
    sink: &mut dyn GradientSink,
) -> Result<f64, ComputeError> {
    let mut first = None;
    let mut loss = 0.0;
    for pass in 1..=PASSES {
        let collected = GradientCollector::default();
        let mut copy = CopyOfGradient { collected, pass, sink: &mut *sink };
        loss = rendezvous.compute(turn.clone(), flat, &mut copy, watchdog)?;
        let found = (loss.to_bits(), digest_of(&copy.collected.gradient));
        if *first.get_or_insert(found) != found {
            rendezvous.diagnose();
            rendezvous.compute(turn.clone(), flat, &mut GradientCollector::default(), watchdog)?;
            let words = "this model does not repeat here: equal passes have unequal gradients";
            return Err(ComputeError::Program(words.into()));
        }
    }
    Ok(loss)
}

/// Collects the gradient of a pass.
struct CopyOfGradient<'a, 'b> {
    collected: GradientCollector,
    /// The number of the pass, from 1.
    pass: usize,
    sink: &'a mut (dyn GradientSink + 'b),
}

impl ParameterSource for CopyOfGradient<'_, '_> {
    fn await_parameters(&mut self, range: Range<usize>, write: &mut dyn FnMut(usize, &[f32])) {
        if self.pass == 1 {
            self.sink.await_parameters(range, write);
        }
    }
}

impl GradientSink for CopyOfGradient<'_, '_> {
    fn publish_gradient(&mut self, range: Range<usize>, gradient: &[f32]) {
        self.collected.publish_gradient(range.clone(), gradient);
        if self.pass == PASSES {
            self.sink.publish_gradient(range, gradient);
        }
    }

    fn publish_weight(&mut self, weight: f64) {
        self.sink.publish_weight(weight);
    }

    fn publish_scalar(&mut self, name: &str, value: f64) {
        self.sink.publish_scalar(name, value);
    }
}

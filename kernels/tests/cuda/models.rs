//! Whole models on the emulated device: gradients against the reference, and the same bits again.

use everstep_kernels::backend::cuda::{AttentionKernels, Cuda};
use everstep_kernels::backend::{Backend, Reference, Sizes};
use everstep_kernels::compute::{Batch, Compute, GradientCollector, Pass, PassPlace};
use everstep_kernels::models::{Gpt, GptConfig, OnBackend};
use everstep_kernels::precision::Precision;
use everstep_kernels::random::Philox;

use super::emulated::Emulated;
use crate::operations::check::{Subject, distance};

const WHOLE: Pass = Pass { first: true, last: true, scale: 1.0, place: PassPlace::FIRST };

/// Two sequences, longer than a tile of attention.
const GPT: GptConfig = GptConfig {
    vocabulary: 23,
    layers: 2,
    heads: 2,
    width: 32,
    context: 70,
    micro_batch: 2,
    recompute: false,
};

/// Large enough that every part of the model matters, and rounded as the device rounds.
fn load(model: &mut dyn Compute, round: fn(f32) -> f32) {
    let philox = Philox::new(2, 0, 0);
    let count = model.layout().count() as u64;
    let values: Vec<f32> = (0..count).map(|index| round(0.3 * philox.normal(index))).collect();
    model.load(0, &values);
}

fn batch() -> Batch {
    let draw = |stream: u64| {
        let philox = Philox::new(3, 0, stream);
        let count = (GPT.micro_batch * GPT.context) as u64;
        (0..count).map(|index| philox.u32(index) % GPT.vocabulary as u32).collect()
    };
    Batch { rows: GPT.micro_batch, tokens: draw(0), targets: draw(1), features: Vec::new() }
}

fn gpt<B: Backend + 'static>(
    open: impl FnOnce(Sizes) -> B,
    round: fn(f32) -> f32,
) -> OnBackend<Gpt> {
    let mut model = OnBackend::<Gpt>::new(GPT, open).expect("a valid configuration");
    load(&mut model, round);
    model
}

fn gradient(model: &mut dyn Compute, pass: Pass) -> (f64, Vec<f32>) {
    let mut exchange = GradientCollector::default();
    let loss = model.gradient(&batch(), pass, &mut exchange).expect("a valid batch");
    (loss, exchange.gradient)
}

/// To the tolerance of a single operation: roundings on the way through a model do not add up much.
fn check_gradient(precision: Precision) {
    let subject = crate::emulated(precision, AttentionKernels::Tensor);
    let Some(Subject { round, tolerance, .. }) = subject else { return };
    let open = |sizes| Cuda::new(Emulated::new(precision).unwrap(), sizes).unwrap();
    let mut model = gpt(open, round);
    let (loss, found) = gradient(&mut model, WHOLE);
    let (expected_loss, expected) = gradient(&mut gpt(Reference::new, round), WHOLE);
    let difference = distance(&found, &expected);
    assert!(difference < tolerance, "gradients differ by {difference:e}");
    let error = (loss - expected_loss).abs() / expected_loss;
    assert!(error < tolerance, "losses differ by {error:e}");

    // The same bits in the same process again, and from a device that has computed nothing yet.
    for mut again in [model, gpt(open, round)] {
        assert!(gradient(&mut again, WHOLE) == (loss, found.clone()), "other bits");
    }
}

#[test]
fn the_gradient_of_a_gpt_in_f32() {
    check_gradient(Precision::F32);
}

#[test]
fn the_gradient_of_a_gpt_in_bf16() {
    check_gradient(Precision::Bf16);
}

#[test]
fn the_gradient_of_a_gpt_in_fp16() {
    check_gradient(Precision::Fp16);
}

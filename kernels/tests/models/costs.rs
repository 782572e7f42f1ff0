//! The costs of whole models: memory and operations.

use everstep_kernels::backend::{Cpu, Sizes};
use everstep_kernels::compute::Compute;
use everstep_kernels::models::{Gpt, GptConfig, Mlp, OnBackend};

use crate::{BYTE_GPT, TINY_GPT, TINY_MLP, gpt, initialised};

#[test]
fn a_gpt_that_computes_its_blocks_again_keeps_the_activations_of_one() {
    let sizes = |layers: usize, recompute: bool| {
        let (mut sizes, config) = (Sizes::default(), GptConfig { layers, recompute, ..BYTE_GPT });
        let open = |asked: Sizes| {
            sizes = asked;
            Cpu::new(asked)
        };
        OnBackend::<Gpt>::new(config, open).expect("a valid configuration");
        sizes
    };
    let GptConfig { heads, width, context, micro_batch, .. } = BYTE_GPT;
    let rows = micro_batch * context;
    // For a block: two norms, attention and its projection, and parts three or four times as wide.
    let (activations, statistics) = (15 * rows * width, rows * (2 + heads + 2));
    for layers in [1, 2, 7] {
        let (kept, again) = (sizes(layers, false), sizes(layers, true));
        let saved = Sizes {
            activations: again.activations + (layers - 1) * activations,
            statistics: again.statistics + (layers - 1) * statistics,
            ..again
        };
        assert_eq!(saved, kept, "{layers} blocks");
    }
}

#[test]
fn device_bytes_count_every_arena() {
    let model = gpt(TINY_GPT);
    let GptConfig { vocabulary, layers, heads, width, context, micro_batch, .. } = TINY_GPT;
    let rows = micro_batch * context;
    let block =
        rows * (2 * (width + 2) + 3 * width + width + heads + width + 4 * width * 2 + width);
    let ends = rows * (width + width + 2 + vocabulary + 1);
    let gradients = rows * (6 * width + heads);
    let elements = 2 * model.layout().count() + layers * block + ends + gradients;
    let scores = 2 * context * context;
    let named = 4 * (elements + 2 * rows + scores);
    // Each matrix begins at a cache line, and fast products take room for their panels.
    let matrices = 1 + layers * 10 + 4 + 4;
    let most = named + 64 * (matrices + 4) + (480 << 10) + (3072 << 10);
    assert!((named..=most).contains(&model.device_bytes()), "{}", model.device_bytes());
}

/// Parameters that are factors of a product: matrices, except those for row look-ups only.
fn in_products(model: &dyn Compute, looked_up: &str) -> u64 {
    let tensors = model.layout().tensors().iter();
    let factors = tensors.filter(|tensor| tensor.shape.len() == 2 && tensor.name != looked_up);
    factors.map(|tensor| tensor.count() as u64).sum()
}

#[test]
fn a_sample_takes_six_operations_for_each_weight_of_a_product_and_those_of_attention() {
    let gpt = gpt(BYTE_GPT);
    let GptConfig { layers, width, context, .. } = BYTE_GPT;
    let (layers, width, context) = (layers as u64, width as u64, context as u64);
    // The head is the embedding: a factor, though the tokens' rows are taken from it, too.
    let per_token = 6 * in_products(&gpt, "wpe.weight") + 12 * layers * context * width;
    assert_eq!(gpt.report().flops_per_sample, Some(context * per_token));
    assert_eq!(gpt.report().flops_per_sample, Some(16 * (6 * 32_768 + 12 * 2 * 16 * 32)));

    let mlp = initialised::<Mlp, Cpu>(TINY_MLP, Cpu::new);
    assert_eq!(mlp.report().flops_per_sample, Some(6 * in_products(&mlp, "embedding.weight")));
    assert_eq!(mlp.report().flops_per_sample, Some(6 * (3 * 16 * 7 + 7 * 7 + 7 * 11)));
}

#[test]
fn blocks_that_are_computed_again_do_not_count_twice() {
    let again = gpt(GptConfig { recompute: true, ..BYTE_GPT });
    assert_eq!(again.report().flops_per_sample, gpt(BYTE_GPT).report().flops_per_sample);
}

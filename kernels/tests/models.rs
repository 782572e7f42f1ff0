//! Whole models: gradients against finite differences in f64, and the promises of `Compute`.

use std::ops::Range;

use everstep_kernels::backend::{Arena, Backend, Cpu, Fetched, Reference, Sizes, View};
use everstep_kernels::compute::{
    Batch, Compute, ComputeError, GradientCollector, GradientSink, ParameterSource, Pass, PassPlace,
};
use everstep_kernels::models::{
    Gpt, GptConfig, Mlp, MlpConfig, Model, ModelConfigError, OnBackend,
};
use everstep_kernels::random::Philox;
use everstep_kernels::threads::Threads;

mod models {
    mod costs;
}

const WHOLE: Pass = Pass { first: true, last: true, scale: 1.0, place: PassPlace::FIRST };

const TINY_GPT: GptConfig = GptConfig {
    vocabulary: 11,
    layers: 2,
    heads: 2,
    width: 8,
    context: 5,
    micro_batch: 3,
    recompute: false,
};

const TINY_MLP: MlpConfig =
    MlpConfig { vocabulary: 11, layers: 2, width: 7, context: 3, micro_batch: 4 };

const BYTE_GPT: GptConfig = GptConfig {
    vocabulary: 256,
    layers: 2,
    heads: 2,
    width: 32,
    context: 16,
    micro_batch: 4,
    recompute: false,
};

fn gpt(config: GptConfig) -> OnBackend<Gpt> {
    initialised(config, Cpu::new)
}

/// A model with its initial parameters.
fn initialised<M: Model, B: Backend + 'static>(
    config: M::Config,
    open: impl FnOnce(Sizes) -> B,
) -> OnBackend<M> {
    let mut model = OnBackend::<M>::new(config, open).expect("a valid configuration");
    let parameters = initial_parameters(&model);
    model.load(0, &parameters);
    model
}

fn initial_parameters(model: &dyn Compute) -> Vec<f32> {
    let mut parameters = vec![0.0; model.layout().count()];
    model.layout().init(1, 0..parameters.len(), &mut parameters);
    parameters
}

/// Parameters at which every part of the model matters: no weight or bias is zero, none small.
fn random_parameters(model: &dyn Compute) -> Vec<f32> {
    let philox = Philox::new(2, 0, 0);
    (0..model.layout().count() as u64).map(|index| 0.5 * philox.normal(index)).collect()
}

/// Random tokens, with `targets` of them wanted for each row of `context`.
fn batch(rows: usize, context: usize, targets: usize, vocabulary: u32) -> Batch {
    let draw = |stream: u64, count: usize| {
        let philox = Philox::new(3, 0, stream);
        (0..count as u64).map(|index| philox.u32(index) % vocabulary).collect()
    };
    Batch {
        rows,
        tokens: draw(0, rows * context),
        targets: draw(1, rows * targets),
        features: Vec::new(),
    }
}

fn gpt_batch(config: &GptConfig) -> Batch {
    batch(config.micro_batch, config.context, config.context, config.vocabulary as u32)
}

fn mlp_batch(config: &MlpConfig) -> Batch {
    batch(config.micro_batch, config.context, 1, config.vocabulary as u32)
}

fn gradient_of(model: &mut dyn Compute, batch: &Batch, pass: Pass) -> (f64, Vec<f32>) {
    let mut exchange = GradientCollector::default();
    let loss = model.gradient(batch, pass, &mut exchange).expect("a valid batch");
    (loss, exchange.gradient)
}

fn loss_of(model: &mut dyn Compute, batch: &Batch) -> f64 {
    model.evaluate(batch).expect("a valid batch").loss
}

fn distance(found: &[f32], expected: &[f32]) -> f64 {
    let square = |value: f64| value * value;
    let pairs = found.iter().zip(expected);
    let error: f64 = pairs.map(|(f, e)| square(f64::from(*f) - f64::from(*e))).sum();
    let norm: f64 = expected.iter().map(|e| square(f64::from(*e))).sum();
    (error / norm).sqrt()
}

/// Every operation of these models is large enough to be cut. With more threads than a model has
/// heads or columns of a kind, some are cut into fewer pieces.
#[test]
fn the_bits_do_not_depend_on_the_number_of_threads() {
    let gpt = GptConfig { heads: 5, width: 320, context: 70, micro_batch: 7, ..BYTE_GPT };
    let mlp = MlpConfig { vocabulary: 256, layers: 2, width: 330, context: 3, micro_batch: 450 };
    for recompute in [false, true] {
        let gpt = GptConfig { recompute, ..gpt };
        assert_threads_agree::<Gpt>(gpt, &gpt_batch(&gpt));
    }
    assert_threads_agree::<Mlp>(mlp, &mlp_batch(&mlp));
}

fn assert_threads_agree<M: Model>(config: M::Config, batch: &Batch)
where
    M::Config: Clone,
{
    let on = |threads| {
        let mut model = initialised::<M, _>(config.clone(), move |sizes| {
            Cpu::on_threads(sizes, Threads::new(threads))
        });
        let (loss, gradient) = gradient_of(&mut model, batch, WHOLE);
        let bits: Vec<u32> = gradient.iter().map(|value| value.to_bits()).collect();
        (loss.to_bits(), loss_of(&mut model, batch).to_bits(), bits)
    };
    let alone = on(1);
    for threads in 2..=4 {
        assert!(on(threads) == alone, "{threads} threads");
    }
}

/// Compares the gradient with central differences, one parameter at a time, to 2e-6. The errors are
/// the gradient's rounding to f32 and the third derivative times a sixth of the squared step.
fn check_against_differences(model: &mut dyn Compute, batch: &Batch) {
    let parameters = random_parameters(model);
    model.load(0, &parameters);
    let (loss, gradient) = gradient_of(model, batch, WHOLE);
    assert_eq!(loss, loss_of(model, batch));
    for (index, value) in parameters.iter().enumerate() {
        let (above, below) = (value + 1e-3, value - 1e-3);
        model.load(index, &[above]);
        let loss_above = loss_of(model, batch);
        model.load(index, &[below]);
        let loss_below = loss_of(model, batch);
        model.load(index, &[*value]);
        let slope = (loss_above - loss_below) / (f64::from(above) - f64::from(below));
        let error = (f64::from(gradient[index]) - slope).abs();
        let name = || model.layout().parts(index..index + 1).next().unwrap().0.name.clone();
        assert!(error < 2e-6, "{}: {} is not {slope}", name(), gradient[index]);
    }
}

#[test]
fn the_gradient_of_the_gpt_is_that_of_finite_differences() {
    let mut model = initialised::<Gpt, _>(TINY_GPT, Reference::new);
    check_against_differences(&mut model, &gpt_batch(&TINY_GPT));
}

#[test]
fn the_gradient_of_the_mlp_is_that_of_finite_differences() {
    let mut model = initialised::<Mlp, _>(TINY_MLP, Reference::new);
    check_against_differences(&mut model, &mlp_batch(&TINY_MLP));
}

#[test]
fn the_cpu_agrees_with_the_reference_on_whole_models() {
    let mut cpu = gpt(TINY_GPT);
    let mut reference = initialised::<Gpt, _>(TINY_GPT, Reference::new);
    let parameters = random_parameters(&cpu);
    cpu.load(0, &parameters);
    reference.load(0, &parameters);
    let batch = gpt_batch(&TINY_GPT);
    let (loss, gradient) = gradient_of(&mut cpu, &batch, WHOLE);
    let (expected_loss, expected) = gradient_of(&mut reference, &batch, WHOLE);
    assert!((loss - expected_loss).abs() < 1e-5 * expected_loss);
    assert!(distance(&gradient, &expected) < 1e-5);
}

#[test]
fn an_untrained_gpt_knows_nothing() {
    let loss = loss_of(&mut gpt(BYTE_GPT), &gpt_batch(&BYTE_GPT));
    assert!((loss - 256f64.ln()).abs() < 0.3, "loss {loss}");
}

#[test]
fn a_gpt_has_the_tensors_of_gpt_2() {
    let model = gpt(BYTE_GPT);
    let tensors = model.layout().tensors();
    let shapes: Vec<_> =
        tensors[..15].iter().map(|t| (t.name.as_str(), t.shape.as_slice())).collect();
    let expected: [(&str, &[usize]); 15] = [
        ("wte.weight", &[256, 32]),
        ("wpe.weight", &[16, 32]),
        ("h.0.ln_1.weight", &[32]),
        ("h.0.ln_1.bias", &[32]),
        ("h.0.attn.c_attn.weight", &[32, 96]),
        ("h.0.attn.c_attn.bias", &[96]),
        ("h.0.attn.c_proj.weight", &[32, 32]),
        ("h.0.attn.c_proj.bias", &[32]),
        ("h.0.ln_2.weight", &[32]),
        ("h.0.ln_2.bias", &[32]),
        ("h.0.mlp.c_fc.weight", &[32, 128]),
        ("h.0.mlp.c_fc.bias", &[128]),
        ("h.0.mlp.c_proj.weight", &[128, 32]),
        ("h.0.mlp.c_proj.bias", &[32]),
        ("h.1.ln_1.weight", &[32]),
    ];
    assert_eq!(shapes, expected);
    let last: Vec<_> = tensors[tensors.len() - 2..].iter().map(|t| t.name.as_str()).collect();
    assert_eq!(last, ["ln_f.weight", "ln_f.bias"]);
}

#[test]
fn the_same_pass_gives_the_same_bits() {
    let (mut one, mut other) = (gpt(BYTE_GPT), gpt(BYTE_GPT));
    let batch = gpt_batch(&BYTE_GPT);
    let first = gradient_of(&mut one, &batch, WHOLE);
    // Values that a smaller batch or a shorter sequence left behind do not matter.
    loss_of(&mut one, &Batch { rows: 1, ..gpt_batch(&GptConfig { micro_batch: 1, ..BYTE_GPT }) });
    one.next_logits(&[1, 2, 3]);
    assert_eq!(gradient_of(&mut one, &batch, WHOLE), first);
    assert_eq!(gradient_of(&mut other, &batch, WHOLE), first);
}

#[test]
fn micro_batches_add_up() {
    let mut model = gpt(GptConfig { micro_batch: 2, ..BYTE_GPT });
    let whole = gpt_batch(&BYTE_GPT);
    let half = |range: Range<usize>| Batch {
        rows: 2,
        tokens: whole.tokens[range.clone()].to_vec(),
        targets: whole.targets[range].to_vec(),
        features: Vec::new(),
    };
    let mut exchange = GradientCollector::default();
    let pass = Pass { first: true, last: false, scale: 0.5, place: PassPlace::FIRST };
    model.gradient(&half(0..32), pass, &mut exchange).unwrap();
    assert!(exchange.gradient.is_empty(), "nothing is final before the last pass");
    let pass = Pass { first: false, last: true, scale: 0.5, place: PassPlace::FIRST };
    let (_, accumulated) = gradient_of(&mut model, &half(32..64), pass);
    let (_, at_once) = gradient_of(&mut gpt(BYTE_GPT), &whole, WHOLE);
    assert!(distance(&accumulated, &at_once) < 1e-5);
}

/// Records the requests and announcements of a pass, and delivers exactly the requested ranges.
#[derive(Default)]
struct Recorder {
    parameters: Vec<f32>,
    needed: Vec<Range<usize>>,
    ready: Vec<Range<usize>>,
}

impl ParameterSource for Recorder {
    fn await_parameters(&mut self, range: Range<usize>, write: &mut dyn FnMut(usize, &[f32])) {
        write(range.start, &self.parameters[range.clone()]);
        self.needed.push(range);
    }
}

impl GradientSink for Recorder {
    fn publish_gradient(&mut self, range: Range<usize>, gradient: &[f32]) {
        assert_eq!(range.len(), gradient.len());
        self.ready.push(range);
    }
}

fn check_announcements(mut model: impl Compute, mut empty: impl Compute, batch: &Batch) {
    let parameters = initial_parameters(&model);
    let mut exchange = Recorder { parameters, ..Recorder::default() };
    let loss = empty.gradient(batch, WHOLE, &mut exchange).unwrap();
    assert_eq!(loss, loss_of(&mut model, batch), "parameters were asked for before they were read");
    let count = model.layout().count();
    let mut reversed = exchange.ready.clone();
    reversed.reverse();
    for mut ranges in [exchange.needed, exchange.ready] {
        assert!(ranges.len() > 2, "layer by layer");
        ranges.sort_by_key(|range| range.start);
        let end = ranges.iter().fold(0, |end, range| {
            assert_eq!(range.start, end, "without gaps or overlaps");
            range.end
        });
        assert_eq!(end, count);
    }
    assert!(reversed.is_sorted_by_key(|range| range.start), "the last layer is final first");
}

#[test]
fn ranges_cover_the_vector_exactly_once() {
    let empty = OnBackend::<Gpt>::new(BYTE_GPT, Cpu::new).unwrap();
    check_announcements(gpt(BYTE_GPT), empty, &gpt_batch(&BYTE_GPT));
    let empty = OnBackend::<Mlp>::new(TINY_MLP, Cpu::new).unwrap();
    check_announcements(initialised::<Mlp, _>(TINY_MLP, Cpu::new), empty, &mlp_batch(&TINY_MLP));
}

#[test]
fn on_the_host_a_gradient_is_there_as_soon_as_it_is_asked_for() {
    let sizes = Sizes { parameters: 9, ..Sizes::default() };
    let backends: [Box<dyn Backend>; 2] =
        [Box::new(Cpu::new(sizes)), Box::new(Reference::new(sizes))];
    for mut device in backends {
        let values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
        device.write(View::row(Arena::Gradients, 0..9), &values);
        for range in [5..9, 2..5] {
            device.fetch(range);
        }
        for (wait, range) in [(false, 5..9), (true, 2..5)] {
            let fetched = device.fetched(wait).expect("nothing fails").expect("it is there");
            assert_eq!(fetched, Fetched { range: range.clone(), gradient: values[range].into() });
        }
        assert_eq!(device.fetched(false), Ok(None));
        assert_eq!(device.fetched(true), Ok(None), "nothing is left to wait for");
    }
}

/// Plain gradient descent. Returns the first and the last loss.
fn descend(mut model: impl Compute, batch: &Batch, steps: usize, rate: f32) -> (f64, f64) {
    let mut parameters = initial_parameters(&model);
    let first = loss_of(&mut model, batch);
    for _ in 0..steps {
        let (_, gradient) = gradient_of(&mut model, batch, WHOLE);
        for (parameter, gradient) in parameters.iter_mut().zip(gradient) {
            *parameter -= rate * gradient;
        }
        model.load(0, &parameters);
    }
    (first, loss_of(&mut model, batch))
}

#[test]
fn both_models_learn_a_small_batch_by_heart() {
    let (first, last) = descend(gpt(BYTE_GPT), &gpt_batch(&BYTE_GPT), 300, 0.5);
    assert!(last < 0.2 * first, "gpt: from {first} to {last}");
    let mlp = initialised::<Mlp, _>(TINY_MLP, Cpu::new);
    let (first, last) = descend(mlp, &mlp_batch(&TINY_MLP), 300, 0.1);
    assert!(last < 0.2 * first, "mlp: from {first} to {last}");
}

#[test]
fn next_logits_see_only_what_came_before() {
    let mut model = gpt(BYTE_GPT);
    let tokens: Vec<u32> = gpt_batch(&BYTE_GPT).tokens;
    let short = model.next_logits(&tokens[..3]).unwrap();
    assert_eq!(short.len(), 256);
    assert_ne!(model.next_logits(&tokens[1..3]).unwrap(), short);
    let long = model.next_logits(&tokens[..40]).unwrap();
    assert_eq!(model.next_logits(&tokens[24..40]).unwrap(), long, "the last context tokens count");
    assert_eq!(model.next_logits(&[]), None);
    assert_eq!(model.next_logits(&[256]), None);
}

#[test]
fn next_logits_agree_with_the_loss() {
    let config = GptConfig { micro_batch: 1, ..TINY_GPT };
    let mut model = gpt(config);
    let parameters = random_parameters(&model);
    model.load(0, &parameters);
    let batch = gpt_batch(&config);
    let losses = (0..config.context).map(|position| {
        let logits = model.next_logits(&batch.tokens[..=position]).unwrap();
        let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
        sum.ln() - f64::from(logits[batch.targets[position] as usize])
    });
    let mean = losses.sum::<f64>() / config.context as f64;
    assert!((mean - loss_of(&mut model, &batch)).abs() < 1e-5);
}

#[test]
fn an_mlp_reads_missing_tokens_as_zero() {
    let mut model = initialised::<Mlp, _>(TINY_MLP, Cpu::new);
    assert_eq!(model.next_logits(&[5]), model.next_logits(&[0, 0, 5]));
    assert_eq!(model.next_logits(&[7, 1, 2, 3]), model.next_logits(&[1, 2, 3]));
}

#[test]
fn fewer_rows_than_the_micro_batch_are_evaluated_alone() {
    let whole = gpt_batch(&BYTE_GPT);
    let mut model = gpt(BYTE_GPT);
    let mut sum = 0.0;
    for row in 0..4 {
        let range = row * 16..row * 16 + 16;
        let one = Batch {
            rows: 1,
            tokens: whole.tokens[range.clone()].to_vec(),
            targets: whole.targets[range].to_vec(),
            features: Vec::new(),
        };
        sum += loss_of(&mut model, &one);
    }
    assert!((sum / 4.0 - loss_of(&mut model, &whole)).abs() < 1e-6);
}

#[test]
fn a_batch_of_another_shape_is_refused() {
    let good = gpt_batch(&TINY_GPT);
    let mut model = gpt(TINY_GPT);
    let mut refuse = |change: &dyn Fn(&mut Batch)| {
        let mut batch = good.clone();
        change(&mut batch);
        let result = model.gradient(&batch, WHOLE, &mut GradientCollector::default());
        assert!(matches!(result, Err(ComputeError::Batch(_))), "{batch:?}");
        assert!(model.evaluate(&batch).is_err());
    };
    refuse(&|batch| batch.rows = 0);
    refuse(&|batch| batch.rows = 4);
    refuse(&|batch| batch.rows = 2);
    refuse(&|batch| batch.tokens[3] = 11);
    refuse(&|batch| batch.targets[3] = u32::MAX);
    refuse(&|batch| batch.targets.truncate(1));
    refuse(&|batch| batch.features.push(1.0));
}

#[test]
fn impossible_models_are_refused() {
    let heads = GptConfig { heads: 3, ..TINY_GPT };
    let error = OnBackend::<Gpt>::new(heads, Cpu::new).err();
    assert_eq!(error, Some(ModelConfigError::Heads { width: 8, heads: 3 }));
    let none = MlpConfig { layers: 0, ..TINY_MLP };
    let error = OnBackend::<Mlp>::new(none, Cpu::new).err();
    assert_eq!(error, Some(ModelConfigError::Zero("layers")));
}

/// All results of a model for a step with two micro-batches, the first of which is smaller, and for
/// a text: losses, and the bits of the gradient and of logits.
fn whole_step(config: GptConfig) -> (Vec<f64>, Vec<u32>) {
    let mut model = gpt(config);
    let parameters = random_parameters(&model);
    model.load(0, &parameters);
    let (whole, mut exchange) = (gpt_batch(&config), GradientCollector::default());
    let small = gpt_batch(&GptConfig { micro_batch: config.micro_batch.div_ceil(2), ..config });
    let pass = Pass { first: true, last: false, scale: 0.5, place: PassPlace::FIRST };
    let first = model.gradient(&small, pass, &mut exchange).expect("a valid batch");
    let before = loss_of(&mut model, &whole);
    let text = model.next_logits(&whole.tokens[..config.context.min(3)]).expect("valid tokens");
    let pass = Pass { first: false, last: true, scale: 0.5, place: PassPlace::FIRST };
    let second = model.gradient(&whole, pass, &mut exchange).expect("a valid batch");
    let values = exchange.gradient.into_iter().chain(text);
    (vec![first, before, second], values.map(f32::to_bits).collect())
}

#[test]
fn a_gpt_that_computes_its_blocks_again_says_the_same_bit_for_bit() {
    let with = |layers: usize, heads, width, context, micro_batch| GptConfig {
        layers,
        heads,
        width,
        context,
        micro_batch,
        ..BYTE_GPT
    };
    let shapes = [
        TINY_GPT,
        BYTE_GPT,
        with(1, 2, 16, 9, 2),
        with(3, 1, 7, 1, 1),
        with(4, 3, 33, 70, 3),
        with(6, 2, 64, 33, 1),
    ];
    for config in shapes {
        let expected = whole_step(config);
        let (_, gradient) = &expected;
        assert!(gradient.iter().all(|bits| f32::from_bits(*bits).is_finite()));
        let again = whole_step(GptConfig { recompute: true, ..config });
        assert!(again == expected, "{config:?}");
    }
}

//! The cost of each layer of a GPT on the CPU backend, forward and backward, on one thread, at the
//! shapes of the two GPTs that `step` measures whole.
//!
//! `cargo bench -p everstep-kernels --bench layers -- [--quick] [PART OF AN ID]`. An id is
//! `layer/pass/GPT`. For layers that are matrix products (`linear …`, `attention`), the elements of
//! the throughput are floating-point operations, so Gelem/s are GFLOP/s. They count the two of each
//! multiplication and addition of the products that define the pass. For attention they count only
//! keys that a query sees. Biases, softmax and the scores beyond the diagonal cost time and count
//! nothing. For all other layers the elements are the input values.
//!
//! A layer runs again and again on the same memory, so its operands are in the cache as far as they
//! fit. In a step, other layers have used the cache in between. Embeddings and residual sums are
//! left out: their cost shows in `step`. Nothing here is measured beside a second thread.

use std::time::{Duration, Instant};

use criterion::{Bencher, BenchmarkId, Criterion, Throughput};
use everstep_kernels::backend::{Arena, Backend, Cpu, View};
use everstep_kernels::layers::{
    CausalAttention, CrossEntropy, Embedding, LayerNorm, Linear, MemoryPlan, TiedHead,
};
use everstep_kernels::random::Philox;

/// The shape of a GPT, as far as one layer sees it.
struct Gpt {
    name: &'static str,
    width: usize,
    heads: usize,
    context: usize,
}

const GPTS: [Gpt; 2] = [
    Gpt { name: "6x384", width: 384, heads: 6, context: 256 },
    Gpt { name: "4x128", width: 128, heads: 4, context: 128 },
];
/// Sequences of a micro-batch.
const MICRO_BATCH: usize = 4;
/// The tokens are bytes.
const VOCABULARY: usize = 256;
/// The deviation of initial weights.
const DEVIATION: f32 = 0.02;

/// One pass of a layer.
struct Pass<'a> {
    name: &'a str,
    /// The number that the throughput counts.
    elements: usize,
    run: Box<dyn Fn(&mut Cpu) + 'a>,
    /// The view that it changes in place. It is restored before each run, outside the time:
    /// gradients that shrink run after run would become denormal, and slow.
    in_place: Option<View>,
}

impl<'a> Pass<'a> {
    fn new(name: &'a str, elements: usize, run: impl Fn(&mut Cpu) + 'a) -> Self {
        Self { name, elements, run: Box::new(run), in_place: None }
    }

    fn in_place(self, view: View) -> Self {
        Self { in_place: Some(view), ..self }
    }
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    for gpt in &GPTS {
        linear(&mut criterion, gpt);
        head(&mut criterion, gpt);
        attention(&mut criterion, gpt);
        gelu(&mut criterion, gpt);
        layer_norm(&mut criterion, gpt);
        cross_entropy(&mut criterion, gpt);
    }
    criterion.final_summary();
}

/// The four products with weights of their own in a block. Forward there is one product. Backward
/// there are two: the gradients of both factors.
fn linear(criterion: &mut Criterion, gpt: &Gpt) {
    let (rows, width) = (gpt.rows(), gpt.width);
    let shapes = [
        ("linear qkv", [width, 3 * width]),
        ("linear projection", [width, width]),
        ("linear up", [width, 4 * width]),
        ("linear down", [4 * width, width]),
    ];
    for (name, [inputs, outputs]) in shapes {
        let mut plan = MemoryPlan::default();
        let layer = Linear::new(&mut plan, name, [inputs, outputs], DEVIATION, rows);
        let [x, dx] = [(); 2].map(|()| plan.activation(rows, inputs));
        let dy = plan.activation(rows, outputs);
        let product = 2 * rows * inputs * outputs;
        let passes = [
            Pass::new("forward", product, |device| _ = layer.forward(device, x)),
            Pass::new("backward", 2 * product, |device| layer.backward(device, x, dy, dx)),
        ];
        measure(criterion, (name, gpt), &plan, &passes);
    }
}

/// The product with the rows of the embedding.
fn head(criterion: &mut Criterion, gpt: &Gpt) {
    let (rows, width) = (gpt.rows(), gpt.width);
    let mut plan = MemoryPlan::default();
    let embedding = Embedding::new(&mut plan, "wte", [VOCABULARY, width], DEVIATION, rows);
    let layer = TiedHead::new(&mut plan, &embedding, rows);
    let [x, dx] = [(); 2].map(|()| plan.activation(rows, width));
    let dy = plan.activation(rows, VOCABULARY);
    let product = 2 * rows * width * VOCABULARY;
    let passes = [
        Pass::new("forward", product, |device| _ = layer.forward(device, x)),
        Pass::new("backward", 2 * product, |device| layer.backward(device, x, dy, dx)),
    ];
    measure(criterion, ("linear head", gpt), &plan, &passes);
}

/// Forward there are two products, scores and output. Backward there are five: the scores again,
/// then the gradients of probabilities, values, keys and queries.
fn attention(criterion: &mut Criterion, gpt: &Gpt) {
    let Gpt { width, heads, context, .. } = *gpt;
    let rows = gpt.rows();
    let mut plan = MemoryPlan::default();
    let layer = CausalAttention::new(&mut plan, heads, width, context, rows);
    let [qkv, d_qkv] = [(); 2].map(|()| plan.activation(rows, 3 * width));
    let (dy, scratch) = (plan.activation(rows, width), plan.statistics(rows, heads));
    let seen = MICRO_BATCH * context * (context + 1) / 2;
    let product = 2 * seen * width;
    let passes = [
        Pass::new("forward", 2 * product, |device| _ = layer.forward(device, context, qkv)),
        Pass::new("backward", 5 * product, |device| {
            device.attention_backward(layer.of(context, qkv), dy, d_qkv, scratch);
        }),
    ];
    measure(criterion, ("attention", gpt), &plan, &passes);
}

fn gelu(criterion: &mut Criterion, gpt: &Gpt) {
    let (rows, wide) = (gpt.rows(), 4 * gpt.width);
    let mut plan = MemoryPlan::default();
    let [x, y, dy] = [(); 3].map(|()| plan.activation(rows, wide));
    let passes = [
        Pass::new("forward", x.len(), |device| device.gelu(x, y)),
        Pass::new("backward", x.len(), |device| device.gelu_backward(x, dy)).in_place(dy),
    ];
    measure(criterion, ("gelu", gpt), &plan, &passes);
}

fn layer_norm(criterion: &mut Criterion, gpt: &Gpt) {
    let (rows, width) = (gpt.rows(), gpt.width);
    let mut plan = MemoryPlan::default();
    let layer = LayerNorm::new(&mut plan, "ln", width, rows);
    let [x, dy, dx] = [(); 3].map(|()| plan.activation(rows, width));
    let passes = [
        Pass::new("forward", x.len(), |device| _ = layer.forward(device, x)),
        Pass::new("backward", x.len(), |device| layer.backward(device, x, dy, dx)),
    ];
    measure(criterion, ("layer norm", gpt), &plan, &passes);
}

/// Softmax, loss and their gradient are one pass.
fn cross_entropy(criterion: &mut Criterion, gpt: &Gpt) {
    let rows = gpt.rows();
    let mut plan = MemoryPlan::default();
    let layer = CrossEntropy::new(&mut plan, rows);
    let logits = plan.activation(rows, VOCABULARY);
    // All targets are token 0, as a device's indices are before any are written.
    let targets = plan.indices(rows);
    let run =
        |device: &mut Cpu| _ = layer.forward_backward(device, logits, targets, 1.0 / rows as f64);
    let passes = [Pass::new("both", logits.len(), run).in_place(logits)];
    measure(criterion, ("cross entropy", gpt), &plan, &passes);
}

impl Gpt {
    /// Rows of activations in a micro-batch.
    fn rows(&self) -> usize {
        MICRO_BATCH * self.context
    }
}

fn measure(
    criterion: &mut Criterion,
    (layer, gpt): (&str, &Gpt),
    plan: &MemoryPlan,
    passes: &[Pass<'_>],
) {
    let mut device = filled(plan);
    // A backward pass reads the results of the forward pass, so all passes run once.
    passes.iter().for_each(|pass| (pass.run)(&mut device));
    let mut group = criterion.benchmark_group(layer);
    for pass in passes {
        group.throughput(Throughput::Elements(pass.elements as u64));
        let id = BenchmarkId::new(pass.name, gpt.name);
        group.bench_function(id, |bencher| time(bencher, &mut device, pass));
    }
    group.finish();
}

fn time(bencher: &mut Bencher<'_>, device: &mut Cpu, pass: &Pass<'_>) {
    let Some(view) = pass.in_place else { return bencher.iter(|| (pass.run)(device)) };
    let values = normal(view.len());
    bencher.iter_custom(|runs| {
        let run = |_| {
            device.write(view, &values);
            let start = Instant::now();
            (pass.run)(device);
            start.elapsed()
        };
        (0..runs).map(run).sum()
    });
}

/// A device for this plan, with parameters as at a run's start. The rest has any values.
fn filled(plan: &MemoryPlan) -> Cpu {
    let sizes = plan.sizes();
    let mut device = Cpu::new(sizes);
    let mut parameters = vec![0.0; sizes.parameters];
    plan.layout().init(1, 0..sizes.parameters, &mut parameters);
    device.write(View::row(Arena::Parameters, 0..sizes.parameters), &parameters);
    let activations = View::row(Arena::Activations, 0..sizes.activations);
    device.write(activations, &normal(sizes.activations));
    let statistics = View::row(Arena::Statistics, 0..sizes.statistics);
    device.write(statistics, &normal(sizes.statistics));
    device
}

fn normal(count: usize) -> Vec<f32> {
    let stream = Philox::new(1, Philox::USER, 0);
    (0..count as u64).map(|index| stream.normal(index)).collect()
}

//! The work on one parameter shard in a step, on one thread: the sum of its partial gradients, its
//! norm, its digests, its update, and the rounding and packing of its parameters.
//!
//! `cargo bench -p everstep-kernels --bench update -- [--quick] [PART OF AN ID]`. An id is
//! `operation/case/elements`. The bytes of the throughput are those that the operation has to read
//! and to write, each once. Compare them with the bandwidth of the memory. An update reads weights,
//! moments and gradient, and writes weights and moments. An addition reads two partials and writes
//! one. Every update includes the digests by which a worker checks its copies: two of the state and
//! one of the gradient.
//!
//! Shards have 40 Ki elements, as those of the GPT of 6 layers and width 384, which stay in the
//! cache, or 1 Mi, the greatest length. This benchmark sends nothing.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput};
use everstep_kernels::buffer::{Buffer, Pool, Shared};
use everstep_kernels::layout::{Init, Layout};
use everstep_kernels::optimizer::{Optimizer, Rule, UpdateInputs};
use everstep_kernels::random::Philox;
use everstep_kernels::reduce::{self, Addend, Sum, Tree, TreeNode};

/// Elements of a shard.
const LENGTHS: [usize; 2] = [40 << 10, 1 << 20];
/// Bytes of an element.
const F32: usize = size_of::<f32>();
/// Bytes of a packed element.
const BF16: usize = 2;

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    for length in LENGTHS {
        sum(&mut criterion, length);
        norm_and_digests(&mut criterion, length);
        optimizers(&mut criterion, length);
        bf16(&mut criterion, length);
    }
    criterion.final_summary();
}

/// The sum of a shard's partials at its primary, one from each worker of one data shard. The
/// primary keeps its own partial, in case the step is done again, so the sum may not write into it.
/// The others come from the wire, in buffers that the sum may reuse.
fn sum(criterion: &mut Criterion, length: usize) {
    for partials in [2, 8] {
        let pool = Pool::new(2 * partials as usize * length * F32);
        let values = normal(0, length);
        let own: Shared = Shared::new(Buffer::detached(values.clone()));
        let received = || {
            let mut partial = pool.take(length);
            partial.copy_from_slice(&values);
            Addend::Owned(partial)
        };
        let arrivals = || -> Vec<_> {
            let others = (1..partials).map(|_| received());
            [Addend::Kept(own.clone())].into_iter().chain(others).collect()
        };
        let add = |arrivals: Vec<Addend>| {
            let mut sum = Sum::new(Tree::new(partials), length, pool.clone());
            let mut total = None;
            for (leaf, partial) in (0..).zip(arrivals) {
                total = sum.insert(TreeNode::leaf(leaf), partial).expect("each leaf comes once");
            }
            total.expect("all have come")
        };
        let additions = partials as usize - 1;
        let mut group = criterion.benchmark_group("sum");
        group.throughput(bytes(length, 3 * F32 * additions));
        let id = BenchmarkId::new(format!("{partials} partials"), length);
        group.bench_function(id, |bencher| {
            bencher.iter_batched(arrivals, add, BatchSize::PerIteration);
        });
        group.finish();
    }
}

/// The values by which others know a reduced gradient, and a state.
fn norm_and_digests(criterion: &mut Criterion, length: usize) {
    let gradient = normal(0, length);
    let state = adamw().state(normal(1, length));
    let mut group = criterion.benchmark_group("gradient");
    group.throughput(bytes(length, F32));
    group.bench_function(BenchmarkId::new("sum of squares", length), |bencher| {
        bencher.iter(|| reduce::sum_of_squares(black_box(&gradient)));
    });
    group.bench_function(BenchmarkId::new("digest", length), |bencher| {
        bencher.iter(|| reduce::digest(0, black_box(&gradient)));
    });
    group.finish();
    let mut group = criterion.benchmark_group("state");
    group.throughput(bytes(length, 3 * F32));
    group.bench_function(BenchmarkId::new("digest with AdamW's moments", length), |bencher| {
        bencher.iter(|| black_box(&state).digest(1));
    });
    group.finish();
}

fn optimizers(criterion: &mut Criterion, length: usize) {
    let rules = [
        ("AdamW", adamw()),
        ("SGD with momentum", optimizer(Rule::Sgd { momentum: 0.9 })),
        ("Lion", optimizer(Rule::Lion { beta1: 0.9, beta2: 0.99 })),
    ];
    let mut layout = Layout::new();
    layout.push("weight", &[length / 1024, 1024], Init::Normal { deviation: 0.02 });
    let gradient = normal(0, length);
    let mut group = criterion.benchmark_group("update");
    for (name, optimizer) in rules {
        let mut state = optimizer.state(normal(1, length));
        let read_and_written = 2 * optimizer.bytes_per_parameter();
        group.throughput(bytes(length, read_and_written + F32));
        let mut step = 0;
        group.bench_function(BenchmarkId::new(name, length), |bencher| {
            bencher.iter(|| {
                step += 1;
                let inputs = UpdateInputs {
                    step,
                    run_step: step,
                    learning_rate: 1e-3,
                    clip: 0.5,
                    layout: &layout,
                    range: 0..length,
                };
                black_box(optimizer.update(&mut state, &gradient, &inputs, [step - 1, step]))
            });
        });
    }
    group.finish();
}

/// The work of a bf16 all-gather: owners round their computing copies, primaries pack what they
/// send, and the others unpack it.
fn bf16(criterion: &mut Criterion, length: usize) {
    let mut values = normal(0, length);
    let mut packed = vec![0; BF16 * length];
    let mut group = criterion.benchmark_group("bf16");
    group.throughput(bytes(length, 2 * F32));
    group.bench_function(BenchmarkId::new("round", length), |bencher| {
        bencher.iter(|| reduce::round_bf16(black_box(&mut values)));
    });
    group.bench_function(BenchmarkId::new("round stochastically", length), |bencher| {
        bencher.iter(|| reduce::round_bf16_stochastically(black_box(&mut values), 1, 0));
    });
    group.throughput(bytes(length, F32 + BF16));
    group.bench_function(BenchmarkId::new("encode", length), |bencher| {
        bencher.iter(|| reduce::encode_bf16(black_box(&values), &mut packed));
    });
    group.bench_function(BenchmarkId::new("decode", length), |bencher| {
        bencher.iter(|| reduce::decode_bf16(black_box(&packed), &mut values));
    });
    group.finish();
}

fn adamw() -> Optimizer {
    optimizer(Rule::AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8 })
}

fn optimizer(rule: Rule) -> Optimizer {
    Optimizer::new(rule, 0.1).expect("valid settings")
}

fn bytes(length: usize, an_element: usize) -> Throughput {
    Throughput::Bytes((length * an_element) as u64)
}

fn normal(stream: u64, count: usize) -> Vec<f32> {
    let stream = Philox::new(1, Philox::USER, stream);
    (0..count as u64).map(|index| stream.normal(index)).collect()
}

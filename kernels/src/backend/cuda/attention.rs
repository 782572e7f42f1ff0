//! The launches of attention: by the fastest of the chosen kernels that take heads of this width.

use super::driver::{Argument, Driver, Kernel, Launch};
use super::{Cuda, kernels, launch, long};
use crate::backend::{Attention, View};
use crate::precision::Precision;

/// Threads of the plain kernels' blocks (`attention.cu`).
const PLAIN_THREADS: usize = 128;

/// The kernels of attention. Each can do what those before it cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AttentionKernels {
    /// In tiles on tensor cores (`tensor_attention.cu`): 16 bits, heads of a width up to 128 that
    /// is a multiple of 8.
    Tensor,
    /// In tiles in f32 (`flash_attention.cu`): heads up to 128 wide.
    Flash,
    /// A block a query (`attention.cu`): any heads. Tests check the others against it.
    Plain,
}

/// Kernels for heads up to some width, and the shape of their launches.
struct AttentionPlan {
    forward: &'static Kernel,
    /// One pass for the queries, one for keys and values.
    backward: [&'static Kernel; 2],
    launch: Launch,
}

/// Writes `attention.y` and `attention.statistics`.
pub fn forward<D: Driver + 'static>(cuda: &mut Cuda<D>, attention: Attention) {
    let Attention { qkv, y, statistics, .. } = attention;
    let Some(plan) = plan(attention, kernels_for(cuda, attention, &[qkv, y])) else { return };
    let [sequence, heads, size] = sizes(attention);
    let arguments = [cuda.real(qkv), cuda.real(y), cuda.float(statistics), sequence, heads, size];
    cuda.launch(plan.forward, plan.launch, &arguments);
}

/// Writes `d_qkv`. Writes into `scratch` the values that both of its passes need of each row and
/// head.
pub fn backward<D: Driver + 'static>(
    cuda: &mut Cuda<D>,
    attention: Attention,
    dy: View,
    d_qkv: View,
    scratch: View,
) {
    let Attention { qkv, y, statistics, .. } = attention;
    assert_eq!((dy.len(), d_qkv.len()), (y.len(), qkv.len()), "gradients of the same shapes");
    assert_eq!(scratch.len(), statistics.len(), "a number for each row and head");
    let Some(plan) = plan(attention, kernels_for(cuda, attention, &[qkv, dy, d_qkv])) else {
        return;
    };
    let [sequence, heads, size] = sizes(attention);
    let [qkv, y, dy, d_qkv] = [qkv, y, dy, d_qkv].map(|view| cuda.real(view));
    let [statistics, expected] = [statistics, scratch].map(|view| cuda.float(view));
    let arguments = [y, dy, expected, long(scratch.len()), size];
    cuda.launch(&kernels::ATTENTION_EXPECTED, launch::eights(scratch.len()), &arguments);
    let arguments = [qkv, statistics, expected, dy, d_qkv, sequence, heads, size];
    for kernel in plan.backward {
        cuda.launch(kernel, plan.launch, &arguments);
    }
}

/// The first kernels, from the wanted ones on, that can do this attention. They read or write the
/// rows of `views` in pieces of 16 bytes and less.
fn kernels_for<D: Driver + 'static>(
    cuda: &Cuda<D>,
    attention: Attention,
    views: &[View],
) -> AttentionKernels {
    let size = attention.y.columns() / attention.heads;
    let halves = cuda.driver.precision() != Precision::F32;
    let aligned = views.iter().all(|view| cuda.arenas.address(*view).0.is_multiple_of(16));
    // The kernels on tensor cores count in 32 bits within a tile of 64 rows and within a sequence.
    let row = attention.qkv.columns();
    let small = row < 1 << 25 && attention.sequence < 1 << 31;
    let whole = aligned && size.is_multiple_of(8);
    let fitting = match size {
        ..=128 if halves && whole && small => AttentionKernels::Tensor,
        ..=128 => AttentionKernels::Flash,
        _ => AttentionKernels::Plain,
    };
    fitting.max(cuda.attention)
}

fn plan(attention: Attention, kernels: AttentionKernels) -> Option<AttentionPlan> {
    let Attention { heads, sequence, qkv, y, statistics } = attention;
    let (rows, width) = (y.rows(), y.columns());
    assert_eq!((qkv.rows(), qkv.columns()), (rows, 3 * width), "queries, keys and values");
    assert_eq!(statistics.len(), rows * heads, "a statistic for each row and head");
    assert!(width % heads == 0 && rows % sequence == 0, "whole heads and sequences");
    if y.is_empty() {
        return None;
    }
    let tiles =
        |tile, threads| launch::sequence_tiles(rows / sequence * heads, sequence, tile, threads);
    let plain = launch::every_row(rows * heads, PLAIN_THREADS);
    let narrow = width / heads <= 64;
    let (forward, backward, launch) = match (kernels, narrow) {
        (AttentionKernels::Tensor, true) => (
            &kernels::TENSOR_64,
            [&kernels::TENSOR_BACKWARD_QUERY_64, &kernels::TENSOR_BACKWARD_KEY_64],
            tiles(64, 2),
        ),
        (AttentionKernels::Tensor, false) => (
            &kernels::TENSOR_128,
            [&kernels::TENSOR_BACKWARD_QUERY_128, &kernels::TENSOR_BACKWARD_KEY_128],
            tiles(64, 2),
        ),
        (AttentionKernels::Flash, true) => (
            &kernels::FLASH_64,
            [&kernels::FLASH_BACKWARD_QUERY_64, &kernels::FLASH_BACKWARD_KEY_64],
            tiles(32, 8),
        ),
        (AttentionKernels::Flash, false) => (
            &kernels::FLASH_128,
            [&kernels::FLASH_BACKWARD_QUERY_128, &kernels::FLASH_BACKWARD_KEY_128],
            tiles(16, 8),
        ),
        (AttentionKernels::Plain, _) => (
            &kernels::ATTENTION,
            [&kernels::ATTENTION_BACKWARD_QUERY, &kernels::ATTENTION_BACKWARD_KEY],
            plain,
        ),
    };
    Some(AttentionPlan { forward, backward, launch })
}

fn sizes(attention: Attention) -> [Argument; 3] {
    let Attention { heads, sequence, y, .. } = attention;
    [sequence, heads, y.columns() / heads].map(long)
}

//! The launches of attention: tiles where a head fits them, else the plain kernels.

use super::driver::{Argument, Driver, Kernel, Launch};
use super::{Cuda, kernels, launch, long};
use crate::backend::{Attention, View};

/// Threads of the plain kernels' blocks (`attention.cu`).
const PLAIN_THREADS: usize = 128;

/// Kernels for heads up to some width, and the shape that they are launched in.
struct Plan {
    forward: &'static Kernel,
    /// One pass for the queries, one for keys and values.
    backward: [&'static Kernel; 2],
    launch: Launch,
}

/// Writes `attention.y` and `attention.statistics`.
pub fn forward<D: Driver + 'static>(cuda: &mut Cuda<D>, attention: Attention) {
    let Attention { qkv, y, statistics, .. } = attention;
    let Some(plan) = plan(attention, cuda.plain_attention) else { return };
    let [sequence, heads, size] = sizes(attention);
    let arguments = [cuda.real(qkv), cuda.real(y), cuda.float(statistics), sequence, heads, size];
    cuda.launch(plan.forward, plan.launch, &arguments);
}

/// Writes `d_qkv`.
pub fn backward<D: Driver + 'static>(
    cuda: &mut Cuda<D>,
    attention: Attention,
    dy: View,
    d_qkv: View,
) {
    let Attention { qkv, y, statistics, .. } = attention;
    assert_eq!((dy.len(), d_qkv.len()), (y.len(), qkv.len()), "gradients of the same shapes");
    let Some(plan) = plan(attention, cuda.plain_attention) else { return };
    let [sequence, heads, size] = sizes(attention);
    let [qkv, y, dy, d_qkv] = [qkv, y, dy, d_qkv].map(|view| cuda.real(view));
    let statistics = cuda.float(statistics);
    let arguments = [qkv, y, statistics, dy, d_qkv, sequence, heads, size];
    for kernel in plan.backward {
        cuda.launch(kernel, plan.launch, &arguments);
    }
}

fn plan(attention: Attention, plain: bool) -> Option<Plan> {
    let Attention { heads, sequence, qkv, y, statistics } = attention;
    let (rows, width) = (y.rows(), y.columns());
    assert_eq!((qkv.rows(), qkv.columns()), (rows, 3 * width), "queries, keys and values");
    assert_eq!(statistics.len(), rows * heads, "a statistic for each row and head");
    assert!(width % heads == 0 && rows % sequence == 0, "whole heads and sequences");
    if y.is_empty() {
        return None;
    }
    let tiles = |tile| launch::sequence_tiles(rows / sequence * heads, sequence, tile);
    let plan = match width / heads {
        ..=64 if !plain => Plan {
            forward: &kernels::FLASH_64,
            backward: [&kernels::FLASH_BACKWARD_QUERY_64, &kernels::FLASH_BACKWARD_KEY_64],
            launch: tiles(32),
        },
        65..=128 if !plain => Plan {
            forward: &kernels::FLASH_128,
            backward: [&kernels::FLASH_BACKWARD_QUERY_128, &kernels::FLASH_BACKWARD_KEY_128],
            launch: tiles(16),
        },
        _ => Plan {
            forward: &kernels::ATTENTION,
            backward: [&kernels::ATTENTION_BACKWARD_QUERY, &kernels::ATTENTION_BACKWARD_KEY],
            launch: launch::every_row(rows * heads, PLAIN_THREADS),
        },
    };
    Some(plan)
}

fn sizes(attention: Attention) -> [Argument; 3] {
    let Attention { heads, sequence, y, .. } = attention;
    [sequence, heads, y.columns() / heads].map(long)
}

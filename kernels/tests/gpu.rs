//! Every operation on the GPU of this machine, against the f64 reference: the checks of
//! `operations.rs`, in every precision. Without a GPU the tests say so, loudly, and pass.

#![cfg(feature = "cuda")]

#[macro_use]
#[path = "operations"]
mod operations {
    pub mod check;
    pub mod precisions;
    #[macro_use]
    pub mod checks;
}

use std::io::Write as _;
use std::sync::LazyLock;

use everstep_kernels::backend::cuda::gpu::{CudaDriver, devices};
use everstep_kernels::backend::cuda::{
    AttentionKernels, Cuda, Driver as _, Epilogue, Matrix, Product, SOURCES,
};
use everstep_kernels::backend::{Arena, Attention, Backend, Sizes, View};
use everstep_kernels::precision::Precision;
use operations::check::{Subject, normals};
use operations::precisions::subject;

/// Whether there is a GPU.
fn is_there() -> bool {
    static IS_THERE: LazyLock<bool> = LazyLock::new(|| match devices::one(0) {
        Ok(_) => true,
        Err(error) => {
            // Past the capture of the tests' output, which hides the output of a passing test.
            let _ = writeln!(std::io::stderr(), "SKIPPED, nothing ran on a GPU: {error}");
            false
        }
    });
    *IS_THERE
}

/// The GPU under test. `None` without one.
fn on_gpu(precision: Precision, attention: AttentionKernels) -> Option<Subject> {
    if !is_there() {
        return None;
    }
    let open = Box::new(move |sizes| {
        let driver =
            CudaDriver::open(0, precision, SOURCES).unwrap_or_else(|error| panic!("{error}"));
        let cuda = Cuda::new(driver, sizes).unwrap_or_else(|error| panic!("{error}"));
        Box::new(cuda.with_attention(attention)) as _
    });
    Some(subject(precision, open))
}

/// Otherwise kernels of our own would compute all products, and every other test would pass.
#[test]
fn the_library_computes_plain_products_and_those_with_epilogues() {
    const SIDE: usize = 64;
    for precision in [Precision::F32, Precision::Bf16, Precision::Fp16] {
        if !is_there() {
            return;
        }
        let mut gpu = CudaDriver::open(0, precision, &[]).unwrap_or_else(|error| panic!("{error}"));
        let [a, b, c, input, bias] =
            [(); 5].map(|()| gpu.allocate(4 * SIDE * SIDE).expect("memory"));
        let matrix = |address| {
            let (rows, columns) = (SIDE, SIDE);
            Matrix { address, element: precision, rows, columns, transposed: false }
        };
        let [a, b, c] = [a, b, c].map(matrix);
        for (epilogue, is_exact) in [
            (Epilogue::None, true),
            (Epilogue::Bias { bias }, true),
            (Epilogue::Gelu { bias, input }, false),
            (Epilogue::GeluBackward { input }, false),
        ] {
            let is_done = gpu.matmul(&Product { a, b, c, accumulate: false, epilogue });
            let is_wanted = is_exact || precision != Precision::F32;
            assert_eq!(is_done, is_wanted, "{epilogue:?} in {precision}");
            gpu.read(c.address, &mut [0; 4]).expect("nothing fails");
        }
    }
}

/// The rows of a micro-batch of 8 sequences of 1,024 tokens.
const ROWS: usize = 8192;
const WIDTH: usize = 768;

/// Runs an operation on two devices, opened one after the other. The activations of both begin as
/// the same random numbers. Asserts that the results have the same bits.
fn assert_same_bits(sizes: Sizes, results: &[View], operation: impl Fn(&mut dyn Backend)) {
    let Some(subject) = on_gpu(Precision::Bf16, AttentionKernels::Tensor) else { return };
    let inputs: Vec<f32> = normals(0, sizes.activations).collect();
    let [first, second] = [(); 2].map(|()| {
        let mut device = (subject.open)(sizes);
        device.write(View::row(Arena::Activations, 0..inputs.len()), &inputs);
        operation(&mut *device);
        let mut bits = |view: &View| -> Vec<u32> {
            let values = device.read_back(*view).expect("nothing fails");
            values.iter().map(|value| value.to_bits()).collect()
        };
        results.iter().map(&mut bits).collect::<Vec<_>>()
    });
    for ((view, first), second) in results.iter().zip(first).zip(second) {
        assert!(first.iter().any(|bits| *bits != 0), "{view:?} was not written");
        assert!(first == second, "{view:?} has other bits the second time");
    }
}

/// The library may split these sums among blocks.
#[test]
fn gradients_of_weights_have_the_same_bits_on_a_device_that_is_opened_anew() {
    for outputs in [WIDTH, 4 * WIDTH] {
        let mut sizes = Sizes::default();
        let mut input = |columns| {
            let view = View::new(Arena::Activations, sizes.activations, ROWS, columns);
            sizes.activations += view.len();
            view
        };
        let (x, dy) = (input(WIDTH), input(outputs));
        let weight = View::new(Arena::Parameters, 0, WIDTH, outputs).gradient();
        sizes.parameters = weight.len();
        assert_same_bits(sizes, &[weight], |device| device.matmul_add(x.t(), dy, weight));
    }
}

#[test]
fn attention_has_the_same_bits_on_a_device_that_is_opened_anew() {
    let (heads, sequence) = (12, 1024);
    let mut sizes = Sizes { sequence, ..Sizes::default() };
    let mut place = |arena, columns| {
        let size = match arena {
            Arena::Activations => &mut sizes.activations,
            _ => &mut sizes.statistics,
        };
        let view = View::new(arena, *size, ROWS, columns);
        *size += view.len();
        view
    };
    let [qkv, d_qkv] = [(); 2].map(|()| place(Arena::Activations, 3 * WIDTH));
    let [y, dy] = [(); 2].map(|()| place(Arena::Activations, WIDTH));
    let [statistics, scratch] = [(); 2].map(|()| place(Arena::Statistics, heads));
    let attention = Attention { heads, sequence, qkv, y, statistics };
    assert_same_bits(sizes, &[y, statistics, d_qkv], |device| {
        device.attention(attention);
        device.attention_backward(attention, dy, d_qkv, scratch);
    });
}

test_every_precision!(crate::on_gpu);

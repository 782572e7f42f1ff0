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
use everstep_kernels::precision::Precision;
use operations::check::Subject;
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

test_every_precision!(crate::on_gpu);

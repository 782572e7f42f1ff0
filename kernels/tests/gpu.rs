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
use everstep_kernels::backend::cuda::{AttentionKernels, Cuda, SOURCES};
use everstep_kernels::precision::Precision;
use operations::check::Subject;
use operations::precisions::subject;

/// The GPU under test. `None` without one.
fn on_gpu(precision: Precision, attention: AttentionKernels) -> Option<Subject> {
    static IS_THERE: LazyLock<bool> = LazyLock::new(|| match devices::one(0) {
        Ok(_) => true,
        Err(error) => {
            // Past the capture of the tests' output, which hides the output of a passing test.
            let _ = writeln!(std::io::stderr(), "SKIPPED, nothing ran on a GPU: {error}");
            false
        }
    });
    if !*IS_THERE {
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

test_every_precision!(crate::on_gpu);

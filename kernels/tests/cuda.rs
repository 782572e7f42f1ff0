//! The kernels for GPUs, run on the CPU. Compares every operation and whole models with the f64
//! reference, and the rounding of parameters with the bits of the CPU.
//!
//! The `.cu` files are compiled as C++ and run under an emulation (`cuda/emulation.h`). Nothing
//! here has run on a GPU. Without a C++ compiler the tests skip all of it, loudly.

mod cuda {
    pub mod emulated;
    mod fetches;
    mod models;
    mod rounding;
    mod stub;
}
#[macro_use]
#[path = "operations"]
mod operations {
    pub mod check;
    pub mod precisions;
    #[macro_use]
    pub mod checks;
}

use cuda::emulated::Emulated;
use everstep_kernels::backend::cuda::{AttentionKernels, Cuda};
use everstep_kernels::backend::{Arena, Sizes, View};
use everstep_kernels::precision::Precision;
use operations::check::Subject;
use operations::precisions::subject;

/// The emulated device under test. `None` without a compiler.
fn emulated(precision: Precision, attention: AttentionKernels) -> Option<Subject> {
    Emulated::new(precision)?;
    let open = Box::new(move |sizes| {
        let driver = Emulated::new(precision).expect("it was there before");
        let cuda = Cuda::new(driver, sizes).expect("the host has the memory");
        Box::new(cuda.with_attention(attention)) as _
    });
    Some(subject(precision, open))
}

test_every_precision!(crate::emulated);

/// More values than the device converts at once.
#[test]
fn large_views_are_written_and_read_back_whole() {
    let Some(subject) = emulated(Precision::Bf16, AttentionKernels::Tensor) else { return };
    let count = (2 << 20) + 77;
    let mut device = (subject.open)(Sizes { parameters: count, ..Sizes::default() });
    let values: Vec<f32> = (0..count).map(|index| (index % 251) as f32).collect();
    let whole = View::row(Arena::Parameters, 0..count);
    device.write(whole, &values);
    assert!(device.read_back(whole).unwrap() == values);
}

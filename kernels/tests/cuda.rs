//! The kernels for GPUs, run on the CPU: every operation against the f64 reference, whole models
//! against it, and what owners do against the bits of the CPU.
//!
//! The `.cu` files are compiled as C++ and run under an emulation (`cuda/emulation.h`); nothing here
//! has run on a GPU. Without a C++ compiler all of it is skipped, loudly.

mod cuda {
    pub mod emulated;
}
#[macro_use]
#[path = "operations"]
mod operations {
    pub mod check;
    #[macro_use]
    pub mod checks;
}

use cuda::emulated::Emulated;
use everstep_kernels::backend::cuda::{Cuda, Precision};
use operations::check::Subject;

/// What the emulated device opens; none without a compiler.
fn emulated(precision: Precision, plain_attention: bool) -> Option<Subject> {
    Emulated::new(precision)?;
    let (round, tolerance): (fn(f32) -> f32, f64) = match precision {
        Precision::F32 => (|value| value, 1e-5),
        Precision::Bf16 => (|value| half::bf16::from_f32(value).to_f32(), 1e-2),
        Precision::Fp16 => (|value| half::f16::from_f32(value).to_f32(), 2e-3),
    };
    let open = Box::new(move |sizes| {
        let driver = Emulated::new(precision).expect("it was there before");
        let cuda = Cuda::new(driver, sizes).expect("the host has the memory");
        if plain_attention {
            Box::new(cuda.with_plain_attention()) as _
        } else {
            Box::new(cuda) as _
        }
    });
    Some(Subject { open, round, tolerance })
}

mod f32 {
    test_every_operation!(super::emulated(super::Precision::F32, false));
}

mod bf16 {
    test_every_operation!(super::emulated(super::Precision::Bf16, false));
}

mod fp16 {
    test_every_operation!(super::emulated(super::Precision::Fp16, false));
}

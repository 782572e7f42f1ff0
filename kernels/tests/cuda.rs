//! The kernels for GPUs, run on the CPU: every operation against the f64 reference, whole models
//! against it, and what owners do against the bits of the CPU.
//!
//! The `.cu` files are compiled as C++ and run under an emulation (`cuda/emulation.h`); nothing here
//! has run on a GPU. Without a C++ compiler all of it is skipped, loudly.

mod cuda {
    pub mod emulated;
    mod models;
    mod owners;
    mod stub;
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
use everstep_kernels::backend::{Arena, Sizes, View};
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

mod plain_attention {
    use crate::operations::checks;

    #[test]
    fn causal_attention_forward_and_backward() {
        for precision in [super::Precision::F32, super::Precision::Bf16] {
            let subject = super::emulated(precision, true);
            subject.iter().for_each(checks::causal_attention_forward_and_backward);
        }
    }
}

/// More than is converted at once.
#[test]
fn large_views_are_written_and_read_back_whole() {
    let Some(subject) = emulated(Precision::Bf16, false) else { return };
    let count = (2 << 20) + 77;
    let mut device = (subject.open)(Sizes { parameters: count, ..Sizes::default() });
    let values: Vec<f32> = (0..count).map(|index| (index % 251) as f32).collect();
    let whole = View::row(Arena::Parameters, 0..count);
    device.write(whole, &values);
    assert!(device.read_back(whole).unwrap() == values);
}

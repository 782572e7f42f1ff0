//! The tolerance for a device that stores numbers in a precision.

use everstep_kernels::backend::{Backend, Sizes};
use everstep_kernels::precision::Precision;

use super::check::Subject;

pub fn subject(precision: Precision, open: Box<dyn Fn(Sizes) -> Box<dyn Backend>>) -> Subject {
    let (round, tolerance): (fn(f32) -> f32, f64) = match precision {
        Precision::F32 => (|value| value, 1e-5),
        Precision::Bf16 => (|value| half::bf16::from_f32(value).to_f32(), 1e-2),
        Precision::Fp16 => (|value| half::f16::from_f32(value).to_f32(), 2e-3),
    };
    Subject { open, round, tolerance }
}

//! How a device stores numbers.

use std::fmt;

/// How a device stores the numbers of parameters and activations. Gradients, statistics and all
/// sums are always f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// 32 bits, IEEE single precision.
    F32,
    /// The upper half of an f32.
    Bf16,
    /// IEEE half precision.
    Fp16,
}

impl Precision {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::Fp16 => 2,
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
        })
    }
}

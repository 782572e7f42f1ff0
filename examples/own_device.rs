//! A kind of device of one's own: it computes the built-in models in f64.
//!
//! ```text
//! cargo run --release --example own_device -- devices
//! cargo run --release --example own_device -- train --device f64:0 --steps 20
//! ```
//!
//! This is the program `everstep` with one kind of device more. A backend for other hardware is a
//! crate like this file: a [`DeviceProvider`] that finds the hardware, and a `Backend` with the
//! operations of the models. Here the operations are those of the reference backend.

use std::process::ExitCode;

use everstep::{DeviceInfo, DeviceProvider, OpenedDevice, PeakFlops, builtin};
use everstep_kernels::backend::{Reference, Sizes};
use everstep_kernels::precision::Precision;

fn main() -> ExitCode {
    everstep::program(builtin::registry().device(Doubles))
}

/// The processor, as the only device of its kind.
struct Doubles;

impl DeviceProvider for Doubles {
    fn kind(&self) -> &str {
        "f64"
    }

    fn devices(&self) -> Result<Vec<Result<DeviceInfo, String>>, String> {
        Ok(vec![Ok(described())])
    }

    /// Every machine has one.
    fn is_absent(&self) -> bool {
        false
    }

    fn check(&self, index: usize, precision: Precision) -> Result<(), String> {
        match (index, precision) {
            (0, Precision::F32) => Ok(()),
            (0, other) => Err(format!("f64:0 computes in more than f32, not in {other}")),
            _ => Err(format!("there is no f64:{index}: the only one is f64:0")),
        }
    }

    fn open(
        &self,
        index: usize,
        precision: Precision,
        sizes: Sizes,
    ) -> Result<OpenedDevice, String> {
        self.check(index, precision)?;
        Ok(OpenedDevice { backend: Box::new(Reference::new(sizes)), info: described() })
    }

    fn memory(&self, sizes: Sizes, _precision: Precision) -> Vec<(&'static str, usize)> {
        let numbers = 2 * sizes.parameters + sizes.activations + sizes.statistics;
        vec![("numbers", numbers * size_of::<f64>()), ("tokens", sizes.indices * size_of::<u32>())]
    }
}

fn described() -> DeviceInfo {
    DeviceInfo {
        kind: "f64".into(),
        index: 0,
        name: "Double precision".into(),
        architecture: std::env::consts::ARCH.into(),
        capability: "1.0".into(),
        uuid: *b"double precision",
        peak_flops: PeakFlops { single: Some(1_000_000_000_000), half: None },
        memory_bytes: 1 << 30,
        multiprocessors: None,
        is_usable: true,
    }
}

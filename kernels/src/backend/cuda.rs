//! NVIDIA GPUs, above a [`Driver`].

mod driver;
#[cfg(feature = "cuda")]
pub mod gpu;
mod kernels;

pub use driver::{
    Address, Argument, Driver, DriverError, Kernel, Launch, Matrix, Precision, Product, Source,
};
pub use kernels::{KERNELS, SOURCES};

//! Everything that computes numbers on a device.
//!
//! Three floors, each knowing only the one below:
//!
//! - [`backend`]: operations on buffer handles, enqueued on a device. The CPU, NVIDIA GPUs above a
//!   driver, and a plain f64 reference that everything is checked against.
//! - [`layers`] and [`models`]: written once over the [`backend::Backend`] trait, with manual
//!   backward passes that announce gradient ranges as they become final.
//! - [`compute`]: the seam to a worker. *Given parameters and a micro-batch, produce loss and
//!   gradient.* [`device`] chooses where. Beside it [`optimizer`], [`schedule`], [`random`] and
//!   [`reduce`]: what an owner of a parameter shard does, and the additions whose order never
//!   depends on who is there.
//!
//! This crate knows nothing of workers, generations or networks.

pub mod backend;
pub mod buffer;
pub mod compute;
pub mod device;
pub mod layers;
pub mod layout;
pub mod models;
pub mod optimizer;
pub mod random;
pub mod reduce;
pub mod schedule;
pub(crate) mod sync;

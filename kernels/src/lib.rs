//! Everything that computes numbers on a device.
//!
//! Three floors, each knowing only the one below:
//!
//! - [`backend`]: operations on buffer handles, enqueued on a device. The CPU, NVIDIA GPUs above a
//!   driver, and a plain f64 reference that tests compare everything with.
//! - [`layers`] and [`models`]: written once over the [`backend::Backend`] trait, with manual
//!   backward passes that announce gradient ranges as they become final.
//! - [`compute`]: the seam to a worker. *Given parameters and a micro-batch, produce loss and
//!   gradient.* [`device`] chooses the device, and [`precision`] says how it stores numbers. Beside
//!   it [`optimizer`], [`schedule`], [`random`] and [`reduce`]: the work of an owner of a parameter
//!   shard, and additions in an order that never depends on the members.
//!
//! This crate knows no workers, generations or networks.

pub mod backend;
pub mod buffer;
pub mod compute;
pub mod device;
pub mod layers;
pub mod layout;
pub mod models;
pub mod optimizer;
pub mod precision;
pub mod random;
pub mod reduce;
pub mod schedule;
pub mod shared_memory;
pub(crate) mod sync;
pub mod threads;

//! The types for memory that threads share: those of the standard library, or loom's under `--cfg
//! loom`, which then tries every interleaving.

#[cfg(loom)]
pub(crate) use loom::sync::{Arc, Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::{Arc, Mutex, MutexGuard};

//! What threads share memory with: the standard library's types, or loom's under `--cfg loom`,
//! which then tries every interleaving.

#[cfg(loom)]
pub(crate) use loom::sync::{Arc, Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::{Arc, Mutex, MutexGuard};

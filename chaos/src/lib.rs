//! Proof by simulation: the cores that run in production, driven on virtual time.
//!
//! [`world`] is a cluster in one thread: coordinator, workers and devices, and between them a wire
//! whose delays follow from a seed. [`check`] watches what happens there, one checker for each
//! invariant of the design. [`trace`] is what happened, in words. [`toy`] is a run that takes
//! milliseconds.
//!
//! In goes a scenario; out comes what the run ended with, or the first broken invariant. The same
//! scenario gives the same trace. Nothing here knows sockets, threads or a clock.

pub mod check;
mod random;
pub mod toy;
pub mod trace;
pub mod world;

//! Proof by simulation: the cores that run in production, driven on virtual time.
//!
//! [`world`] is a cluster in one thread: coordinator, workers and devices, and between them a wire
//! whose delays follow from a seed. [`fault`] is what may go wrong there, and when. [`check`]
//! watches what happens, one checker for each invariant of the design. [`trace`] is what happened.
//! [`simulate`] runs seed after seed, and finds the faults that a failure takes. [`toy`] has runs
//! that take milliseconds.
//!
//! [`light`] is many workers without devices, for what only the coordinator decides. [`disk`] is a
//! disk that loses what was not synced.
//!
//! In goes a scenario; out comes what the run ended with, or the first broken invariant. The same
//! scenario gives the same trace. Nothing here knows sockets, threads or a clock.

pub mod check;
pub mod disk;
pub mod fault;
pub mod light;
mod random;
mod shrink;
pub mod simulate;
pub mod toy;
pub mod trace;
pub mod world;

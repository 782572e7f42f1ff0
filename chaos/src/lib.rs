//! Proof by simulation: the cores that run in production, driven on virtual time.
//!
//! [`world`] is a cluster in one thread: coordinator, workers and devices, and between them a wire
//! whose delays follow from a seed. [`fault`] says what may go wrong there, and when. [`check`]
//! watches the events, with one checker for each invariant of the design. [`trace`] records the
//! events. [`simulate`] runs seed after seed, and finds the faults that a failure needs. [`toy`]
//! has runs that take milliseconds.
//!
//! [`storm`] is many workers without devices, for decisions of the coordinator alone. [`disk`] is a
//! disk that loses unsynced writes, and [`files`] is a file system that does.
//!
//! The caller gives a scenario. The simulation returns the end of the run, or the first broken
//! invariant. The same scenario gives the same trace. Nothing here knows sockets, threads or a
//! clock.

pub mod check;
pub mod disk;
pub mod fault;
pub mod files;
mod random;
mod shrink;
pub mod simulate;
pub mod storm;
pub mod toy;
pub mod trace;
pub mod world;

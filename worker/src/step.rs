//! The step: a worker's part in training, as plain state machines.
//!
//! [`core::Core`] is the worker from its first word to its last; [`member::Member`] its part in one
//! generation; [`plan::Plan`] what a generation's record means for it; [`ballot::Ballot`] what the
//! step leader does with votes. [`event`] names what goes in and comes out: messages, pieces of
//! tensors, and jobs for the [`crate::device`].
//!
//! Nothing here reads a clock, opens a socket or starts a thread. Partial sums are added here, and
//! the norms of complete ones taken, on whatever thread drives the core; all else is a job.

pub mod ballot;
pub mod core;
pub mod event;
pub mod finish;
pub mod member;
pub mod plan;
pub mod setup;

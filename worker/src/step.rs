//! The step: a worker's part in training, as plain state machines.
//!
//! [`core::Core`] is the worker from its first message to its last. [`member::Member`] is its part
//! in one generation. `learner` is the part of a worker that is not a member yet.
//! [`holdings::Holdings`] is the state that a worker carries from one generation into the next, and
//! [`gradients::Gradients`] is the part of it that belongs to the step under way. `learning` is how
//! a worker copies shards. [`plan::Plan`] is what a generation's record means for a member.
//! [`ballot::Ballot`] is how the step leader counts votes. [`scaling`] is the loss scale of each
//! step. [`event`] names the inputs and outputs: messages, pieces of tensors, and jobs for the
//! [`crate::device`].
//!
//! Nothing here reads a clock, opens a socket or starts a thread. The thread that drives the core
//! also adds partial sums and takes the norms of complete ones. All other work is a job.

pub mod ballot;
pub mod core;
pub mod event;
pub mod finish;
pub mod gradients;
pub mod holdings;
mod learner;
mod learning;
pub mod member;
pub mod plan;
mod progress;
pub mod roster;
pub mod scaling;
pub mod setup;
pub mod version;
mod writing;

pub(crate) use self::learning::MOST_UNDER_WAY;

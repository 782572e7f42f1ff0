//! The step: a worker's part in training, as plain state machines.
//!
//! [`core::Core`] is the worker from its first word to its last; [`member::Member`] its part in one
//! generation, `learner` that of who takes no part yet; [`holdings::Holdings`] what it carries from
//! one into the next, [`gradients::Gradients`] in particular; `learning` how it takes on shards.
//! [`plan::Plan`] is what a generation's record means for a member, [`ballot::Ballot`] what the
//! step leader does with votes. [`scaling`] is the loss scale of each step. [`event`] names what
//! goes in and comes out: messages, pieces of tensors, and jobs for the [`crate::device`].
//!
//! Nothing here reads a clock, opens a socket or starts a thread. Partial sums are added here, and
//! the norms of complete ones taken, on whatever thread drives the core; all else is a job.

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

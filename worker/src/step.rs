//! The step: a worker's part in training, as plain state machines.
//!
//! [`core::Core`] is the worker from its first message to its last. [`member::Member`] is its part
//! in one generation. `joiner` is the part of a worker that is not a member yet.
//! [`replica_state::ReplicaState`] is the state that a worker carries from one generation into the
//! next, and [`gradients::Gradients`] is the part of it that belongs to the step under way.
//! `catch_up` is how a worker copies shards. [`plan::MemberPlan`] is what a generation's record
//! means for a member. [`vote_tally::VoteTally`] is how the step leader counts votes. [`scaling`]
//! is the loss scale of each step. [`event`] names the inputs and outputs: messages, chunks of
//! tensors, and jobs for the [`crate::device`].
//!
//! Nothing here reads a clock, opens a socket or starts a thread. The thread that drives the core
//! also adds partial sums and takes the norms of complete ones. All other work is a job.

mod catch_up;
pub mod core;
pub mod event;
pub mod finish;
pub mod gradients;
mod joiner;
pub mod member;
mod model_writer;
pub mod plan;
mod progress;
mod promise;
pub mod replica_state;
pub mod scaling;
pub mod setup;
pub mod sized_record;
pub mod version;
pub mod vote_tally;

pub(crate) use self::catch_up::MAX_STATE_BYTES_UNDER_WAY;
pub use self::promise::Promise;

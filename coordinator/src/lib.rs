//! The coordinator: who takes part in a run, with which shards, and how the run stands.
//!
//! [`state`] is the replicated state machine: a log of entries in, the cluster's history out.
//! `assign` says who computes which data shards and owns which parameter shards. [`core`] is a
//! coordinator as a plain state machine over both: messages in, messages and proposals out.
//! [`raft`] brings several coordinators to agree on the log; [`log`] keeps it, on a disk. [`seat`]
//! is one of several coordinators, as a plain state machine: a core and a replica of the log.
//! [`recovery`] goes on from one coordinator's log when most of the others are lost. [`ledger`]
//! says what a coordinator's file of the history has to hold. [`daemon`] is the shell that gives
//! the seat a clock, sockets and files. [`history`] sums up what happened, and [`http`] tells it to
//! whoever asks.
//!
//! It does not know how a step is computed: it reads neither tensors nor votes.

mod assign;
pub mod core;
pub mod daemon;
pub mod history;
pub mod http;
pub mod ledger;
pub mod line_file;
pub mod lines;
pub mod log;
#[cfg(feature = "planted")]
pub mod plant;
pub mod raft;
pub mod recovery;
pub mod seat;
mod standing;
pub mod state;
mod story;

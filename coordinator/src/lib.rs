//! The coordinator decides which workers take part in a run, with which shards, and reports on the
//! run.
//!
//! [`state`] is the replicated state machine: a log of entries in, the cluster's history out.
//! `assign` gives data shards and parameter shards to the members. [`core`] is a coordinator as a
//! plain state machine over both: messages in, messages and proposals out. [`raft`] brings several
//! coordinators to agree on the log, and [`log`] keeps it on a disk. [`node`] is one of several
//! coordinators, as a plain state machine: a core and a replica of the log. [`recovery`] goes on
//! from one coordinator's log when most of the others are lost. [`history_coverage`] decides which
//! records a coordinator's file of the history has to hold. [`daemon`] is the shell that gives the
//! node a clock, sockets and files. [`history`] sums up the events, and [`http`] serves the sums.
//!
//! This crate does not know how a step is computed: it reads neither tensors nor votes.

mod assign;
pub mod core;
pub mod daemon;
mod divergence_sentence;
pub mod format;
pub mod history;
pub mod history_coverage;
pub mod http;
pub mod line_file;
pub mod lines;
pub mod log;
pub mod node;
#[cfg(feature = "planted")]
pub mod plant;
pub mod raft;
pub mod recovery;
mod run_status;
pub mod state;

//! Clusters of real processes, as a user of the program meets them.
//!
//! The tests see only what a user sees: exit codes, output, and the files of a run.
//! [`world`] starts programs and waits for their effects. Each other file is about one promise.

mod by_hand;
mod coordinator;
mod daemon;
mod damaged;
mod demo;
mod elastic;
mod failpoint;
mod fault;
mod files;
mod hash;
mod init;
mod join;
mod kept;
mod killed;
mod learn;
mod memory;
mod operate;
mod pause;
mod places;
mod preempted;
mod recover;
mod refusal;
mod replay;
mod resume;
mod rollback;
mod several;
mod stored;
mod survive;
mod world;

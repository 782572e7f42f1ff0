//! What is said between nodes, and how it travels.
//!
//! [`protocol`] is the vocabulary that worker and coordinator share: types, bounds and validation,
//! nothing else. [`time`] is the clock of every core. [`identity`] says who a node is and how it
//! proves that; [`quic`] carries control messages and bulk chunks between nodes that trust one
//! certificate authority.
//!
//! This crate does not know what a message means: who may send it when is decided by the cores in
//! the `worker` and `coordinator` crates.

pub mod identity;
pub mod protocol;
pub mod quic;
pub mod time;

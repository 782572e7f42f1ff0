//! The messages between nodes, and how they travel.
//!
//! [`protocol`] is the vocabulary that worker and coordinator share: types, bounds and validation,
//! nothing else. [`time`] is the clock of every core. [`identity`] holds a node's name, role and
//! proof of both. [`quic`] carries control messages and bulk chunks between nodes that trust one
//! certificate authority.
//!
//! This crate does not know what a message means. The cores in the `worker` and `coordinator`
//! crates decide which node may send it when.

pub mod identity;
pub mod protocol;
pub mod quic;
pub mod time;

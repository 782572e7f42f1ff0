//! One worker: its data, its step, its exchange with the other members.
//!
//! [`step`] decides, as pure state machines. [`device`] computes, on a thread of its own. [`data`]
//! fills batches. [`daemon`] is the shell that carries events in and effects out, over QUIC and,
//! on one host, through memory ([`memory_ring`]). [`store_work`] reads and writes checkpoints.
//! [`registry`] says what `kind` means. [`builtin`] is what every program has.

pub mod builtin;
pub mod daemon;
#[cfg(feature = "failpoints")]
pub use daemon::failpoint;
pub mod data;
pub mod device;
pub mod free_memory;
pub mod memory;
pub mod memory_ring;
pub mod optimize;
#[cfg(feature = "planted")]
pub mod plant;
pub mod registry;
pub mod step;
pub mod store_work;

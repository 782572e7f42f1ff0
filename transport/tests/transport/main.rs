//! The messages between nodes, the right to send them, and the end of nodes without that right.

mod allow_list;
mod bounds;
mod codec;
mod enrolment;
mod flood;
mod golden;
mod hostile;
mod identity;
mod links;
mod probe;
mod reason;
mod renewal;
mod resets;
mod specification;
mod support;

//! The messages between nodes, the right to send them, and the end of nodes without that right.

mod bounds;
mod codec;
mod enrolment;
mod flood;
mod hostile;
mod identity;
mod links;
mod probe;
mod renewal;
mod roster;
mod support;

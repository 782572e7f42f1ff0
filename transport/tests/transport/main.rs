//! What nodes say to each other, who may say it, and what becomes of those who may not.

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

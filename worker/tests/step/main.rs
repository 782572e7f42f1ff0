//! The step's rooms, each by itself: what a record means, what a ballot counts, what a member waits
//! for.

mod ballot;
mod core;
mod member;
mod plan;
mod support;

//! The device as its driver sees it: jobs in, reports out, with a real model of seven parameter
//! shards.

mod end;
mod gradient;
mod initial;
mod shard_store;
mod stall;
mod support;
mod waiting;

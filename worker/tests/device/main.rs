//! The device as its driver sees it: jobs in, reports out, with a real model of seven parameter
//! shards.

mod end;
mod gradient;
mod holdings;
mod support;
mod waiting;

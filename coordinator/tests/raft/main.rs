//! Replicas of the log in a small world of their own: a network, disks and clocks that fail, on
//! virtual time. All of it follows from a seed. A judge checks the promises at every event.

mod agreement;
mod dice;
mod judge;
mod leadership;
mod machine;
mod members;
mod node;
#[cfg(feature = "planted")]
mod planted;
mod snapshots;
mod tick_rate;
mod world;
